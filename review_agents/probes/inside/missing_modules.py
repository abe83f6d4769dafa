"""Modules that test files need and this interpreter cannot find.

Arguments: tree, JSON of fixture -> module, JSON of mark -> module, result file.
"""

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


def parsed(path):
    try:
        with open(path, "rb") as source:
            return ast.parse(source.read())
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
        return ast.Module([], [])


def imported(tree):
    """Names imported outside of `try`, and outside of functions (a skip may guard those)."""
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


def from_plugins(trees, fixtures, marks):
    """Modules of plugins whose fixtures or marks are used and that no test file defines itself."""
    used, defined = set(), set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                defined.add(node.name)
                if node.name.startswith("test"):
                    used.update(argument.arg for argument in node.args.args)
            elif isinstance(node, ast.Attribute) and getattr(node.value, "attr", "") == "mark":
                used.add("mark " + node.attr)
    modules = {fixtures[name] for name in used - defined if name in fixtures}
    return modules | {marks[name[5:]] for name in used if name.startswith("mark ") and name[5:] in marks}


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
    tree, fixtures, marks, target = sys.argv[1:5]
    missing = set()
    trees = []
    for path in test_files(tree):
        folder = os.path.dirname(path)
        places = {tree, os.path.join(tree, "src"), folder, os.path.dirname(folder)}
        trees.append(parsed(path))
        missing.update(name.split(".")[0] for name in imported(trees[-1]) if not found(name, places))
    plugins = from_plugins(trees, json.loads(fixtures), json.loads(marks))
    missing.update(name for name in plugins if not found(name, ()))
    with open(target, "w") as out:
        json.dump(sorted(missing), out)


main()
