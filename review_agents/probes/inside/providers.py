"""Which installed distribution provides each top-level module, with what each one requires. Argument: result file."""

import json
import sys
from importlib import metadata


def main():
    provided = {}
    requires = {}
    for dist in metadata.distributions():
        name = dist.metadata["Name"]
        if not name:
            continue
        requires[name] = list(dist.requires or ())
        tops = {str(path).split("/")[0] for path in dist.files or () if str(path).endswith((".py", ".so"))}
        for top in tops:
            if not top.startswith("..") and not top.endswith((".dist-info", ".data")):
                provided.setdefault(top.split(".")[0], []).append(name)
    with open(sys.argv[1], "w") as out:
        json.dump({"provided": provided, "requires": requires}, out)


main()
