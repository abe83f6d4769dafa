"""What the package imports against what it declares.

A finding is only an import that nothing declares, that nothing guards, and that really fails after `pip install .`.
Optional integrations (an extra, a fallback, a module or function named after the library, a line in the docs that
says what to install) are how many packages are meant to be, so they are facts.
"""

import json
import re
import shlex
from collections.abc import Iterable

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from review_agents.ports import Workspace
from review_agents.probes.prepared import Distribution, Prepared
from review_agents.probes.source_tree import SourceTree, is_test_path
from review_agents.probes.within import InsideFailed, run_inside
from review_agents.records import (
    Candidate,
    Environment,
    Kind,
    ProbeResult,
    ProbeState,
    Record,
    Repo,
    Reproduction,
    Severity,
    Symptom,
)

NAME = "dependencies"
MOST_PROOFS = 12
MANY_OPTIONAL = 3  # from so many undeclared optional imports on, lazy ones are taken for the package's way
DEVELOPERS_NEEDS = re.compile(
    r"(?:.*/)?(?:tox\.ini|noxfile\.py|pyproject\.toml|setup\.cfg|environment[\w.-]*\.ya?ml|Pipfile|[\w./-]*requirements?[\w./-]*\.(?:txt|in))"
    r"|\.github/workflows/[^/]+\.ya?ml|\.travis\.yml|appveyor\.yml"
)

# Import names whose distribution has another name, for matching declarations when the module is not installed.
OTHER_NAMES = {
    "yaml": ("pyyaml",), "PIL": ("pillow",), "cv2": ("opencv-python", "opencv-python-headless"),
    "bs4": ("beautifulsoup4",), "sklearn": ("scikit-learn",), "dateutil": ("python-dateutil",), "attr": ("attrs",),
    "OpenSSL": ("pyopenssl",), "Crypto": ("pycryptodome", "pycrypto"), "serial": ("pyserial",), "usb": ("pyusb",),
    "magic": ("python-magic",), "dotenv": ("python-dotenv",), "jwt": ("pyjwt",), "git": ("gitpython",),
    "skimage": ("scikit-image",), "pkg_resources": ("setuptools",), "google": ("protobuf", "google-api-core"),
    "zmq": ("pyzmq",), "docx": ("python-docx",), "win32api": ("pywin32",), "MySQLdb": ("mysqlclient",),
    "psycopg2": ("psycopg2-binary",), "ruamel": ("ruamel-yaml",), "Xlib": ("python-xlib",), "gi": ("pygobject",),
    "slugify": ("python-slugify",),
}  # fmt: skip
# Modules that a host program brings along when it loads the module that imports them.
HOSTS = {
    "pytest", "_pytest", "sphinx", "docutils", "mkdocs", "django", "IPython", "ipykernel", "setuptools",
    "pkg_resources", "distutils",
    "nose", "scrapy", "pylint", "astroid", "mypy", "gi", "bpy", "pyspark", "airflow", "poetry", "hatchling",
}  # fmt: skip


class Import(Record):
    path: str  # tracked file
    module: str
    names: tuple[str, ...] = ()  # after `from MODULE import`
    level: int = 0  # leading dots
    line: int
    function: str  # qualified name around it, "" at module level
    lazy: bool
    guarded: bool
    typing: bool
    conditional: bool

    @property
    def top(self) -> str:
        return self.module.split(".")[0]


def probe(workspace: Workspace, repo: Repo, prepared: Prepared) -> ProbeResult:
    if not prepared.distributions:
        reason = prepared.not_installed
        state = ProbeState.COULD_NOT_RUN if reason else ProbeState.NOT_APPLICABLE
        return ProbeResult(probe=NAME, state=state, reason=reason, summary="There is no package.")
    tree = SourceTree(workspace, repo, prepared)
    try:
        plain = run_inside(workspace, "providers", environment=Environment.PLAIN, python="python")
        imports, stdlib = scan(workspace, tree)
    except InsideFailed as problem:
        return ProbeResult(probe=NAME, state=ProbeState.COULD_NOT_RUN, reason=str(problem))
    candidates: list[Candidate] = []
    facts: dict[str, object] = {"undeclared": [], "optional": [], "unused": []}
    for one in prepared.distributions:
        mine = [item for item in imports if belongs(item.path, one, tree)]
        declared = declared_names(one)
        foreign = [item for item in mine if is_foreign(item, prepared, tree, stdlib)]
        undeclared = [item for item in foreign if not is_declared(item.module, declared, plain["provided"])]
        facts["unused"] = [*_list(facts["unused"]), *unused(one, foreign, plain["provided"])]
        grouped = by_module(undeclared)
        excuses = {top: why_optional(top, items, one, tree) for top, items in grouped.items()}
        many = sum(bool(why) for why in excuses.values()) >= MANY_OPTIONAL
        for top, items in grouped.items():
            why = excuses[top] or (why_lazy(top, items, many, tree))
            key = "optional" if why else "undeclared"
            facts[key] = [
                *_list(facts[key]),
                {"module": top, "files": sorted({item.path for item in items}), "why": why},
            ]
            if not why and len(candidates) < MOST_PROOFS:
                candidate = prove(workspace, one, top, items, tree)
                candidates.extend([candidate] if candidate else [])
    state = ProbeState.FAILED if candidates else ProbeState.PASSED
    summary = f"{len({item.top for item in imports})} modules imported, {len(candidates)} that nothing declares."
    return ProbeResult(probe=NAME, state=state, summary=summary, facts=facts, candidates=tuple(candidates))


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def scan(workspace: Workspace, tree: SourceTree) -> tuple[list[Import], set[str]]:
    """All absolute imports of the distributions' own modules, and the names of the standard library."""
    paths = [f"/job/repo/{path}" for path in sorted(tree.tracked) if path.endswith(".py") and is_shipped(path, tree)]
    workspace.write("/tmp/lamplighter-paths.json", json.dumps(paths))
    said = run_inside(
        workspace, "scan_package", "/tmp/lamplighter-paths.json", environment=Environment.PLAIN, python="python"
    )
    imports = [
        Import(path=path[len("/job/repo/") :], **item)
        for path, found in said["files"].items()
        for item in found["imports"]
    ]
    return imports, set(said["stdlib"])


def is_shipped(path: str, tree: SourceTree) -> bool:
    return any(belongs(path, one, tree) for one in tree.prepared.distributions)


def belongs(path: str, one: Distribution, tree: SourceTree) -> bool:
    """Whether the tracked file is part of that installed distribution."""
    for package in one.import_packages:
        folder = tree.folder_of(one, package)
        if path == folder or (folder and path.startswith(f"{folder}/")):
            root = tree.path_root(one, package)
            return (path if root == "." else path[len(root) + 1 :]) in tree.shipped(one)
    return False


def is_foreign(item: Import, prepared: Prepared, tree: SourceTree, stdlib: set[str]) -> bool:
    own = {name.split(".")[0] for one in prepared.distributions for name in one.import_packages}
    if item.level or item.top in stdlib or item.typing or item.top in ("__future__", "__main__", "_typeshed"):
        return False
    return item.top not in own or (namespace_shared(item, prepared))


def namespace_shared(item: Import, prepared: Prepared) -> bool:
    """`zope.event` seen from zope.interface: the same top-level name, another distribution."""
    roots = {name for one in prepared.distributions for name in one.import_packages}
    if any("." not in root for root in roots if root.split(".")[0] == item.top):
        return False
    own = any(
        item.module == root or item.module.startswith(f"{root}.") or root.startswith(f"{item.module}.")
        for root in roots
    )
    return not own and "." in item.module


def declared_names(one: Distribution) -> set[str]:
    """Names of everything the metadata declares, extras included, whatever the markers."""
    found: set[str] = set()
    for text in one.requires:
        try:
            found.add(canonicalize_name(Requirement(text).name))
        except InvalidRequirement:
            continue
    return found


def is_declared(module: str, declared: set[str], provided: dict[str, list[str]]) -> bool:
    top = module.split(".")[0]
    names: set[str] = {canonicalize_name(name) for name in provided.get(top, ())}
    names |= {canonicalize_name(top), *OTHER_NAMES.get(top, ())}
    names |= {canonicalize_name("-".join(module.split(".")[:depth])) for depth in (2, 3)}
    names |= {f"python-{canonicalize_name(top)}", f"py{canonicalize_name(top)}"}
    return bool(names & declared) or any(name.startswith(f"{canonicalize_name(top)}-") for name in declared)


def by_module(items: Iterable[Import]) -> dict[str, list[Import]]:
    found: dict[str, list[Import]] = {}
    for item in items:
        key = item.top if "." not in item.module else item.module.split(".")[0]
        found.setdefault(key, []).append(item)
    return found


def why_optional(top: str, items: list[Import], one: Distribution, tree: SourceTree) -> str:
    """Why an undeclared import is no fault; "" when nothing excuses it."""
    if any(item.guarded for item in items):
        return "imported with a fallback elsewhere in the package"
    hard = [item for item in items if not item.conditional and not is_test_path(item.path)]
    if not hard:
        return "only under a condition, or only in the package's own tests"
    if top in HOSTS:
        return "the host program that loads this module brings it"
    plain = re.sub(r"[^a-z0-9]", "", top.lower())
    for item in hard:
        words = re.sub(r"[^a-z0-9]", "", (item.function + item.path.rpartition("/")[2]).lower())
        if plain not in words and not {"contrib", "ext", "extensions", "integrations", "plugins"} & set(
            item.path.split("/")
        ):
            break
    else:
        return "the module or function is named after the library"
    if top.startswith(("_", "win32", "java")) or top in ("winreg", "msvcrt", "sitecustomize"):
        return "belongs to another platform"
    if any(checks_first(top, item, tree) for item in hard):
        return "looked for before it is imported"
    told = told_to_install(top, one, tree)
    return f"{told} tells the user to install it" if told else ""


def why_lazy(top: str, items: list[Import], many: bool, tree: SourceTree) -> str:
    """What excuses an import that happens only when a function is called; "" for one at module level."""
    if not all(item.lazy for item in items if not item.conditional and not is_test_path(item.path)):
        return ""
    if many:
        return "the package has many optional integrations that are imported when they are used"
    names = "|".join(re.escape(name) for name in {top, *OTHER_NAMES.get(top, ()), top.replace("_", "-")})
    pattern = re.compile(rf"(?<![\w.-])(?:{names})(?![\w-])", re.I)
    for path in sorted(tree.tracked):
        if DEVELOPERS_NEEDS.fullmatch(path) and pattern.search(tree.text(path)):
            return f"{path} installs it for developers, so that it is missing is known"
    return ""


def checks_first(top: str, item: Import, tree: SourceTree) -> bool:
    text = tree.text(item.path)
    return bool(
        re.search(
            rf"find_spec\(\s*['\"]{re.escape(top)}|importorskip|HA(?:S|VE)_{re.escape(top.upper())}",
            text,
        )
    )


def told_to_install(top: str, one: Distribution, tree: SourceTree) -> str:
    """The first text or docstring that names the library as something to install or as optional."""
    names = {top, *OTHER_NAMES.get(top, ()), top.replace("_", "-")}
    word = "|".join(re.escape(name) for name in sorted(names))
    pattern = re.compile(
        rf"(?:pip|conda|uv)[ \w-]*(?:install|add)[^\n]*(?<![\w-])(?:{word})(?![\w-])"
        rf"|(?<![\w-])(?:{word})(?![\w-])[^\n.]*(?:optional|if (?:it is |they are )?installed"
        r"|must be installed|to be installed|needs? to be)"
        rf"|(?:optional|requires?|needs?|install)[^\n.]{{0,40}}(?<![\w-])[`*]*(?:{word})(?![\w-])",
        re.I,
    )
    for path in sorted(tree.tracked):
        if path.lower().endswith((".md", ".rst", ".txt")) and not path.lower().startswith(
            ("changelog", "changes", "requirements")
        ):
            if pattern.search(tree.text(path)):
                return path
        elif path.endswith(".py") and belongs(path, one, tree) and pattern.search(_prose(tree.text(path))):
            return path
    return ""


def _prose(text: str) -> str:
    """Docstrings, comments and messages of a module: every line but the imports themselves."""
    return "\n".join(line for line in text.splitlines() if not re.match(r"\s*(?:import|from)\s", line))


def prove(workspace: Workspace, one: Distribution, top: str, items: list[Import], tree: SourceTree) -> Candidate | None:
    """The import fails in /venv/plain, as the code that needs it would; else there is nothing to report."""
    hard = [item for item in items if not item.conditional and not is_test_path(item.path)]
    item = min(hard, key=lambda item: (item.lazy, item.path, item.line))
    module = dotted(item.path, one, tree)
    statement = f"import {module}" if not item.lazy else f"import {item.module}"
    command = f'cd "$(mktemp -d)"\npython -c {shlex.quote(statement)}'
    ran = workspace.run(command, environment=Environment.PLAIN, timeout_s=60)
    expected = f"No module named '{top}"
    if ran.exit == 0 or "ModuleNotFoundError" not in ran.output or expected not in ran.output:
        return None
    places = tuple(
        tree.place(other.path, other.line) for other in sorted(hard, key=lambda other: (other.path, other.line))[:5]
    )
    where = f"in `{item.function}` ({item.path})" if item.lazy else f"when `{module}` is imported ({item.path})"
    effect = (
        f"Calling `{item.function}` after a plain `pip install` ends with ModuleNotFoundError."
        if item.lazy
        else f"`import {module}` after a plain `pip install` ends with ModuleNotFoundError."
    )
    return Candidate(
        kind=Kind.PACKAGING,
        rule="wheel.undeclared-dependency",
        title=f"{one.name} imports `{top}` but does not declare it as a dependency",
        description=(
            f"`{top}` is needed {where}, and neither the dependencies nor an extra of {one.name} name it. {effect} "
            f"It works only where something else happens to have installed `{top}`."
        ),
        severity=Severity.MEDIUM if item.lazy else Severity.HIGH,
        places=places,
        reproduction=Reproduction(
            command=command,
            expected=f"`{top}` is there, because {one.name} declares what it imports",
            observed=f"ModuleNotFoundError: No module named '{top}'",
            environment=Environment.PLAIN,
            control=f'cd "$(mktemp -d)"\npython -c {shlex.quote(f"import {one.import_packages[0]}")}'
            if item.lazy
            else None,
            symptom=Symptom(nonzero=True, contains=("ModuleNotFoundError", expected)),
        ),
        shape=f"ModuleNotFoundError: {top}",
    )


def dotted(path: str, one: Distribution, tree: SourceTree) -> str:
    """The module's name as users import it."""
    for package in one.import_packages:
        folder = tree.folder_of(one, package)
        if path == folder or (folder and path.startswith(f"{folder}/")):
            rest = (
                path[len(folder) :].removesuffix(".py").strip("/").replace("/", ".").removesuffix("__init__").strip(".")
            )
            return f"{package}.{rest}" if rest and path != folder else package
    return path


def unused(one: Distribution, foreign: list[Import], provided: dict[str, list[str]]) -> list[str]:
    """Declared run-time dependencies that no module imports. Plugins and stubs make this a fact only."""
    imported = {canonicalize_name(name) for item in foreign for name in (*provided.get(item.top, ()), item.top)}
    found = []
    environment = {**{key: str(value) for key, value in default_environment().items()}, "extra": ""}
    for text in one.requires:
        try:
            need = Requirement(text)
        except InvalidRequirement:
            continue
        if need.marker is not None and not need.marker.evaluate(environment):
            continue
        name = canonicalize_name(need.name)
        if name not in imported and any(name in map(canonicalize_name, names) for names in provided.values()):
            found.append(need.name)
    return found
