"""Which files beside its modules a package opens, read from its code.

A small evaluator follows path expressions that start at `__file__`, `importlib.resources.files(...)`,
`pkgutil.get_data(...)` or `pkg_resources`, through `/`, `joinpath`, `os.path.join`, names and f-strings. A part that
depends on an argument of the surrounding function stays open as that argument's name, so that a later match with a real
file name says which argument leads to it: `files(__package__) / "aliases" / f"{lang}.json"` with `aliases/de.json`
gives `lang="de"`.
"""

import ast
import posixpath
import re
from dataclasses import dataclass, field

from review_agents.probes.source_tree import parsed

Part = str | tuple[str, str]  # a piece of text, or ("name", NAME) for what an argument decides


@dataclass(frozen=True)
class Opened:
    """One path expression. `parts` give the path relative to the import root, with open pieces."""

    parts: tuple[Part, ...]
    line: int
    function: str  # qualified name around it, "" at module level
    arguments: tuple[str, ...] = ()  # the function's parameters without a default, in order
    optional: tuple[str, ...] = ()  # those with a default

    @property
    def is_exact(self) -> bool:
        return all(isinstance(part, str) for part in self.parts)

    @property
    def text(self) -> str:
        return "".join(part if isinstance(part, str) else f"{{{part[1]}}}" for part in self.parts)

    def matches(self, path: str) -> dict[str, str] | None:
        """The arguments that lead to this path (relative to the import root), or None when it cannot lead there."""
        pattern, names = "", []
        for part in self.parts:
            if isinstance(part, str):
                pattern += re.escape(part)
            else:
                names.append(part[1])
                pattern += r"([^/]+)" if part[1] else r"[^/]+"
        found = re.fullmatch(pattern, path)
        if not found:
            return None
        values: dict[str, str] = {}
        for name, value in zip([name for name in names if name], found.groups(), strict=True):
            if values.setdefault(name, value) != value:
                return None
        return values


@dataclass
class Scope:
    function: str
    arguments: tuple[str, ...]
    optional: tuple[str, ...]
    values: dict[str, tuple[Part, ...]] = field(default_factory=dict)


def opened_paths(text: str, module: str, *, is_package: bool) -> tuple[Opened, ...]:
    """Every path expression of the module that leads into the package. `module` is dotted."""
    tree = parsed(text)
    if tree is None:
        return ()
    reader = Reader(module, is_package)
    reader.block(tree.body)
    return tuple(dict.fromkeys(reader.found))


class Reader:
    """Walks statements in order, keeps what names stand for, and notes each whole path expression."""

    def __init__(self, module: str, is_package: bool):
        self.package = module if is_package else module.rpartition(".")[0]
        self.file = module.replace(".", "/") + ("/__init__.py" if is_package else ".py")
        self.scopes = [Scope("", (), ())]
        self.found: list[Opened] = []

    def block(self, body: list[ast.stmt]) -> None:
        for node in body:
            self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            needed, optional = _parameters(node)
            self.inside(node.name, needed, optional, node.body)
        elif isinstance(node, ast.ClassDef):
            self.inside(node.name, (), (), node.body)
        else:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                value = self.path(node.value)
                for target in targets:
                    if isinstance(target, ast.Name) and value is not None:
                        self.scopes[-1].values[target.id] = value
            for child in ast.iter_child_nodes(node):
                self.walk(child)

    def inside(self, name: str, needed: tuple[str, ...], optional: tuple[str, ...], body: list[ast.stmt]) -> None:
        outer = self.scopes[-1].function
        self.scopes.append(Scope(f"{outer}.{name}" if outer else name, needed, optional))
        self.block(body)
        self.scopes.pop()

    def walk(self, node: ast.AST) -> None:
        """Note the outermost path expressions below this node."""
        if isinstance(node, ast.stmt):
            self.statement(node)
            return
        if isinstance(node, ast.expr):
            value = self.path(node)
            if value is not None and not _is_bare_anchor(node):
                scope = self.scopes[-1]
                self.found.append(Opened(value, node.lineno, scope.function, scope.arguments, scope.optional))
                return
        for child in ast.iter_child_nodes(node):
            self.walk(child)

    # What an expression stands for ---------------------------------------------------------

    def path(self, node: ast.expr) -> tuple[Part, ...] | None:
        """The path (relative to the import root) that the expression means, or None for anything else."""
        if isinstance(node, ast.Name):
            if node.id == "__file__":
                return (self.file,)
            return next((scope.values[node.id] for scope in reversed(self.scopes) if node.id in scope.values), None)
        if isinstance(node, ast.Attribute):
            below = self.path(node.value)
            return _parent(below) if below and node.attr == "parent" else None
        if isinstance(node, ast.Subscript):
            return self.subscript(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            below = self.path(node.left)
            return _join(below, self.text(node.right)) if below is not None else None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            below = self.path(node.left)
            added = self.text(node.right)
            return _tidy((*below, *added)) if below is not None and added is not None else None
        if isinstance(node, ast.Call):
            return self.call(node)
        return None

    def subscript(self, node: ast.Subscript) -> tuple[Part, ...] | None:
        """`path.parents[N]`."""
        if not (isinstance(node.value, ast.Attribute) and node.value.attr == "parents"):
            return None
        below = self.path(node.value.value)
        if below is None or not (isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int)):
            return None
        for _ in range(min(node.slice.value, 20) + 1):
            below = _parent(below) if below is not None else None
        return below

    def call(self, node: ast.Call) -> tuple[Part, ...] | None:
        name = _called(node.func)
        words = node.args
        if isinstance(node.func, ast.Attribute):
            below = self.path(node.func.value)
            if below is not None:
                if name in ("resolve", "absolute", "expanduser", "as_posix", "__str__"):
                    return below
                if name == "joinpath":
                    return self.joined(below, words)
                if name == "with_name" and words:
                    return _join(_parent(below), self.text(words[0]))
                return None
        if name in ("Path", "PurePath", "str", "fspath", "abspath", "realpath", "normpath", "as_file") and words:
            below = self.path(words[0])
            return self.joined(below, words[1:]) if below is not None else None
        if name == "dirname" and words:
            below = self.path(words[0])
            return _parent(below) if below is not None else None
        if name == "join" and words:
            below = self.path(words[0])
            return self.joined(below, words[1:]) if below is not None else None
        return self.resource(name, node)

    def resource(self, name: str, node: ast.Call) -> tuple[Part, ...] | None:
        """importlib.resources, pkgutil and pkg_resources: the first argument names the package."""
        words = node.args
        if name == "files":
            return self.anchor(words[0] if words else None)
        kinds = ("read_text", "read_binary", "open_text", "open_binary", "is_resource", "get_data", "path")
        owners = ("resources", "pkgutil", "importlib_resources", "")
        legacy = ("resource_filename", "resource_string", "resource_stream", "resource_exists", "resource_listdir")
        if len(words) >= 2 and (name in legacy or (name in kinds and _owner(node.func) in owners)):
            below = self.anchor(words[0])
            return self.joined(below, words[1:2]) if below is not None else None
        return None

    def anchor(self, node: ast.expr | None) -> tuple[Part, ...] | None:
        if node is None or (isinstance(node, ast.Name) and node.id in ("__package__", "__name__", "__spec__")):
            return (self.package.replace(".", "/"),)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return (node.value.replace(".", "/"),)
        if isinstance(node, ast.Attribute) and node.attr in ("parent", "name", "__name__"):
            return (self.package.replace(".", "/"),)
        text = self.text(node)
        whole = text is not None and all(isinstance(part, str) for part in text)
        return ("".join(map(str, text)).replace(".", "/"),) if whole and text else None

    def joined(self, below: tuple[Part, ...] | None, words: list[ast.expr]) -> tuple[Part, ...] | None:
        for word in words:
            below = _join(below, self.text(word))
        return below

    def text(self, node: ast.expr) -> tuple[Part, ...] | None:
        """A string with open pieces. None when it is beyond this reader."""
        if isinstance(node, ast.Constant):
            return (node.value,) if isinstance(node.value, str) else None
        if isinstance(node, ast.Name):
            known = next((scope.values[node.id] for scope in reversed(self.scopes) if node.id in scope.values), None)
            return known or (("name", node.id if self.is_argument(node.id) else ""),)
        if isinstance(node, ast.JoinedStr):
            parts: list[Part] = []
            for value in node.values:
                inner = value.value if isinstance(value, ast.FormattedValue) else value
                below = self.text(inner)
                parts.extend(below if below is not None else (("name", ""),))
            return tuple(parts)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self.text(node.left), self.text(node.right)
            return (*left, *right) if left is not None and right is not None else None
        return (("name", ""),)

    def is_argument(self, name: str) -> bool:
        return name in self.scopes[-1].arguments or name in self.scopes[-1].optional


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[tuple[str, ...], tuple[str, ...]]:
    plain = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    count = len(plain) - len(node.args.defaults)
    only = [
        argument.arg
        for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        if not default
    ]
    named = [argument.arg for argument in node.args.kwonlyargs if argument.arg not in only]
    return tuple(plain[:count] + only), tuple(plain[count:] + named)


def _join(below: tuple[Part, ...] | None, text: tuple[Part, ...] | None) -> tuple[Part, ...] | None:
    if below is None or text is None:
        return None
    if text and isinstance(text[0], str) and text[0].startswith("/"):
        return None
    return _tidy((*below, "/", *text))


def _parent(below: tuple[Part, ...] | None) -> tuple[Part, ...] | None:
    if below is None or not all(isinstance(part, str) for part in below):
        return None
    path = "".join(map(str, below))
    if path == "." or path.endswith(".."):
        return (posixpath.normpath(f"{path}/.."),)
    return (posixpath.dirname(path) or ".",)


def _tidy(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Neighbouring texts as one, and `..` resolved where everything is known."""
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    if len(merged) == 1 and isinstance(merged[0], str):
        return (posixpath.normpath(merged[0]),)
    if merged and isinstance(merged[0], str):
        merged[0] = re.sub(r"^(?:\./)+", "", re.sub(r"/+", "/", merged[0]))
    return tuple(merged)


def _called(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _owner(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return getattr(function.value, "id", getattr(function.value, "attr", "?"))
    return ""


def _is_bare_anchor(node: ast.expr) -> bool:
    """`__file__` or a name alone opens nothing by itself."""
    return isinstance(node, ast.Name)
