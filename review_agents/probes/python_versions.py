"""Syntax and standard library names that came with a certain Python, against `requires-python`.

Only what is certain counts: what stands behind a version check, a `try` or in a body that an annotation import defers
is left alone.
"""

import ast
from collections.abc import Iterator

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from review_agents.probes.source_tree import parsed
from review_agents.records import Record

NEW_MODULES = {"zoneinfo": 9, "graphlib": 9, "tomllib": 11, "wsgiref.types": 11, "compression": 14, "annotationlib": 14}
# (minor version, module) -> names that came with it
NEW_IN = {
    (9, "asyncio"): "to_thread",
    (9, "functools"): "cache",
    (9, "importlib.resources"): "as_file files",
    (9, "math"): "lcm nextafter",
    (9, "random"): "randbytes",
    (10, "contextlib"): "aclosing",
    (10, "dataclasses"): "KW_ONLY",
    (10, "inspect"): "get_annotations",
    (10, "itertools"): "pairwise",
    (10, "types"): "EllipsisType NoneType UnionType",
    (10, "typing"): "Concatenate ParamSpec TypeAlias TypeGuard",
    (11, "asyncio"): "Runner TaskGroup timeout",
    (11, "contextlib"): "chdir",
    (11, "datetime"): "UTC",
    (11, "enum"): "StrEnum",
    (11, "hashlib"): "file_digest",
    (11, "math"): "cbrt exp2",
    (11, "operator"): "call",
    (11, "typing"): "LiteralString Never NotRequired Required Self Unpack assert_never assert_type reveal_type",
    (12, "itertools"): "batched",
    (12, "math"): "sumprod",
    (12, "typing"): "override",
    (13, "copy"): "replace",
    (13, "warnings"): "deprecated",
}
NEW_NAMES = {(module, name): minor for (minor, module), names in NEW_IN.items() for name in names.split()}
NEW_BUILTINS = {"ExceptionGroup": 11, "BaseExceptionGroup": 11, "aiter": 10, "anext": 10, "EncodingWarning": 10}
NEW_KEYWORDS = {  # module ("" for a builtin), function, keyword
    ("", "zip", "strict"): 10,
    ("dataclasses", "dataclass", "slots"): 10,
    ("dataclasses", "dataclass", "kw_only"): 10,
    ("dataclasses", "field", "kw_only"): 10,
}
BUILTIN_TYPES = {
    "int",
    "str",
    "float",
    "bool",
    "bytes",
    "list",
    "dict",
    "set",
    "tuple",
    "frozenset",
    "complex",
    "object",
}
GENERIC_BUILTINS = {"list", "dict", "set", "tuple", "frozenset", "type"}


class Use(Record):
    """One thing in a module that needs a newer Python."""

    line: int
    since: int  # minor version of Python 3
    what: str  # in words
    effect: str  # what happens on an older Python
    node: str  # how the check recognises it: the node's type and what it names

    def check(self, path: str) -> str:
        """Bash that finds this use again in a clone and ends with 1, or with 0 when it is gone."""
        kind, _, name = self.node.partition(":")
        last = name.rpartition(".")[2]
        tests = {
            "syntax": f"type(node).__name__ == {name!r}",
            "module": "isinstance(node, (ast.Import, ast.ImportFrom)) and "
            f"{name!r} in [getattr(node, 'module', None), *[alias.name for alias in node.names]]",
            "name": f"(isinstance(node, ast.ImportFrom) and {last!r} in [a.name for a in node.names]) or "
            f"(isinstance(node, ast.Attribute) and node.attr == {last!r})",
            "builtin": f"isinstance(node, ast.Name) and node.id == {name!r}",
            "keyword": f"isinstance(node, ast.Call) and {last!r} in [word.arg for word in node.keywords]",
            "union": "isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)",
            "generic": f"isinstance(node, ast.Subscript) and getattr(node.value, 'id', '') == {name!r}",
        }
        return (
            "python - <<'EOF'\nimport ast, sys\n"
            f"tree = ast.parse(open({path!r}, encoding='utf-8').read())\n"
            f"lines = [node.lineno for node in ast.walk(tree) if {tests[kind]}]\n"
            "if lines:\n"
            f"    print({path!r}, 'line', lines[0], {f'{self.what} needs Python 3.{self.since}'!r})\n"
            "    sys.exit(1)\nEOF"
        )


def oldest_minor(requires_python: str) -> int | None:
    """The oldest minor version of Python 3 (from 3.6 on) that the specifier admits; None when it says nothing."""
    try:
        specifiers = SpecifierSet(requires_python)
    except InvalidSpecifier:
        return None
    if not any(one.operator in (">=", ">", "~=", "==") for one in specifiers):
        return None
    return next(
        (minor for minor in range(6, 30) if specifiers.contains(f"3.{minor}.99") or specifiers.contains(f"3.{minor}")),
        None,
    )


def too_new(text: str, requires_python: str) -> tuple[Use, ...]:
    """What in the module the oldest admitted Python does not have."""
    oldest = oldest_minor(requires_python)
    tree = parsed(text)
    if oldest is None or tree is None:
        return ()
    deferred = any(
        isinstance(node, ast.ImportFrom)
        and node.module == "__future__"
        and any(a.name == "annotations" for a in node.names)
        for node in tree.body
    )
    found = [use for use in _uses(tree, deferred) if use.since > oldest]
    return tuple(sorted(found, key=lambda use: use.line))


def _uses(tree: ast.Module, deferred: bool) -> Iterator[Use]:
    aliases, own = _imported_names(tree), _own_names(tree)
    for node in _unguarded(tree):
        yield from _syntax(node)
        yield from _names(node, aliases, own)
        if not deferred:
            yield from _annotations(node)


def _unguarded(tree: ast.Module) -> Iterator[ast.AST]:
    """Every node that runs without a version check, `TYPE_CHECKING` or `try` around it."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If | ast.IfExp) and _is_check(node.test):
            continue
        if isinstance(node, ast.Try) and node.handlers:
            waiting.extend([*node.orelse, *node.finalbody])
            continue
        yield node
        waiting.extend(_left_after_a_check(node))


CHECKS = ("version", "TYPE_CHECKING", "PY3", "PY_3", "hasattr", "platform", "HAS_", "HAVE_")


def _is_check(test: ast.expr) -> bool:
    said = ast.dump(test)
    return any(word in said for word in CHECKS)


def _left_after_a_check(node: ast.AST) -> Iterator[ast.AST]:
    """The node's children, without what follows `if sys.version_info < ...: return` in the same function."""
    body = getattr(node, "body", None)
    cut = None
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        tests = [at for at, child in enumerate(node.body) if isinstance(child, ast.If) and _is_check(child.test)]
        cut = tests[0] if tests else None
    left_out = set(map(id, body[cut:])) if cut is not None and isinstance(body, list) else set()
    return (child for child in ast.iter_child_nodes(node) if id(child) not in left_out)


def _syntax(node: ast.AST) -> Iterator[Use]:
    kinds = {"Match": (10, "a match statement"), "TryStar": (11, "except*"), "TypeAlias": (12, "a type statement")}
    name = type(node).__name__
    if name in kinds:
        since, what = kinds[name]
        yield _use(node, since, what, "the module is a SyntaxError", f"syntax:{name}")
    if getattr(node, "type_params", None):
        yield _use(node, 12, "type parameters in brackets", "the module is a SyntaxError", f"syntax:{name}")


def _use(node: ast.AST, since: int, what: str, effect: str, mark: str) -> Use:
    return Use(line=getattr(node, "lineno", 1), since=since, what=what, effect=effect, node=mark)


def _imported_names(tree: ast.Module) -> dict[str, str]:
    """Local name -> what it stands for: a module, or MODULE.NAME for `from MODULE import NAME`."""
    found: dict[str, str] = {}
    for node in _unguarded(tree):  # what a `try` binds may be a backport
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module if node.level == 0 and node.module else "?"
            found |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in node.names}
    return found


def _own_names(tree: ast.Module) -> set[str]:
    """Names that the module gives to something itself, arguments included: they hide builtins."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def _names(node: ast.AST, aliases: dict[str, str], own: set[str]) -> Iterator[Use]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name in NEW_MODULES:
                yield _use(
                    node,
                    NEW_MODULES[alias.name],
                    f"the module `{alias.name}`",
                    "the import fails",
                    f"module:{alias.name}",
                )
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        if node.module in NEW_MODULES:
            yield _use(
                node,
                NEW_MODULES[node.module],
                f"the module `{node.module}`",
                "the import fails",
                f"module:{node.module}",
            )
        for alias in node.names:
            since = NEW_NAMES.get((node.module, alias.name), 0)
            if since:
                name = f"{node.module}.{alias.name}"
                yield _use(node, since, f"`{name}`", "the import fails", f"name:{name}")
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        since = NEW_NAMES.get((aliases.get(node.value.id, ""), node.attr), 0)
        if since and node.attr not in own:  # a function of the same name only passes it on
            name = f"{aliases[node.value.id]}.{node.attr}"
            yield _use(node, since, f"`{name}`", "it is an AttributeError", f"name:{name}")
    elif (
        isinstance(node, ast.Name) and node.id in NEW_BUILTINS and node.id not in own and isinstance(node.ctx, ast.Load)
    ):
        yield _use(node, NEW_BUILTINS[node.id], f"`{node.id}`", "it is a NameError", f"builtin:{node.id}")
    elif isinstance(node, ast.Call):
        module, called = _origin(node.func, aliases, own)
        for word in node.keywords:
            since = NEW_KEYWORDS.get((module, called, word.arg or ""), 0)
            if since:
                mark = f"keyword:{called}.{word.arg}"
                yield _use(node, since, f"`{called}({word.arg}=...)`", "the call is a TypeError", mark)


def _origin(function: ast.expr, aliases: dict[str, str], own: set[str]) -> tuple[str, str]:
    """The module that the called name comes from ("" for a builtin, "?" for what the module defines itself)."""
    if isinstance(function, ast.Attribute):
        return aliases.get(getattr(function.value, "id", ""), "?"), function.attr
    name = getattr(function, "id", "")
    if name in own:
        return "?", name
    module, _, attribute = aliases.get(name, "").rpartition(".")
    return module, attribute or name


def _annotations(node: ast.AST) -> Iterator[Use]:
    """Annotations that are evaluated when the module is loaded: signatures, and class or module variables."""
    found: list[ast.expr | None] = []
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        found = [node.returns, *(argument.annotation for argument in every if argument)]
    elif isinstance(node, ast.Module | ast.ClassDef):
        found = [child.annotation for child in node.body if isinstance(child, ast.AnnAssign)]
    for annotation in found:
        for part in ast.walk(annotation) if annotation is not None else ():
            if (
                isinstance(part, ast.BinOp)
                and isinstance(part.op, ast.BitOr)
                and (_is_type(part.left) or _is_type(part.right))
            ):
                yield _use(part, 10, "`X | Y` as a type", "the definition is a TypeError", "union:")
            elif isinstance(part, ast.Subscript) and getattr(part.value, "id", "") in GENERIC_BUILTINS:
                name = part.value.id  # type: ignore[attr-defined]
                yield _use(part, 9, f"`{name}[...]` as a type", "the definition is a TypeError", f"generic:{name}")


def _is_type(node: ast.expr) -> bool:
    return (isinstance(node, ast.Constant) and node.value is None) or getattr(node, "id", "") in BUILTIN_TYPES
