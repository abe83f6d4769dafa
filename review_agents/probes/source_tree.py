"""Where the files of an installed package lie in the repo."""

import ast
from collections.abc import Iterable

from review_agents.ports import NoSuchFile, Workspace
from review_agents.probes.prepared import Distribution, Prepared
from review_agents.records import Place, Repo

TEST_MODULES = {"test.py", "tests.py", "runtests.py", "run_tests.py"}
TEST_PARTS = {"test", "tests", "testing", "_tests", "_test", "conftest.py"}


class SourceTree:
    """The repo's tracked files, read through the workspace and kept."""

    def __init__(self, workspace: Workspace, repo: Repo, prepared: Prepared):
        self.workspace, self.repo, self.prepared = workspace, repo, prepared
        self.tracked = set(repo.files)
        self._texts: dict[str, str] = {}
        self._folders: dict[tuple[str, str], str] = {}
        self._shipped = {one.name: frozenset(one.files) for one in prepared.distributions}

    def text(self, path: str) -> str:
        """A tracked file's text; "" for anything else."""
        if path not in self.tracked:
            return ""
        if path not in self._texts:
            try:
                self._texts[path] = self.workspace.read(path)
            except NoSuchFile:
                self._texts[path] = ""
        return self._texts[path]

    def shipped(self, distribution: Distribution) -> frozenset[str]:
        """The wheel's files, relative to site-packages."""
        return self._shipped[distribution.name]

    def folder_of(self, distribution: Distribution, package: str) -> str:
        """The tracked folder of a package (dotted), or the file of a single module; "" when it is generated."""
        key = (distribution.root, package)
        if key not in self._folders:
            self._folders[key] = self._find_folder(distribution, package)
        return self._folders[key]

    def _find_folder(self, distribution: Distribution, package: str) -> str:
        inner = package.replace(".", "/")
        prefix = "" if distribution.root == "." else f"{distribution.root}/"
        places = [f"{prefix}{inner}", f"{prefix}src/{inner}", f"{prefix}lib/{inner}", f"{prefix}python/{inner}"]
        for place in places:
            if f"{place}.py" in self.tracked:
                return f"{place}.py"
            if any(path.startswith(f"{place}/") and path.endswith((".py", ".pyx", ".pyi")) for path in self.tracked):
                return place
        ends = f"/{inner}/__init__.py"
        found = [
            path[: -len("/__init__.py")] for path in self.tracked if path.startswith(prefix) and path.endswith(ends)
        ]
        found = [path for path in found if not is_test_path(path)]
        return min(found, key=len, default="")

    def path_root(self, distribution: Distribution, package: str) -> str:
        """The folder to put on PYTHONPATH so that the package is imported from the tree."""
        folder = self.folder_of(distribution, package)
        if not folder:
            return ""
        depth = package.count(".") + 1
        return "/".join(folder.split("/")[:-depth]) or "."

    def import_root(self, distribution: Distribution) -> str | None:
        """The folder that stands for site-packages; None when the packages do not come from one folder."""
        packages = [package for package in distribution.import_packages if self.folder_of(distribution, package)]
        roots = {self.path_root(distribution, package) for package in packages}
        return roots.pop() if len(roots) == 1 else None

    def tracked_path(self, installed: str) -> str:
        """The repo's file behind a path from a traceback (in site-packages or in /job/repo); "" when it is not ours."""
        if installed.startswith("/job/repo/"):
            relative = installed[len("/job/repo/") :]
            return relative if relative in self.tracked else ""
        inside = installed.rpartition("/site-packages/")[2]
        if inside == installed and not inside.startswith("/"):
            return inside if inside in self.tracked else ""
        for one in self.prepared.distributions:
            for package in one.import_packages:
                head = package.replace(".", "/")
                if inside == f"{head}.py" or inside.startswith(f"{head}/"):
                    root = self.path_root(one, package)
                    path = inside if root == "." else f"{root}/{inside}"
                    if path in self.tracked:
                        return path
        return ""

    def place(self, path: str, line: int | None = None, symbol: str = "") -> Place:
        """A place whose quote is that line of the tracked file (its first telling line when none is given)."""
        lines = self.text(path).splitlines()
        if line is None or not 1 <= line <= len(lines):
            line = next((at for at, text in enumerate(lines, start=1) if len(text.strip()) > 2), None)
        quote = lines[line - 1].strip() if line else ""
        return Place(file=path, line=line, symbol=symbol or self.symbol_at(path, line), quote=quote)

    def symbol_at(self, path: str, line: int | None) -> str:
        """Qualified name of the function, class or variable around a line of a Python file."""
        if line is None or not path.endswith(".py"):
            return ""
        return around_line(self.text(path), line)

    def line_of(self, path: str, *texts: str) -> int | None:
        """The first line that holds all the texts."""
        for number, line in enumerate(self.text(path).splitlines(), start=1):
            if all(text in line for text in texts):
                return number
        return None


def around_line(text: str, line: int, *, with_locals: bool = True) -> str:
    """Qualified name of what surrounds a line of a Python file; "" at module level, and where it cannot be parsed."""
    tree = parsed(text)
    return ".".join(_around(tree.body, line, with_locals=with_locals)) if tree else ""


def _around(body: Iterable[ast.stmt], line: int, *, with_locals: bool = True, inside: bool = False) -> list[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first <= line <= (node.end_lineno or node.lineno):
                local = inside or not isinstance(node, ast.ClassDef)
                return [node.name, *_around(node.body, line, with_locals=with_locals, inside=local)]
        elif inside and not with_locals:
            continue
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.lineno <= line <= (node.end_lineno or node.lineno):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            return [target.id for target in targets[:1] if isinstance(target, ast.Name)]
    return []


def parsed(text: str) -> ast.Module | None:
    """The module's tree, or None for what this interpreter cannot parse."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def is_test_path(path: str) -> bool:
    parts = path.split("/")
    name = parts[-1]
    return (
        bool(TEST_PARTS & set(parts)) or name.startswith("test_") or name.endswith("_test.py") or name in TEST_MODULES
    )


def under(root: str, path: str) -> str:
    return path if root == "." else f"{root}/{path}"


def in_packages(path: str, distribution: Distribution) -> bool:
    """Whether a path relative to site-packages lies in one of the distribution's packages."""
    return any(path.startswith(package.replace(".", "/") + "/") for package in distribution.import_packages)
