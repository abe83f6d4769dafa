"""Which code an import really gives: path, version, and git's id of each file of the package as it lies there.

Arguments: JSON list of the packages' dotted names, distribution, git's hash (sha1 or sha256), result file.
"""

import hashlib
import importlib
import json
import os
import sys
from importlib import metadata

MOST_FILES = 5000


def main():
    distribution, algorithm, target = sys.argv[2:5]
    found = {"version": version_of(distribution), "packages": {}}
    for name in json.loads(sys.argv[1]):
        try:
            module = importlib.import_module(name)
        except Exception as problem:
            found["packages"][name] = {"problem": repr(problem)[:500]}
            continue
        file = getattr(module, "__file__", None)
        places = [file] if file and os.path.basename(file) != "__init__.py" else list(getattr(module, "__path__", []))
        found["packages"][name] = {"path": file or (places or [""])[0], "files": ids(places, algorithm)}
    with open(target, "w") as out:
        json.dump(found, out)


def version_of(distribution):
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def ids(places, algorithm):
    """Path relative to the package's folder -> git's id of it, of Python files."""
    found = {}
    for place in places:
        if os.path.isfile(place):
            found[os.path.basename(place)] = blob_id(place, algorithm)
        for folder, folders, files in os.walk(place):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for file in sorted(files):
                if file.endswith(".py") and len(found) < MOST_FILES:
                    path = os.path.join(folder, file)
                    found[os.path.relpath(path, place)] = blob_id(path, algorithm)
    return found


def blob_id(path, algorithm):
    with open(path, "rb") as file:
        content = file.read()
    return hashlib.new(algorithm, b"blob %d\0" % len(content) + content).hexdigest()


main()
