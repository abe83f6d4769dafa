"""What the modules of a package import. Arguments: JSON list of files (absolute), result file."""

import ast
import json
import sys

GUARDS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


class Imports(ast.NodeVisitor):
    """Every import with the conditions around it."""

    def __init__(self):
        self.found = []
        self.functions = []
        self.guarded = 0
        self.typing = 0
        self.conditional = 0

    def visit_Import(self, node):
        for alias in node.names:
            self.add(node, alias.name, [], 0)

    def visit_ImportFrom(self, node):
        self.add(node, node.module or "", [alias.name for alias in node.names], node.level)

    def add(self, node, module, names, level):
        self.found.append(
            {
                "module": module,
                "names": names,
                "level": level,
                "line": node.lineno,
                "function": ".".join(self.functions),
                "lazy": bool(self.functions) and not all(name[0].isupper() for name in self.functions),
                "guarded": self.guarded > 0,
                "typing": self.typing > 0,
                "conditional": self.conditional > 0,
            }
        )

    def visit_Try(self, node):
        caught = any(catches(handler) for handler in node.handlers)
        self.guarded += caught
        self.visit_all(node.body)
        self.guarded -= caught
        # a fallback in the handler is guarded by what it falls back from
        self.guarded += caught
        for handler in node.handlers:
            self.visit_all(handler.body)
        self.guarded -= caught
        self.visit_all(node.orelse)
        self.visit_all(node.finalbody)

    visit_TryStar = visit_Try

    def visit_With(self, node):
        suppressed = any("suppress" in ast.dump(item.context_expr) for item in node.items)
        self.guarded += suppressed
        self.generic_visit(node)
        self.guarded -= suppressed

    def visit_If(self, node):
        test = ast.dump(node.test)
        typing = "TYPE_CHECKING" in test
        main = "__name__" in test and "__main__" in test
        self.typing += typing
        self.conditional += not typing and not main
        self.visit_all(node.body)
        self.typing -= typing
        self.visit_all(node.orelse)
        self.conditional -= not typing and not main

    def visit_FunctionDef(self, node):
        self.inside(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node):
        self.inside(node)

    def inside(self, node):
        self.functions.append(node.name)
        self.generic_visit(node)
        self.functions.pop()

    def visit_all(self, nodes):
        for node in nodes:
            self.visit(node)


def catches(handler):
    if handler.type is None:
        return True
    names = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(getattr(name, "id", getattr(name, "attr", "")) in GUARDS for name in names)


def scan(path):
    try:
        with open(path, "rb") as source:
            tree = ast.parse(source.read())
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError) as problem:
        return {"error": type(problem).__name__ + ": " + str(problem), "imports": []}
    visitor = Imports()
    try:
        visitor.visit(tree)
    except RecursionError:
        return {"error": "RecursionError", "imports": visitor.found}
    return {"error": "", "imports": visitor.found}


def main():
    paths, target = sys.argv[1:3]
    stdlib = sorted(getattr(sys, "stdlib_module_names", ()))
    with open(paths) as listed:
        files = json.load(listed)
    with open(target, "w") as out:
        json.dump({"stdlib": stdlib, "files": {path: scan(path) for path in files}}, out)


main()
