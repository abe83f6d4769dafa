"""What one installed distribution is, and everything beside it. Arguments: distribution name, result file."""

import json
import sys
from importlib import metadata


def roots(files):
    """Importable roots in dotted form: a namespace package is followed down to the first real one."""
    modules = set()
    tree = {}
    for path in files:
        parts = path.split("/")
        if parts[0] in ("..", "") or parts[0].endswith((".dist-info", ".data", ".egg-info")) or "__pycache__" in parts:
            continue
        if not parts[-1].endswith((".py", ".so", ".pyd", ".abi3.so")):
            continue
        node = tree
        for part in parts[:-1]:
            node = node.setdefault(part, {})
        node[parts[-1]] = None
    descend(tree, "", modules)
    return sorted(modules)


def descend(tree, prefix, modules):
    for name, below in tree.items():
        if below is None:
            stem = name.split(".")[0]
            if stem.isidentifier() and not (prefix and stem == "__main__"):
                modules.add(prefix + stem)
        elif name.isidentifier():
            if "__init__.py" in below or any(part.startswith("__init__.") for part in below):
                modules.add(prefix + name)
            else:
                descend(below, prefix + name + ".", modules)


def describe(name):
    dist = metadata.distribution(name)
    files = [str(path) for path in dist.files or ()]
    scripts = {"console_scripts": {}, "gui_scripts": {}}
    for point in dist.entry_points:
        if point.group in scripts:
            scripts[point.group][point.name] = point.value
    return {
        "name": dist.metadata["Name"],
        "version": dist.version,
        "summary": dist.metadata["Summary"] or "",
        "requires": list(dist.requires or ()),
        "extras": dist.metadata.get_all("Provides-Extra") or [],
        "requires_python": dist.metadata["Requires-Python"] or "",
        "console_scripts": scripts["console_scripts"],
        "gui_scripts": scripts["gui_scripts"],
        "files": files,
        "import_packages": roots(files),
    }


def main():
    name, target = sys.argv[1:3]
    resolved = {}
    for dist in metadata.distributions():
        if dist.metadata["Name"]:
            resolved[dist.metadata["Name"]] = dist.version
    found = {"python": sys.version.split()[0], "resolved": resolved}
    if name:
        found["distribution"] = describe(name)
    with open(target, "w") as out:
        json.dump(found, out)


main()
