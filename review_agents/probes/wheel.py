"""The built wheel against the source tree: does what users install hold everything that its code needs?

A file or module that is missing counts only when code that was shipped asks for it, and only when something run after
`pip install .` fails while the same works from the tree.
"""

import re
import shlex
from collections.abc import Iterable

from review_agents.ports import Workspace
from review_agents.probes.data_paths import Opened, opened_paths
from review_agents.probes.dependencies import Import, belongs, dotted, scan
from review_agents.probes.prepared import Distribution, Prepared
from review_agents.probes.python_versions import Use, too_new
from review_agents.probes.sdist import sdist_candidates
from review_agents.probes.source_tree import SourceTree, in_packages, is_test_path, under
from review_agents.probes.tracebacks import last_traceback
from review_agents.probes.within import InsideFailed
from review_agents.records import (
    Candidate,
    Environment,
    Kind,
    Place,
    ProbeResult,
    ProbeState,
    Record,
    Repo,
    Reproduction,
    Severity,
    Symptom,
)

NAME = "wheel"
LIMIT_S = 60.0
LEFT_OUT = {"docs", "doc", "examples", "example", "benchmarks", "benchmark", "scripts", "_build", "vendor", "typings"}


class Missing(Record):
    """A tracked file that shipped code opens and the wheel lacks."""

    file: str  # relative to the import root
    module: str  # dotted name of the module that opens it
    path: str  # tracked path of that module
    line: int
    function: str
    call: str | None  # Python that leads to the opening, None when no argument could be found


def probe(workspace: Workspace, repo: Repo, prepared: Prepared) -> ProbeResult:
    if not prepared.distributions:
        reason = prepared.not_installed
        state = ProbeState.COULD_NOT_RUN if reason else ProbeState.NOT_APPLICABLE
        return ProbeResult(probe=NAME, state=state, reason=reason, summary="There is no package to build.")
    tree = SourceTree(workspace, repo, prepared)
    try:
        imports, _ = scan(workspace, tree)
    except InsideFailed as problem:
        return ProbeResult(probe=NAME, state=ProbeState.COULD_NOT_RUN, reason=str(problem))
    candidates: list[Candidate] = []
    facts: dict[str, object] = {}
    for one in prepared.distributions:
        mine = [item for item in imports if belongs(item.path, one, tree)]
        absent = absent_files(one, tree)
        facts[one.name] = {"files": len(one.files), "not_shipped": sorted(absent)[:200]}
        candidates.extend(missing_modules(workspace, one, mine, tree) or missing_whole(workspace, one, tree))
        candidates.extend(missing_data(workspace, one, absent, tree))
        candidates.extend(missing_marker(one, tree))
        candidates.extend(too_new_syntax(workspace, one, tree))
    candidates.extend(sdist_candidates(workspace, prepared, tree, manifest_place(prepared.distributions[0], tree)))
    state = ProbeState.FAILED if candidates else ProbeState.PASSED
    shipped = sum(len(one.files) for one in prepared.distributions)
    summary = f"{shipped} files installed, {len(candidates)} problems."
    return ProbeResult(probe=NAME, state=state, summary=summary, facts=facts, candidates=tuple(candidates))


def absent_files(one: Distribution, tree: SourceTree) -> set[str]:
    """Tracked files below the import root that the wheel lacks, relative to the import root."""
    root = tree.import_root(one)
    if root is None:
        return set()
    prefix = "" if root == "." else f"{root}/"
    relative = {path[len(prefix) :] for path in tree.tracked if path.startswith(prefix)}
    return relative - tree.shipped(one)


# Running the same thing from the wheel and from the tree ---------------------------------


def from_wheel(code: str) -> str:
    return f'cd "$(mktemp -d)"\npython -c {shlex.quote(code)}'


def from_tree(code: str, root: str) -> str:
    return f'tree="$PWD/{root}"\ncd "$(mktemp -d)"\nPYTHONPATH="$tree" python -c {shlex.quote(code)}'


def differs(workspace: Workspace, code: str, root: str) -> str | None:
    """The error's text where the code fails after `pip install` and works from the tree; None where it does not."""
    wheel = workspace.run(from_wheel(code), environment=Environment.PLAIN, timeout_s=LIMIT_S)
    if wheel.exit in (0, None) or wheel.timed_out:
        return None
    tree = workspace.run(from_tree(code, root), environment=Environment.PLAIN, timeout_s=LIMIT_S)
    if not tree.ok:
        return None
    raised = last_traceback(wheel.output)
    return raised.text if raised else None


def proof(code: str, root: str, error: str, expected: str) -> Reproduction:
    return Reproduction(
        command=from_wheel(code),
        control=from_tree(code, root),
        expected=expected,
        observed=error,
        environment=Environment.PLAIN,
        symptom=Symptom(nonzero=True, contains=("Traceback", error.partition(":")[0])),
    )


# Modules ---------------------------------------------------------------------------------


def missing_modules(
    workspace: Workspace, one: Distribution, imports: list[Import], tree: SourceTree
) -> list[Candidate]:
    """Own modules in the tree that the wheel lacks and that shipped modules, docs or tests import."""
    root = tree.import_root(one)
    if root is None:
        return []
    wanted: dict[str, tuple[str, Place, str]] = {}  # missing module -> code that needs it, where, who asks
    for item in imports:
        if item.guarded or item.typing or item.conditional:
            continue
        for module in imported_modules(item, one, tree):
            if is_absent(module, one, root, tree):
                asking = dotted(item.path, one, tree)
                code = f"import {module}" if item.lazy else f"import {asking}"
                wanted.setdefault(module, (code, tree.place(item.path, item.line), f"`{asking}` imports it"))
    for module in absent_packages(one, root, tree):
        where = documented_import(module, tree)
        if where and not any(module == known or known.startswith(f"{module}.") for known in wanted):
            wanted.setdefault(module, (f"import {module}", where, f"{where.file} imports it"))
    found = []
    for module in tops(wanted):
        code, place, who = wanted[module]
        error = differs(workspace, code, root)
        if error and ("No module named" in error or "cannot import name" in error):
            found.append(missing_module(one, module, root, (code, place, who), error, tree))
    return found


def missing_whole(workspace: Workspace, one: Distribution, tree: SourceTree) -> list[Candidate]:
    """The module that bears the distribution's name, where the wheel has no module at all: pip is content with that."""
    if one.import_packages:
        return []
    module = re.sub(r"[-_.]+", "_", one.name).lower()
    for root in (one.root, under(one.root, "src")):
        files = [under(root, name) for name in (f"{module}/__init__.py", f"{module}.py")]
        path = next((file for file in files if file in tree.tracked), "")
        error = differs(workspace, f"import {module}", root) if path else None
        if error and "No module named" in error:
            where = documented_import(module, tree)
            place, who = (
                (where, f"{where.file} imports it") if where else (tree.place(path), "nothing else is installed")
            )
            return [missing_module(one, module, root, (f"import {module}", place, who), error, tree)]
    return []


def tops(modules: Iterable[str]) -> list[str]:
    """Without those that lie below another missing one: a package left out is one fault."""
    names = sorted(modules)
    return [name for name in names if not any(name.startswith(f"{other}.") for other in names)]


def imported_modules(item: Import, one: Distribution, tree: SourceTree) -> list[str]:
    """Dotted names that the import may mean, relative ones resolved."""
    base = item.module
    if item.level:
        here = dotted(item.path, one, tree).split(".")
        is_package = item.path.endswith("/__init__.py")
        keep = len(here) - item.level + (1 if is_package else 0)
        base = ".".join([*here[: max(keep, 0)], *([item.module] if item.module else [])])
    return [base, *(f"{base}.{name}" for name in item.names)]


def is_absent(module: str, one: Distribution, root: str, tree: SourceTree) -> bool:
    stem = module.replace(".", "/")
    ours = any(module == package or module.startswith(f"{package}.") for package in one.import_packages)
    candidates = [path for path in (f"{stem}.py", f"{stem}/__init__.py") if under(root, path) in tree.tracked]
    shipped = any(path == f"{stem}.py" or path.startswith((f"{stem}/", f"{stem}.")) for path in one.files)
    return ours and bool(candidates) and not shipped


def absent_packages(one: Distribution, root: str, tree: SourceTree) -> list[str]:
    """Subpackages in the tree of which nothing was shipped, tests and samples left out."""
    prefix = "" if root == "." else f"{root}/"
    found = []
    for path in sorted(tree.tracked):
        if not path.startswith(prefix) or not path.endswith("/__init__.py"):
            continue
        inner = path[len(prefix) : -len("/__init__.py")]
        if in_packages(inner, one) and not is_test_path(inner) and not LEFT_OUT & set(inner.split("/")):
            module = inner.replace("/", ".")
            if is_absent(module, one, root, tree):
                found.append(module)
    return found


def documented_import(module: str, tree: SourceTree) -> Place | None:
    """Where README, docs, examples or tests import the module."""
    package, _, name = module.rpartition(".")
    pattern = re.compile(
        rf"^[\s>.]*(?:from\s+{re.escape(module)}(?:\.[\w.]+)?\s+import|import\s+{re.escape(module)}\b"
        rf"|from\s+{re.escape(package)}\s+import\s+(?:[\w, ]+,\s*)?{re.escape(name)}\b)"
    )
    texts = [path for path in tree.tracked if path.endswith((".md", ".rst"))]
    code = [
        path for path in tree.tracked if path.endswith(".py") and (is_test_path(path) or path.startswith("examples/"))
    ]
    for path in [*sorted(texts), *sorted(code)]:
        for number, line in enumerate(tree.text(path).splitlines(), start=1):
            if pattern.match(line):
                return tree.place(path, number)
    return None


def missing_module(
    one: Distribution, module: str, root: str, need: tuple[str, Place, str], error: str, tree: SourceTree
) -> Candidate:
    code, place, who = need
    stem = under(root, module.replace(".", "/"))
    path = f"{stem}.py" if f"{stem}.py" in tree.tracked else f"{stem}/__init__.py"
    what = "package" if path.endswith("__init__.py") else "module"
    return Candidate(
        kind=Kind.PACKAGING,
        rule="wheel.missing-module",
        title=f"The built wheel of {one.name} lacks the {what} `{module}`",
        description=(
            f"{path} is in the repository, but `pip install .` does not install it, and {who}. "
            f"After a normal installation `{code}` ends with `{error}`; from the source tree it works. "
            f"The list of packages in the build configuration ({manifest_of(one, tree)}) leaves it out."
        ),
        severity=Severity.HIGH if one.import_packages else Severity.CRITICAL,
        places=tuple(filter(None, [manifest_place(one, tree), place])),
        reproduction=proof(code, root, error, f"`{module}` can be imported after `pip install .`"),
        shape=f"missing {module}",
    )


def manifest_of(one: Distribution, tree: SourceTree) -> str:
    manifest = next((manifest for manifest in tree.prepared.manifests if manifest.root == one.root), None)
    return ", ".join(manifest.files) if manifest and manifest.files else "no manifest"


def manifest_place(one: Distribution, tree: SourceTree) -> Place | None:
    """The line of the manifest that says what is packaged, as near as it can be told."""
    manifest = next((manifest for manifest in tree.prepared.manifests if manifest.root == one.root), None)
    for path in manifest.files if manifest else ():
        for text in (
            "package-data",
            "package_data",
            "packages.find",
            "packages",
            "py-modules",
            "py_modules",
            "include",
        ):
            line = tree.line_of(path, text)
            if line:
                return tree.place(path, line)
    return tree.place(manifest.files[0]) if manifest and manifest.files else None


# Data ------------------------------------------------------------------------------------


def missing_data(workspace: Workspace, one: Distribution, absent: set[str], tree: SourceTree) -> list[Candidate]:
    """Data files that shipped code opens and the wheel lacks, one finding per folder."""
    root = tree.import_root(one)
    if root is None:
        return []
    data = {
        path
        for path in absent
        if not path.endswith((".py", ".pyc", ".pyi", ".pyx", ".c", ".h")) and not is_test_path(path)
    }
    by_folder: dict[str, list[Missing]] = {}
    for missing in openings(one, data, root, tree):
        by_folder.setdefault(missing.file.rpartition("/")[0], []).append(missing)
    found = []
    for folder, group in sorted(by_folder.items()):
        candidate = prove_data(workspace, one, folder, group, root, tree)
        found.extend([candidate] if candidate else [])
    return found


def openings(one: Distribution, data: set[str], root: str, tree: SourceTree) -> list[Missing]:
    found = []
    for path in sorted(tree.tracked):
        if not path.endswith(".py") or not belongs(path, one, tree) or is_test_path(path):
            continue
        module = dotted(path, one, tree)
        for opened in opened_paths(tree.text(path), module, is_package=path.endswith("__init__.py")):
            for file, values in matching(opened, data):
                call = call_of(module, opened, values)
                found.append(
                    Missing(file=file, module=module, path=path, line=opened.line, function=opened.function, call=call)
                )
    return found


def matching(opened: Opened, data: set[str]) -> list[tuple[str, dict[str, str]]]:
    """Missing files that the expression can mean; for a folder, the first file below it."""
    if opened.is_exact:
        if opened.text in data:
            return [(opened.text, dict[str, str]())]
        return [(path, dict[str, str]()) for path in sorted(data) if path.startswith(f"{opened.text}/")][:1]
    if not isinstance(opened.parts[0], str) or "/" not in opened.parts[0]:
        return []
    hits = [(path, opened.matches(path)) for path in sorted(data)]
    return [(path, values) for path, values in hits if values is not None]


def call_of(module: str, opened: Opened, values: dict[str, str]) -> str | None:
    """Python that reaches the opening: the import for module level, a call for a function whose arguments are known."""
    if not opened.function:
        return f"import {module}"
    if "." in opened.function or not set(opened.arguments) <= set(values):
        return None
    known = {name: values[name] for name in (*opened.arguments, *opened.optional) if name in values}
    arguments = ", ".join(f"{name}={value!r}" for name, value in known.items())
    return f"import {module} as m; m.{opened.function}({arguments})"


def prove_data(
    workspace: Workspace, one: Distribution, folder: str, group: list[Missing], root: str, tree: SourceTree
) -> Candidate | None:
    calls = [missing for missing in group if missing.call]
    tolerated = False
    for missing in calls[:4]:
        assert missing.call is not None
        error = differs(workspace, missing.call, root)
        if error:
            return missing_file(one, folder, group, missing, missing.call, error, root, tree)
        ran = workspace.run(from_wheel(missing.call), environment=Environment.PLAIN, timeout_s=LIMIT_S)
        tolerated = tolerated or ran.ok
    if tolerated:
        return None  # the code copes without the file, so nothing is broken
    for missing in group:
        if in_packages(missing.file, one) and is_read(missing, tree):
            error = differs(workspace, resource_check(missing, one), root)
            if error:
                return missing_file(one, folder, group, missing, resource_check(missing, one), error, root, tree)
    return None


def is_read(missing: Missing, tree: SourceTree) -> bool:
    """Whether the function that names the file also reads it, with nothing around that copes with its absence."""
    lines = tree.text(missing.path).splitlines()
    near = "\n".join(lines[max(0, missing.line - 4) : missing.line + 6])
    copes = re.search(r"\bexcept\b|\.exists\(\)|isfile\(|is_file\(\)|isdir\(|is_dir\(\)", near)
    return not copes and re.search(r"\bopen\b|read_|load|get_data|resource_|as_file|Loader|render", near) is not None


def resource_check(missing: Missing, one: Distribution) -> str:
    """Opens the file where the installed package would look for it."""
    package = max((p for p in one.import_packages if missing.file.startswith(p.replace(".", "/") + "/")), key=len)
    inner = missing.file[len(package) + 1 :]
    return f"import os, {package} as p; open(os.path.join(os.path.dirname(p.__file__), {inner!r})).close()"


def missing_file(
    one: Distribution,
    folder: str,
    group: list[Missing],
    shown: Missing,
    code: str,
    error: str,
    root: str,
    tree: SourceTree,
) -> Candidate:
    files = sorted({missing.file for missing in group})
    names = ", ".join(under(root, path) for path in files[:4]) + (
        f" and {len(files) - 4} more" if len(files) > 4 else ""
    )
    pattern = under(root, f"{folder}/*.{files[0].rpartition('.')[2]}" if len(files) > 1 else files[0])
    symbol = f"{shown.module}.{shown.function}" if shown.function else shown.module
    return Candidate(
        kind=Kind.PACKAGING,
        rule="wheel.missing-data",
        title=f"The built wheel of {one.name} lacks the data {'files' if len(files) > 1 else 'file'} {pattern}",
        description=(
            f"`{symbol}` opens package data that is in the repository ({names}) but not in the wheel: the build "
            f"configuration ({manifest_of(one, tree)}) does not include it as package data. After `pip install .` "
            f"`{code}` ends with `{error}`; from the source tree it works."
        ),
        severity=Severity.HIGH,
        places=tuple(filter(None, [tree.place(shown.path, shown.line), manifest_place(one, tree)])),
        reproduction=proof(code, root, error, "the data file is installed with the package"),
        shape=f"missing {folder}",
    )


def missing_marker(one: Distribution, tree: SourceTree) -> list[Candidate]:
    """A tracked py.typed that was not shipped: the package has types, and no type checker will use them."""
    root = tree.import_root(one)
    found = []
    for package in one.import_packages if root is not None else ():
        inner = f"{package.replace('.', '/')}/py.typed"
        path = under(root or ".", inner)
        if path not in tree.tracked or inner in tree.shipped(one):
            continue
        code = (
            "import importlib.util, os; "
            f"assert os.path.exists(os.path.dirname(importlib.util.find_spec({package!r}).origin) + '/py.typed')"
        )
        found.append(
            Candidate(
                kind=Kind.PACKAGING,
                rule="wheel.missing-marker",
                title=f"The built wheel of {one.name} lacks {path}, so its types are ignored",
                description=(
                    f"{path} is in the repository but not in the wheel. Type checkers use a package's annotations only "
                    "when py.typed is installed beside them."
                ),
                severity=Severity.LOW,
                places=tuple(filter(None, [manifest_place(one, tree)])) or (Place(file=path),),
                reproduction=proof(code, root or ".", "AssertionError", "py.typed is installed"),
                shape=f"missing {inner}",
            )
        )
    return found


# Python versions -------------------------------------------------------------------------

CHECKER_NOTE = "a check of the code against the oldest Python that the package admits"


def too_new_syntax(workspace: Workspace, one: Distribution, tree: SourceTree) -> list[Candidate]:
    """Syntax and standard library names that the oldest admitted Python does not have, one finding per distribution."""
    uses: list[tuple[str, Use]] = []
    for path in sorted(tree.tracked):
        if path.endswith(".py") and belongs(path, one, tree) and not is_test_path(path):
            uses.extend((path, use) for use in too_new(tree.text(path), one.requires_python))
    if not uses:
        return []
    worst = max(uses, key=lambda found: found[1].since)
    path, use = worst
    declared = declared_python(one, tree)
    since = f"3.{use.since}"
    command = use.check(path)
    ran = workspace.run(command, environment=Environment.PLAIN, timeout_s=LIMIT_S)
    if ran.exit != 1 or "needs Python" not in ran.output:
        return []
    places = [tree.place(where, found.line) for where, found in uses[:5]]
    return [
        Candidate(
            kind=Kind.PACKAGING,
            rule="wheel.python-too-old",
            title=f"{one.name} admits Python {one.requires_python}, but {path} needs Python {since}: {use.what}",
            description=(
                f"{path} line {use.line} uses {use.what}, which came with Python {since}, while the metadata admits "
                f"{one.requires_python}. pip installs the package on an older Python, where {use.effect}."
            ),
            severity=Severity.HIGH,
            places=tuple(filter(None, [*places, declared])),
            reproduction=Reproduction(
                command=command,
                expected=f"nothing newer than {one.requires_python} admits",
                observed=f"{use.what} needs Python {since}",
                environment=Environment.PLAIN,
                symptom=Symptom(exit=1, contains=("needs Python",)),
            ),
            shape=f"needs Python {since}",
        )
    ]


def declared_python(one: Distribution, tree: SourceTree) -> Place | None:
    manifest = next((manifest for manifest in tree.prepared.manifests if manifest.root == one.root), None)
    for path in manifest.files if manifest else ():
        line = (
            tree.line_of(path, "requires-python")
            or tree.line_of(path, "python_requires")
            or tree.line_of(path, "python =")
        )
        if line:
            return tree.place(path, line)
    return None
