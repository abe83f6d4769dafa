"""Install the repo from scratch, twice, and say what came of it. Runs in an install box, with the egress proxy.

/venv/plain gets what `pip install .` gives a user, from a copy, so that the tree stays as it was cloned.
/venv/test gets the package from the tree itself (editable where the backend can) and whatever tests and README need.
The wheel, the sdist and what they turned into lie in /venv/plain/lamplighter for the probes that come later.
"""

import json
import re
import shlex
import time
from collections.abc import Iterable
from typing import Any

from packaging.utils import canonicalize_name

from review_agents.ports import NoSuchFile, Workspace
from review_agents.probes import needs
from review_agents.probes.generated_sources import cython_command, cython_wanted, generated
from review_agents.probes.install_failures import Failure, index_is_barred, read_failure
from review_agents.probes.install_findings import asked_extras, install_candidates
from review_agents.probes.manifest import Manifest, ReadText, find_projects
from review_agents.probes.prepared import Attempt, Distribution, Prepared
from review_agents.probes.within import InsideFailed, run_inside
from review_agents.records import Environment, Network, ProbeResult, ProbeState, Ran, Repo

__all__ = ["NAME", "Attempt", "Distribution", "Prepared", "prepare"]

NAME = "install"

PLAIN, TEST = "/venv/plain", "/venv/test"
KEPT = f"{PLAIN}/lamplighter"  # wheel/, sdist/, from-sdist/
COPY = "/tmp/lamplighter-tree"
PIP = "-m pip --no-input --disable-pip-version-check --no-color"
COPY_TREE = f"rm -rf {COPY} && cp -a /job/repo {COPY} && mkdir -p {KEPT}"
BUILD_S, INSTALL_S = 900.0, 900.0
SLOW_BUILD_S = 90.0  # a project whose wheel took longer is not built a second time from its sdist
ENDS_KEPT = 3000  # characters of each command's output that stay in the record
NOT_EDITABLE = {"meson", "scikit-build"}  # these build again at every import, which a read-only environment refuses
MOST_PROJECTS = 8


class Kitchen:
    """The state of one preparation: the workspace, and every command run so far."""

    def __init__(self, workspace: Workspace, repo: Repo):
        self.workspace = workspace
        self.repo = repo
        self.commands: list[Attempt] = []
        self.notes: list[str] = []
        self.own: dict[str, str] = {}  # versions of the repo's distributions as /venv/test has them
        self.barred: Failure | None = None  # why the package index cannot be reached; pip tries for long each time
        self._texts: dict[str, str | None] = {}
        self._tracked = set(repo.files)

    def read(self, path: str) -> str | None:
        """A tracked file's text, read once."""
        if path not in self._texts:
            try:
                self._texts[path] = self.workspace.read(path) if path in self._tracked else None
            except NoSuchFile:
                self._texts[path] = None
        return self._texts[path]

    def run(
        self, purpose: str, command: str, *, timeout_s: float, environment: Environment = Environment.NONE
    ) -> Attempt:
        if self.barred and " -m pip " in command:
            ending = "not tried: the package index cannot be reached"
            self.commands.append(
                Attempt(purpose=purpose, command=command, ok=False, ending=ending, failure=self.barred)
            )
            return self.commands[-1]
        ran = self.workspace.run(command, environment=environment, network=Network.EGRESS, timeout_s=timeout_s)
        return self.keep(purpose, command, ran)

    def first(self, purpose: str) -> Attempt | None:
        return next((one for one in self.commands if one.purpose == purpose), None)

    def keep(self, purpose: str, command: str, ran: Ran) -> Attempt:
        attempt = Attempt(
            purpose=purpose,
            command=command,
            ok=ran.ok,
            ending=ran.ending,
            seconds=round(ran.seconds, 2),
            output=ran.output[-ENDS_KEPT:],
            failure=None if ran.ok else self.why(ran),
        )
        self.commands.append(attempt)
        return attempt

    def why(self, ran: Ran) -> Failure:
        """The reason of a failure. An unmet need is the repo's fault only if the index has the project at all."""
        failure = read_failure(ran)
        if index_is_barred(ran):
            self.barred = failure
        made = generated(ran.output, self._tracked) if failure.is_fault else None
        if made:
            reason = f"needs {made.missing}, which is generated from {made.source} before the build"
            return Failure(kind="needs", reason=reason)
        unmet = re.search(r"No matching distribution found for ([A-Za-z0-9][\w.-]*)", ran.output)
        if not failure.is_fault or unmet is None:
            return failure
        command = (
            f"{PLAIN}/bin/python {PIP} download -q --no-deps --dest /tmp/lamplighter-index {shlex.quote(unmet[1])}"
        )
        asked = self.workspace.run(command, environment=Environment.NONE, network=Network.EGRESS, timeout_s=120)
        if asked.ok:
            return failure
        return Failure(kind="needs", reason=f"needs {unmet[1]}, which the package index here does not offer")


def prepare(workspace: Workspace, repo: Repo) -> tuple[Prepared, ProbeResult]:
    """Install everything once. Never raises for what the repo does; the result says what was missing or wrong."""
    started = time.monotonic()
    kitchen = Kitchen(workspace, repo)
    languages = detect_languages(repo.files)
    manifests = find_projects(repo.files, kitchen.read)[:MOST_PROJECTS]
    prepared = Prepared(languages=languages, manifests=manifests)
    if "python" in languages:
        prepared = prepare_python(kitchen, prepared)
    prepare_others(kitchen, prepared)
    prepared = prepared.model_copy(update={"commands": tuple(kitchen.commands), "notes": tuple(kitchen.notes)})
    return prepared, judge(kitchen, prepared, seconds=round(time.monotonic() - started, 2))


def unprepared(files: Iterable[str], read: ReadText, lacking: str) -> Prepared:
    """What can be said where no install box could be opened: what kind of repo it is, and what is lacking."""
    manifests = find_projects(files, read)[:MOST_PROJECTS]
    return Prepared(languages=detect_languages(files), manifests=manifests, lacking=lacking, notes=(lacking,))


def detect_languages(files: Iterable[str]) -> tuple[str, ...]:
    """Which kinds of project the root holds; Python also by any module in the tree."""
    tracked = set(files)
    marks = {
        "node": ("package.json",),
        "rust": ("Cargo.toml",),
        "go": ("go.mod",),
        "cmake": ("CMakeLists.txt",),
        "make": ("Makefile", "makefile", "GNUmakefile"),
    }
    found = [language for language, names in marks.items() if tracked & set(names)]
    return (*(["python"] if any(path.endswith(".py") for path in tracked) else []), *found)


def prepare_others(kitchen: Kitchen, prepared: Prepared) -> None:
    """Downloads that builds and tests of other languages need; the later boxes have no network."""
    tracked = set(kitchen.repo.files)
    commands = {
        "node": "npm ci --no-audit --no-fund" if "package-lock.json" in tracked else "npm install --no-audit --no-fund",
        "rust": f"CARGO_HOME={TEST}/cargo cargo fetch",
        "go": f"GOMODCACHE={TEST}/go go mod download",
    }
    tools = {"node": "npm", "rust": "cargo", "go": "go"}
    for language, command in commands.items():
        if language in prepared.languages and not prepared.manifests:
            tool = f"command -v {tools[language]} >/dev/null || exit 127\n"
            kitchen.run(f"install {language}", tool + command, timeout_s=INSTALL_S, environment=Environment.TEST)


def prepare_python(kitchen: Kitchen, prepared: Prepared) -> Prepared:
    for place in (PLAIN, TEST):
        made = kitchen.run(f"venv {place[6:]}", f"python3 -m venv --clear {place}", timeout_s=120)
        if not made.ok:
            return prepared
    prepared = install_plain(kitchen, prepared)
    return install_test(kitchen, prepared)


# /venv/plain -----------------------------------------------------------------------------


def install_plain(kitchen: Kitchen, prepared: Prepared) -> Prepared:
    """Build each project's wheel from a clean copy, install the wheels, and describe what arrived."""
    kitchen.run("copy", COPY_TREE, timeout_s=120)
    own = kitchen.repo.settings.install
    if own:
        for command in own:
            kitchen.run("install plain", f"cd {COPY} && {command}", timeout_s=INSTALL_S, environment=Environment.PLAIN)
        built = [(manifest, "") for manifest in prepared.manifests if manifest.name]
    elif prepared.manifests:
        built = [(manifest, wheel) for manifest in prepared.manifests if (wheel := build_wheel(kitchen, manifest))]
        if not built and translated(kitchen, prepared):
            built = [(manifest, wheel) for manifest in prepared.manifests if (wheel := build_wheel(kitchen, manifest))]
        if not built:
            return prepared
        wheels = shlex.join(wheel for _, wheel in built)
        kitchen.run("install plain", f"{PLAIN}/bin/python {PIP} install {wheels}", timeout_s=INSTALL_S)
    elif "requirements.txt" in kitchen.repo.files:
        command = f"{PLAIN}/bin/python {PIP} install -r requirements.txt"
        kitchen.run("install plain", command, timeout_s=INSTALL_S)
        built = []
    else:
        built = []
        kitchen.notes.append(
            "There is no Python package to install: no pyproject.toml, setup.py or setup.cfg at the root."
        )
    installs = [one for one in kitchen.commands if one.purpose == "install plain"]
    prepared = prepared.model_copy(update={"installed_plain": all(one.ok for one in installs)})
    if not prepared.installed_plain:
        return prepared
    prepared = describe_plain(kitchen, prepared, built)
    return build_sdist(kitchen, prepared) if not own else prepared


def build_sdist(kitchen: Kitchen, prepared: Prepared) -> Prepared:
    """The first project's source distribution, and a wheel from it; slow builds are not repeated."""
    wheel = kitchen.first("wheel")
    if not prepared.distributions or wheel is None or wheel.seconds > SLOW_BUILD_S:
        return prepared
    one = prepared.distributions[0]
    tools, folder, second = "/tmp/lamplighter-build", f"{KEPT}/sdist", f"{KEPT}/from-sdist"
    if not kitchen.run("build tool", f"{PLAIN}/bin/python {PIP} install --target {tools} build", timeout_s=300).ok:
        return prepared
    fresh = f"{COPY}-sdist"
    command = (
        f"rm -rf {fresh} && cp -a /job/repo {fresh} && cd {shlex.quote(inside_copy(fresh, one.root))}"
        f" && PYTHONPATH={tools} {PLAIN}/bin/python -m build --sdist --outdir {folder} ."
    )
    if not kitchen.run("sdist", command, timeout_s=BUILD_S).ok:
        return prepared
    archive = newest(kitchen, folder, "tar.gz")
    command = f"{PLAIN}/bin/python {PIP} wheel --use-pep517 --no-deps --wheel-dir {second} {shlex.quote(archive)}"
    if archive and kitchen.run("wheel from sdist", command, timeout_s=BUILD_S).ok:
        one = one.model_copy(update={"sdist": second})
    return prepared.model_copy(update={"distributions": (one, *prepared.distributions[1:])})


def build_wheel(kitchen: Kitchen, manifest: Manifest) -> str:
    """Path of the wheel in the sandbox, or "" when it did not build."""
    folder = f"{KEPT}/wheel/{folder_name(manifest)}"
    command = (
        f"cd {shlex.quote(inside_copy(COPY, manifest.root))} && {PLAIN}/bin/python {PIP} wheel --use-pep517 --no-deps"
        f" --wheel-dir {shlex.quote(folder)} ."
    )
    if not kitchen.run("wheel", command, timeout_s=BUILD_S).ok:
        return ""
    return newest(kitchen, folder, "whl")


def translated(kitchen: Kitchen, prepared: Prepared) -> bool:
    """Whether the C that the first wheel misses could be made from its .pyx, in the tree, as the developers do."""
    failed = kitchen.first("wheel")
    found = generated(failed.output, kitchen.repo.files) if failed else None
    if found is None or not found.by_cython:
        return False
    wanted = cython_wanted(kitchen.repo.files, kitchen.read, prepared.manifests)
    command = cython_command(found, kitchen.repo.files, wanted, PIP, f"{PLAIN}/bin/python")
    if not kitchen.run("generate sources", command, timeout_s=BUILD_S).ok:
        return False
    kitchen.notes.append(f"{found.missing} was generated from {found.source} first: a fresh clone does not build.")
    return kitchen.run("copy", COPY_TREE, timeout_s=120).ok


def folder_name(manifest: Manifest) -> str:
    return "root" if manifest.root == "." else manifest.root.replace("/", "-")


def inside_copy(copy: str, root: str) -> str:
    return copy if root == "." else f"{copy}/{root}"


def newest(kitchen: Kitchen, folder: str, ending: str) -> str:
    """The absolute path of the built file in that folder, or ""."""
    ran = kitchen.workspace.run(f"ls -1t {shlex.quote(folder)}/*.{ending} | head -n 1", environment=Environment.NONE)
    line = ran.output.strip()
    return line if line.startswith(folder) else ""


def describe_plain(kitchen: Kitchen, prepared: Prepared, built: list[tuple[Manifest, str]]) -> Prepared:
    """Ask the installed environment what each distribution brought."""
    found = []
    facts: dict[str, object] = {}
    anything: list[tuple[Manifest | None, str]] = [*built] or [(None, "")]
    for manifest, wheel in anything:
        name = wheel.rpartition("/")[2].split("-")[0] if wheel else (manifest.name if manifest else "")
        try:
            facts = run_inside(kitchen.workspace, "describe", name, python=f"{PLAIN}/bin/python")
        except InsideFailed as problem:
            kitchen.notes.append(f"Could not read what was installed as {name!r}: {problem}")
            continue
        said = facts.get("distribution")
        if isinstance(said, dict) and manifest is not None:
            found.append(Distribution(**said, root=manifest.root, backend=manifest.backend, wheel=wheel))
    resolved = facts.get("resolved", {})
    return prepared.model_copy(
        update={"distributions": tuple(found), "resolved": resolved, "python": str(facts.get("python", ""))}
    )


# /venv/test ------------------------------------------------------------------------------


def install_test(kitchen: Kitchen, prepared: Prepared) -> Prepared:
    """The package from the tree, then what tests and README need; each source alone where all together fail."""
    manifests = prepared.manifests
    found = [source for manifest in manifests or (None,) for source in sources_of(kitchen, prepared, manifest)]
    wanted = [source for source in found if source.tier == 1]
    wanted.extend(readme_extras(kitchen, prepared))
    labels: list[str] = []
    editable = False
    own = kitchen.repo.settings.install
    if own:
        for command in own:
            kitchen.run("install test", command, timeout_s=INSTALL_S, environment=Environment.TEST)
        labels.append(".lamplighter.toml")
    elif manifests:
        together, editable = install_projects(kitchen, prepared, wanted)
        if not together:
            return prepared
        labels.extend(label for label in together if label)
        names = {canonicalize_name(manifest.name) for manifest in manifests if manifest.name}
        kitchen.own = {
            name: version for name, version in resolved_in_test(kitchen).items() if canonicalize_name(name) in names
        }
    elif "requirements.txt" in kitchen.repo.files:
        pip_test(kitchen, "install test", ["-r", "requirements.txt"])
    labels.extend(add_sources(kitchen, [source for source in wanted if source.label not in labels]))
    labels.extend(add_readme_needs(kitchen, prepared))
    labels.extend(add_pytest(kitchen, manifests))
    missing = missing_modules(kitchen)
    if missing:
        labels.extend(add_sources(kitchen, [source for source in found if source.tier == 2]))
        missing = missing_modules(kitchen)
    for manifest in manifests if missing else ():
        requires = next((one.requires for one in prepared.distributions if one.root == manifest.root), ())
        labels.extend(add_sources(kitchen, list(needs.named_for(missing, manifest, requires)), manifest))
        missing = missing_modules(kitchen)
    undeclared = missing
    for module in missing:
        if module in needs.WELL_KNOWN and pip_test(kitchen, "add known module", [needs.WELL_KNOWN[module]]).ok:
            labels.append(f"{needs.WELL_KNOWN[module]} (tests import {module}; nothing declares it)")
    done = [one for one in kitchen.commands if one.purpose == "install test"]
    return prepared.model_copy(
        update={
            "installed_test": (bool(done) and done[-1].ok) or not done,
            "editable": editable,
            "test_needs": tuple(labels),
            "missing_modules": undeclared,
            "resolved_test": resolved_in_test(kitchen),
        }
    )


def sources_of(kitchen: Kitchen, prepared: Prepared, manifest: Manifest | None) -> tuple[needs.Source, ...]:
    extras: tuple[str, ...] = ()
    if manifest is not None:
        built = next((one for one in prepared.distributions if one.root == manifest.root), None)
        extras = built.extras if built else tuple(manifest.extras)
    return needs.sources(manifest, extras, kitchen.repo.files, kitchen.read)


def pip_test(kitchen: Kitchen, purpose: str, arguments: list[str], *, folder: str = ".") -> Attempt:
    # an old pip would build a legacy project in another way than today's does
    modern = "--use-pep517 " if any(word.startswith((".", "/")) for word in arguments) else ""
    command = f"{TEST}/bin/python {PIP} install {modern}{shlex.join(arguments)}"
    return kitchen.run(
        purpose, command if folder == "." else f"cd {shlex.quote(folder)} && {command}", timeout_s=INSTALL_S
    )


def install_projects(kitchen: Kitchen, prepared: Prepared, wanted: list[needs.Source]) -> tuple[list[str], bool]:
    """Install the projects with the sources that go with them; the labels ([""] for none), and editable or not.

    First all in one resolution, as a developer would; when that fails, the projects alone, then not editable.
    """
    editable = all(manifest.backend not in NOT_EDITABLE for manifest in prepared.manifests)
    with_needs = [*project_arguments(prepared, wanted, editable), *requirement_arguments(wanted)]
    if pip_test(kitchen, "install test", with_needs).ok:
        return [source.label for source in wanted] or [""], editable
    if editable and pip_test(kitchen, "install test", project_arguments(prepared, [], True)).ok:
        return [""], True
    if pip_test(kitchen, "install test", project_arguments(prepared, [], False)).ok:
        return [""], False
    return [], False


def project_arguments(prepared: Prepared, wanted: list[needs.Source], editable: bool) -> list[str]:
    extras = sorted({extra for source in wanted for extra in source.extras})
    arguments = []
    for manifest in prepared.manifests:
        place = f"./{manifest.root}" if manifest.root != "." else "."
        if not editable:
            place = inside_copy(COPY, manifest.root)
        offered = next(
            (one.extras for one in prepared.distributions if one.root == manifest.root), tuple(manifest.extras)
        )
        names = {canonicalize_name(extra) for extra in offered}
        asked = [extra for extra in extras if canonicalize_name(extra) in names]
        suffix = f"[{','.join(asked)}]" if asked else ""
        arguments.extend(["-e", place + suffix] if editable else [place + suffix])
    return arguments


def requirement_arguments(wanted: list[needs.Source]) -> list[str]:
    arguments = ["pytest"]
    for source in wanted:
        arguments.extend(source.requirements)
        arguments.extend(["-r", source.file] if source.file else [])
    return arguments


def add_sources(kitchen: Kitchen, found: list[needs.Source], manifest: Manifest | None = None) -> list[str]:
    """Each source on its own, so that one that cannot be had does not take the others with it.

    None may put a released version of the package in the place of the tree.
    """
    labels = []
    for source in found:
        arguments = [*own_versions(kitchen), *source.requirements, *(["-r", source.file] if source.file else [])]
        if source.extras:
            place = "." if manifest is None or manifest.root == "." else f"./{manifest.root}"
            editable = manifest is None or manifest.backend not in NOT_EDITABLE
            arguments.extend([*(["-e"] if editable else []), f"{place}[{','.join(source.extras)}]"])
        if (source.requirements or source.file or source.extras) and pip_test(kitchen, "add test needs", arguments).ok:
            labels.append(source.label)
    return labels


def own_versions(kitchen: Kitchen) -> list[str]:
    """Constraints that keep the installed versions of the repo's own distributions."""
    file = "/tmp/lamplighter-own.txt"
    if kitchen.own:
        kitchen.workspace.write(file, "".join(f"{name}=={version}\n" for name, version in kitchen.own.items()))
    return ["-c", file] if kitchen.own else []


def add_pytest(kitchen: Kitchen, manifests: tuple[Manifest, ...]) -> list[str]:
    """pytest itself and the plugins without which its own settings would not load."""
    options, settings, required = pytest_settings(kitchen, manifests)
    wanted = ["pytest", *needs.plugins_for(options, settings, required)]
    together = kitchen.first("install test")
    if len(wanted) == 1 and together is not None and together.ok and " pytest" in together.command:
        return []
    if pip_test(kitchen, "add pytest", wanted).ok:
        return [name for name in wanted[1:]]
    return []


def pytest_settings(kitchen: Kitchen, manifests: tuple[Manifest, ...]) -> tuple[str, tuple[str, ...], str]:
    """addopts, the names of the settings, and required_plugins, from wherever pytest would read them."""
    for section, text in ((("pytest"), kitchen.read("pytest.ini")), ("pytest", kitchen.read("tox.ini"))):
        table = needs.ini_section(text or "", section)
        if table:
            return table.get("addopts", ""), tuple(table), table.get("required_plugins", "")
    for manifest in manifests:
        table = manifest.pytest_options
        if table:
            words = {
                name: " ".join(map(str, value)) if isinstance(value, list) else str(value)
                for name, value in table.items()
            }
            return words.get("addopts", ""), tuple(words), words.get("required_plugins", "")
    table = needs.ini_section(kitchen.read("setup.cfg") or "", "tool:pytest")
    return table.get("addopts", ""), tuple(table), table.get("required_plugins", "")


def add_readme_needs(kitchen: Kitchen, prepared: Prepared) -> list[str]:
    """Other distributions that README tells its reader to `pip install`."""
    own = {canonicalize_name(one.name) for one in prepared.distributions}
    own |= {canonicalize_name(manifest.name) for manifest in prepared.manifests if manifest.name}
    labels = []
    for line in readme_installs(kitchen):
        others = [name for name in line.requirements if canonicalize_name(needs.name_of(name)) not in own]
        files = [path for path in line.files if path in kitchen.repo.files]
        arguments = [*others, *(word for path in files for word in ("-r", path))]
        if arguments and pip_test(kitchen, "add README needs", [*own_versions(kitchen), *arguments]).ok:
            labels.append(f"README: {line.text}")
    return labels


def readme_extras(kitchen: Kitchen, prepared: Prepared) -> list[needs.Source]:
    """The extras of the package that README tells its reader to install."""
    own = {str(canonicalize_name(one.name)): one for one in prepared.distributions}
    found = []
    for line in readme_installs(kitchen):
        asked = {extra for _, extra in asked_extras(line, prepared, own)}
        known = [extra for one in prepared.distributions[:1] for extra in one.extras if extra in asked]
        if known:
            found.append(needs.Source(label=f"README: {line.text}", tier=1, extras=tuple(known)))
    return found


def readme_installs(kitchen: Kitchen) -> tuple[needs.InstallLine, ...]:
    names = [path for path in kitchen.repo.files if path.lower().startswith("readme") and "/" not in path]
    lines = [line for path in names for line in needs.install_lines(kitchen.read(path) or "", path)]
    return tuple({line.text: line for line in lines}.values())[:20]


def missing_modules(kitchen: Kitchen) -> tuple[str, ...]:
    """Top-level modules that test files need, by import, fixture or mark, and /venv/test cannot find."""
    arguments = ("/job/repo", json.dumps(needs.FIXTURES), json.dumps(needs.MARKS))
    try:
        return tuple(run_inside(kitchen.workspace, "missing_modules", *arguments, python=f"{TEST}/bin/python"))
    except InsideFailed as problem:
        kitchen.notes.append(f"Could not look for modules that tests need: {problem}")
        return ()


def resolved_in_test(kitchen: Kitchen) -> dict[str, str]:
    try:
        return dict(run_inside(kitchen.workspace, "describe", "", python=f"{TEST}/bin/python")["resolved"])
    except InsideFailed as problem:
        kitchen.notes.append(f"Could not list what is in {TEST}: {problem}")
        return {}


# The verdict -----------------------------------------------------------------------------


def judge(kitchen: Kitchen, prepared: Prepared, *, seconds: float) -> ProbeResult:
    """The preparation as a probe's result: what was installed, what failed, and whose fault it was."""
    facts = {
        "python": prepared.python,
        "languages": prepared.languages,
        "distributions": [one.model_dump(exclude={"files"}) for one in prepared.distributions],
        "resolved": prepared.resolved,
        "resolved_test": prepared.resolved_test,
        "test_needs": prepared.test_needs,
        "missing_modules": prepared.missing_modules,
        "commands": [one.model_dump(exclude={"output"}) for one in prepared.commands],
        "notes": prepared.notes,
    }
    blame = prepared.blame
    candidates = install_candidates(kitchen.repo, kitchen.read, prepared, blame)
    said: dict[str, Any] = {
        "probe": NAME,
        "seconds": seconds,
        "facts": facts,
        "log": log_of(prepared),
        "candidates": candidates,
    }
    if "python" not in prepared.languages:
        return without_python(prepared, said)
    if blame is None or blame.failure is None:
        state = ProbeState.FAILED if candidates else ProbeState.PASSED
        return ProbeResult(state=state, summary=summary_of(prepared), **said)
    state = ProbeState.FAILED if blame.failure.is_fault else ProbeState.COULD_NOT_RUN
    reason = f"{blame.purpose}: {blame.failure.reason}"
    return ProbeResult(state=state, reason=reason, summary="The package could not be installed.", **said)


def without_python(prepared: Prepared, said: dict[str, Any]) -> ProbeResult:
    """What other languages' tools downloaded. Whether the repo is at fault is for the probe that builds and tests."""
    if not prepared.commands:
        return ProbeResult(state=ProbeState.NOT_APPLICABLE, summary="No Python in this repo.", **said)
    done = ", ".join(f"`{one.command.splitlines()[-1]}`: {one.ending}" for one in prepared.commands)
    failures = [f"{one.purpose}: {one.failure.reason}" for one in prepared.commands if one.failure]
    state = ProbeState.COULD_NOT_RUN if failures else ProbeState.PASSED
    return ProbeResult(state=state, reason="; ".join(failures), summary=f"No Python in this repo. {done}.", **said)


def summary_of(prepared: Prepared) -> str:
    names = ", ".join(f"{one.name} {one.version}" for one in prepared.distributions)
    done = f"Installed {names}" if names else "There is no package to install"
    return f"{done}; Python {prepared.python}, {len(prepared.resolved)} distributions in {PLAIN}."


def log_of(prepared: Prepared) -> str:
    return "\n".join(
        f"$ {one.command}\n{one.output.rstrip()}\n[{one.ending}, {one.seconds} s]" for one in prepared.commands
    )
