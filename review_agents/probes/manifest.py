"""What the repo says about itself in its manifests, read as data and never executed."""

import ast
import configparser
import re
import tomllib
from collections.abc import Callable, Iterable
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import Field

from review_agents.records import Record

ReadText = Callable[[str], str | None]  # a tracked file's text, or None when there is none

BACKENDS = {
    "setuptools": "setuptools",
    "flit_core": "flit",
    "flit": "flit",
    "hatchling": "hatch",
    "poetry": "poetry",
    "pdm": "pdm",
    "mesonpy": "meson",
    "maturin": "maturin",
    "scikit_build_core": "scikit-build",
    "skbuild": "scikit-build",
    "uv_build": "uv",
    "whey": "whey",
    "jupyter_packaging": "jupyter-packaging",
}

# Folders whose manifests describe samples, copies of other projects or test data.
NOT_OURS = {
    "test", "tests", "testing", "test_data", "testdata", "fixtures", "data", "example", "examples", "docs", "doc",
    "demo", "demos", "vendor", "vendored", "_vendor", "third_party", "thirdparty", "external", "extern",
    "node_modules", "templates", "template", "benchmarks", "bench", "samples", "scripts", "tools", "ci", ".github",
}  # fmt: skip


class Manifest(Record):
    """One Python project in the repo. What a build decides (dynamic fields) is empty here."""

    root: str  # folder relative to the repo, "." for the repo itself
    files: tuple[str, ...]  # the manifests that exist, relative to the repo
    backend: str  # setuptools, flit, hatch, poetry, pdm, meson, maturin, scikit-build, uv, or the backend's own name
    name: str = ""
    dependencies: tuple[str, ...] = ()
    extras: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    groups: dict[str, tuple[str, ...]] = Field(
        default_factory=dict
    )  # PEP 735 and the tools' own kinds of development groups
    requires_python: str = ""
    build_requires: tuple[str, ...] = ()
    tools: dict[str, Any] = Field(default_factory=dict)  # pyproject.toml's [tool] table
    problems: tuple[str, ...] = ()  # what could not be read, in words

    @property
    def pytest_options(self) -> dict[str, Any]:
        """pytest's settings in pyproject.toml, in either of the forms that pytest reads."""
        table = _table(self.tools, "pytest")
        return _table(table, "ini_options") or {key: value for key, value in table.items() if key != "ini_options"}


def find_projects(files: Iterable[str], read: ReadText) -> tuple[Manifest, ...]:
    """The repo's own installable Python projects: the root's alone if there is one, else those in subfolders."""
    tracked = set(files)
    at_root = read_manifest(".", tracked, read)
    if at_root is not None:
        return (at_root, *_workspace_members(at_root, tracked, read))
    roots = sorted({path.rpartition("/")[0] for path in tracked if path.endswith(("/pyproject.toml", "/setup.py"))})
    found: list[Manifest] = []
    for root in roots:
        parts = root.split("/")
        if NOT_OURS & set(parts) or any("{" in part for part in parts) or len(parts) > 3:
            continue
        if any(root.startswith(f"{other.root}/") for other in found):
            continue
        manifest = read_manifest(root, tracked, read)
        if manifest is not None:
            found.append(manifest)
    return tuple(found)


def _workspace_members(root: Manifest, tracked: set[str], read: ReadText) -> list[Manifest]:
    """Members of a uv workspace beside the root project, for exact folders and a last `*`."""
    found = []
    patterns = _table(_table(root.tools, "uv"), "workspace").get("members", [])
    for pattern in patterns if isinstance(patterns, list) else []:
        expression = re.compile(re.escape(str(pattern)).replace(r"\*", "[^/]+") + r"/pyproject\.toml")
        for path in sorted(path for path in tracked if expression.fullmatch(path)):
            manifest = read_manifest(path.rpartition("/")[0], tracked, read)
            if manifest is not None:
                found.append(manifest)
    return found


def read_manifest(root: str, tracked: set[str], read: ReadText) -> Manifest | None:
    """The installable project in that folder, or None when nothing there can be installed."""
    prefix = "" if root == "." else f"{root}/"
    names = [name for name in ("pyproject.toml", "setup.py", "setup.cfg") if prefix + name in tracked]
    project, problems = _pyproject(prefix, read) if "pyproject.toml" in names else ({}, [])
    setup_cfg = _setup_cfg(read(f"{prefix}setup.cfg") or "") if "setup.cfg" in names else None
    builds = bool({"project", "build-system"} & set(project)) or "poetry" in _table(project, "tool") or problems
    if not builds and "setup.py" not in names and not (setup_cfg and setup_cfg.has_section("metadata")):
        return None
    system = _table(project, "build-system")
    facts: dict[str, Any] = {"root": root, "files": tuple(prefix + name for name in names), "problems": tuple(problems)}
    facts["backend"] = _backend(system, project)
    facts["build_requires"] = _strings(system.get("requires"))
    facts["tools"] = _table(project, "tool")
    facts["groups"] = _groups(project)
    facts |= _from_pyproject(project)
    if setup_cfg is not None:
        facts = _from_setup_cfg(setup_cfg) | {key: value for key, value in facts.items() if value or key not in SHARED}
    if "setup.py" in names:
        said = _from_setup_py(read(f"{prefix}setup.py") or "")
        facts = said | {key: value for key, value in facts.items() if value or key not in SHARED}
    return Manifest(**facts)


SHARED = ("name", "dependencies", "extras", "requires_python")


def _pyproject(prefix: str, read: ReadText) -> tuple[dict[str, Any], list[str]]:
    try:
        return tomllib.loads(read(f"{prefix}pyproject.toml") or ""), []
    except tomllib.TOMLDecodeError as problem:
        return {}, [f"{prefix}pyproject.toml is not valid TOML: {problem}"]


def _backend(system: dict[str, Any], project: dict[str, Any]) -> str:
    declared = str(system.get("build-backend") or "")
    if not declared:
        return "poetry" if "poetry" in _table(project, "tool") and "project" not in project else "setuptools"
    if system.get("backend-path"):
        return f"own ({declared})"
    return BACKENDS.get(declared.split(".")[0].split(":")[0], declared)


def _from_pyproject(document: dict[str, Any]) -> dict[str, Any]:
    project, poetry = _table(document, "project"), _table(_table(document, "tool"), "poetry")
    extras = {str(name): _strings(needs) for name, needs in _table(project, "optional-dependencies").items()}
    flit = _table(_table(document, "tool"), "flit")
    own = _table(flit, "metadata")
    for name, needs in _table(own, "requires-extra").items():
        extras.setdefault(str(name), _strings(needs))
    for name in _table(poetry, "extras"):
        extras.setdefault(str(name), ())
    return {
        "name": str(project.get("name") or poetry.get("name") or own.get("dist-name") or own.get("module") or ""),
        "dependencies": _strings(project.get("dependencies")) or tuple(poetry_needs(_table(poetry, "dependencies"))),
        "extras": extras,
        "requires_python": str(project.get("requires-python") or ""),
    }


def _groups(document: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    tool = _table(document, "tool")
    poetry = _table(tool, "poetry")
    found = {
        name: resolve_group(_table(document, "dependency-groups"), name)
        for name in _table(document, "dependency-groups")
    }
    for name, group in _table(poetry, "group").items():
        found.setdefault(name, tuple(poetry_needs(_table(group, "dependencies") if isinstance(group, dict) else {})))
    if "dev-dependencies" in poetry:
        found.setdefault("dev", tuple(poetry_needs(_table(poetry, "dev-dependencies"))))
    for name, needs in _table(_table(tool, "pdm"), "dev-dependencies").items():
        found.setdefault(name, _strings(needs))
    uv = _strings(_table(tool, "uv").get("dev-dependencies"))
    if uv:
        found.setdefault("dev", uv)
    return found


def resolve_group(groups: dict[str, Any], name: str, seen: tuple[str, ...] = ()) -> tuple[str, ...]:
    """One PEP 735 group with its included groups followed; a cycle or a missing include adds nothing."""
    wanted = canonicalize_name(name)
    entries = next((value for key, value in groups.items() if canonicalize_name(key) == wanted), ())
    if wanted in seen or not isinstance(entries, list):
        return ()
    found: list[str] = []
    for entry in entries:
        if isinstance(entry, str):
            found.append(entry)
        elif isinstance(entry, dict) and "include-group" in entry:
            found.extend(resolve_group(groups, str(entry["include-group"]), (*seen, wanted)))
    return tuple(dict.fromkeys(found))


def poetry_needs(table: dict[str, Any]) -> list[str]:
    """Poetry's constraint table as ordinary requirements. Path, git and url needs are left out, optional ones too."""
    found = []
    for name, wish in table.items():
        if name == "python":
            continue
        if isinstance(wish, list):
            wish = wish[0] if wish else "*"
        if isinstance(wish, dict) and ("version" not in wish or wish.get("optional")):
            continue
        version = str(wish["version"] if isinstance(wish, dict) else wish)
        extras = wish.get("extras") if isinstance(wish, dict) else None
        suffix = f"[{','.join(_strings(extras))}]" if extras else ""
        text = f"{name}{suffix}{','.join(filter(None, map(poetry_constraint, version.split(','))))}"
        if valid_requirement(text):
            found.append(text)
    return found


def poetry_constraint(text: str) -> str:
    """`^1.2` and `~1.2` as ranges; what is already a specifier stays; `*` is no limit."""
    text = text.strip()
    kind, number = text[:1], text.lstrip("^~ ")
    if text == "*" or not text:
        return ""
    if kind not in "^~" or text.startswith("~="):
        return text if text[0] in "<>=!~" else f"=={text}"
    parts = [int(part) for part in re.findall(r"\d+", number)]
    if not parts:
        return ""
    place = (
        next((at for at, part in enumerate(parts) if part), len(parts) - 1) if kind == "^" else min(1, len(parts) - 1)
    )
    upper = ".".join(str(part) for part in [*parts[:place], parts[place] + 1])
    return f">={number},<{upper}"


def _setup_cfg(text: str) -> configparser.ConfigParser | None:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return None
    return parser


def _from_setup_cfg(parser: configparser.ConfigParser) -> dict[str, Any]:
    def lines(section: str, key: str) -> tuple[str, ...]:
        text = parser.get(section, key, fallback="")
        return tuple(line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#"))

    extras = {}
    if parser.has_section("options.extras_require"):
        extras = {name: lines("options.extras_require", name) for name in parser.options("options.extras_require")}
    tests = lines("options", "tests_require")
    return {
        "name": parser.get("metadata", "name", fallback=""),
        "dependencies": lines("options", "install_requires"),
        "extras": extras,
        "requires_python": parser.get("options", "python_requires", fallback=""),
        **({"groups": {"tests_require": tests}} if tests else {}),
    }


def _from_setup_py(text: str) -> dict[str, Any]:
    """What `setup(...)` in a setup.py says in plain literals; anything computed is left out."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node.func) == "setup":
            said = {word.arg: _literal(word.value, constants) for word in node.keywords if word.arg}
            return {
                "name": str(said.get("name") or ""),
                "dependencies": _strings(said.get("install_requires")),
                "extras": {str(key): _strings(value) for key, value in (said.get("extras_require") or {}).items()}
                if isinstance(said.get("extras_require"), dict)
                else {},
                "requires_python": str(said.get("python_requires") or ""),
                **({"groups": {"tests_require": tests}} if (tests := _strings(said.get("tests_require"))) else {}),
            }
    return {}


def _called(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _literal(node: ast.expr, constants: dict[str, ast.expr]) -> Any:
    if isinstance(node, ast.Name) and node.id in constants:
        node = constants[node.id]
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def valid_requirement(text: str) -> bool:
    try:
        Requirement(text)
    except InvalidRequirement:
        return False
    return True


def _strings(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list | tuple) else ()


def _table(value: Any, key: str) -> dict[str, Any]:
    below = value.get(key) if isinstance(value, dict) else None
    return below if isinstance(below, dict) else {}
