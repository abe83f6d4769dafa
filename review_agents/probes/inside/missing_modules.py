"""Modules that test files import and this interpreter cannot find. Arguments: tree, result file."""

import ast
import importlib.util
import json
import os
import sys

SKIPPED = {
    ".git",
    ".tox",
    ".nox",
    "node_modules",
    "build",
    "dist",
    ".eggs",
    "__pycache__",
    "site-packages",
    "venv",
    ".venv",
}


def test_files(tree):
    for folder, below, names in os.walk(tree):
        below[:] = [name for name in below if name not in SKIPPED]
        inside = {"test", "tests", "testing"} & set(os.path.relpath(folder, tree).split(os.sep))
        for name in names:
            if name.endswith(".py") and (
                inside or name.startswith("test_") or name.endswith("_test.py") or name == "conftest.py"
            ):
                yield os.path.join(folder, name)


def wanted(path):
    """Top-level names imported outside of `try`, and outside of functions (a skip may guard those)."""
    try:
        with open(path, "rb") as source:
            tree = ast.parse(source.read())
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
        return set()
    names = set()
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
        elif isinstance(node, (ast.ClassDef, ast.With)):
            waiting.extend(node.body)
        elif isinstance(node, ast.Assign) and "pytest_plugins" in [
            getattr(target, "id", "") for target in node.targets
        ]:
            strings = [part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
            names.update(text for text in strings if isinstance(text, str))
    return names


def found(name, places):
    """Whether the module's top (or the two first parts, for a namespace package) can be found."""
    top = name.split(".")[0]
    if top in sys.builtin_module_names:
        return True
    if any(
        os.path.exists(os.path.join(place, top)) or os.path.exists(os.path.join(place, top + ".py")) for place in places
    ):
        return True
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def main():
    tree, target = sys.argv[1:3]
    missing = set()
    for path in test_files(tree):
        folder = os.path.dirname(path)
        places = {tree, os.path.join(tree, "src"), folder, os.path.dirname(folder)}
        missing.update(name.split(".")[0] for name in wanted(path) if not found(name, places))
    with open(target, "w") as out:
        json.dump(sorted(missing), out)


main()
