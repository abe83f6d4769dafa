"""Which code an import really gives: path, version, and a digest of each file of the package as it lies there.

Arguments: JSON list of the packages' dotted names, distribution, result file.
"""

import hashlib
import importlib
import json
import os
import sys
from importlib import metadata

MOST_FILES = 5000


def main():
    names, distribution, target = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
    found = {"version": version_of(distribution), "packages": {}}
    for name in names:
        try:
            module = importlib.import_module(name)
        except Exception as problem:
            found["packages"][name] = {"problem": repr(problem)[:500]}
            continue
        file = getattr(module, "__file__", None)
        places = [file] if file and os.path.basename(file) != "__init__.py" else list(getattr(module, "__path__", []))
        found["packages"][name] = {"path": file or (places or [""])[0], "files": digests(places)}
    with open(target, "w") as out:
        json.dump(found, out)


def version_of(distribution):
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def digests(places):
    """Path relative to the package's folder -> SHA-256, of Python files."""
    found = {}
    for place in places:
        if os.path.isfile(place):
            found[os.path.basename(place)] = digest(place)
        for folder, folders, files in os.walk(place):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for file in sorted(files):
                if file.endswith(".py") and len(found) < MOST_FILES:
                    path = os.path.join(folder, file)
                    found[os.path.relpath(path, place)] = digest(path)
    return found


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


main()
