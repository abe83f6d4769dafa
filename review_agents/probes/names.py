"""Names in Python examples: which an example sets and uses, which come from the package, which cannot be relied on."""

import ast
import builtins
import re

from review_agents.probes.shell import Package


class Names:
    """What is known of the names at the prompt while a page is read from top to bottom."""

    def __init__(self, package: Package):
        self.package = package
        self.own: set[str] = set()  # that come from the package, directly or not
        self.spoilt: set[str] = set()  # that a failed or skipped example would have set

    def learn(self, code: str) -> None:
        """Which names come from the package."""
        try:
            tree = ast.parse(code)
        except (SyntaxError, ValueError, RecursionError):
            return
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if self.package.has_module(alias.name) or self._holds_own(alias.name):
                        self.own.add((alias.asname or alias.name).partition(".")[0])
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    if self.package.has_module(node.module) or self.package.has_module(f"{node.module}.{alias.name}"):
                        if alias.name == "*":
                            self.own.add("*")
                        self.own.add(alias.asname or alias.name)
        for _ in range(2):
            if self.own & names_used(code) or "*" in self.own:
                self.own |= names_set(code)

    def _holds_own(self, module: str) -> bool:
        return any(own.startswith(module + ".") for own in self.package.modules)

    def are_ours(self, code: str) -> bool:
        used = names_used(code)
        builtin = set(dir(builtins))
        return bool(self.own & used) or ("*" in self.own and bool(used - builtin))

    def are_spoilt(self, code: str) -> bool:
        constants = {
            word.lower() for word in re.findall(r"\b[A-Z][A-Z_]+\b", code)
        }  # a failed `locale` spoils ns.LOCALE
        return bool(self.spoilt & (names_used(code) | constants))

    def made_anew(self, code: str) -> None:
        """Names that this code has just set, and set from what is sound."""
        if not self.are_spoilt(code) or re.match(r"\s*(?:from|import)\b", code):
            self.spoilt -= names_set(code) - names_used(code) | imported(code)

    def called_by(self, code: str) -> str:
        """The package's function that the code calls, else what it reads of an object; it tells findings apart."""
        try:
            tree = ast.parse(code.strip())
        except (SyntaxError, ValueError, RecursionError):
            return ""
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        names = [name for call in calls if (name := _dotted(call.func)) and name.partition(".")[0] in self.own]
        if names:
            return names[0]
        methods = [call.func.attr for call in calls if isinstance(call.func, ast.Attribute)]
        if methods:
            return methods[0]
        read = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        attributes = [node.attr for node in read if _dotted(node).partition(".")[0] in self.own]
        if attributes:
            return attributes[0]
        used = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in self.own]
        return used[0] if used else ""


def names_set(source: str) -> set[str]:
    """Names that the code binds or may change: assigned, imported, defined, or used as an object of a call."""
    found: set[str] = set()
    for node in _nodes(source):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found |= {inner.id for inner in ast.walk(node.func) if isinstance(inner, ast.Name)}
        elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            found |= {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    return found


def names_used(source: str) -> set[str]:
    return {node.id for node in _nodes(source) if isinstance(node, ast.Name)}


def _nodes(source: str) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return []


def imported(code: str) -> set[str]:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError):
        return set()
    found = [alias for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names]
    return {(alias.asname or alias.name).partition(".")[0] for alias in found}


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""
