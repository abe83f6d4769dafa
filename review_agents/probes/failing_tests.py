"""Findings about failing tests: one per root cause, with the cause named where the tree itself tells it."""

import re
import shlex
from collections.abc import Iterable

from review_agents.ports import NoSuchFile, Workspace
from review_agents.probes.source_tree import SourceTree
from review_agents.probes.suites import ALONE_S, Case, Suite, base_of
from review_agents.probes.tracebacks import shape_of, surroundings
from review_agents.probes.ways_to_test import preparing_steps
from review_agents.probes.within import send
from review_agents.records import Candidate, Environment, Kind, Place, Record, Reproduction, Severity, Symptom

MOST_FINDINGS = 12
OPAQUE = {"", "AssertionError", "Failed", "CalledProcessError"}  # types whose cause stands in the text around


class Settled(Record):
    """What became of the tests that failed in the first run."""

    failing: tuple[Case, ...] = ()  # fail alone as well, and in every way of running
    together: tuple[Case, ...] = ()  # fail in every whole run and pass alone
    flaky: tuple[Case, ...] = ()  # failed and passed in whole runs of the same kind
    once: tuple[Case, ...] = ()  # failed in the first run and never again


def failures(
    workspace: Workspace, cases: list[Case], suite: Suite, settled: Settled, tree: SourceTree
) -> list[Candidate]:
    """One finding per root cause, the ones with most tests first."""
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault(cause_of(case), []).append(case)
    found = []
    for group in sorted(groups.values(), key=len, reverse=True)[:MOST_FINDINGS]:
        candidate = failure(workspace, group, suite, settled, tree)
        found.extend([candidate] if candidate else [])
    return found


def cause_of(case: Case) -> tuple[str, str]:
    """What makes failures the same: exception and message shape; for bare assertions the test as well."""
    shape = shape_of(case.type, case.message)
    if case.id == case.file:
        return (shape, "")  # files that cannot be loaded for the same reason
    if case.type in ("AssertionError", "Failed", "") or re.match(r"assert\b", case.message):
        return (shape_of(case.type, ""), case.test)
    return (shape, missing_path(case))


def missing_path(case: Case) -> str:
    """The file that was not there, relative to the repo, where that is what the failure says."""
    found = re.search(
        r"(?:No such file or directory|FileNotFoundError|[Nn]ot found|does not exist)[^'\"\n]*['\"]([^'\"\n]+)['\"]",
        f"{case.type}: {case.message}",
    )
    return found[1].removeprefix("/job/repo/") if found else ""


def failure(
    workspace: Workspace, group: list[Case], suite: Suite, settled: Settled, tree: SourceTree
) -> Candidate | None:
    first = group[0]
    if first.file not in tree.tracked:
        return None
    place = tree.place(first.file, first.line or tree.line_of(first.file, f"def {first.test.rpartition('::')[2]}"))
    why = explain(workspace, first, settled, tree)
    tests = sorted({case.test for case in group})
    names = ", ".join(f"`{name}`" for name in tests[:4]) + (f" and {len(tests) - 4} more" if len(tests) > 4 else "")
    message = brief(first)
    many = f"{len(tests)} tests fail" if len(tests) > 1 else f"The test {tests[0].rpartition('::')[2]} fails"
    if tests[0] == first.file and len(tests) == 1:
        many = "A test file cannot be loaded"
    where = (
        f"in {first.file}"
        if len({case.file for case in group}) == 1
        else f"in {len({case.file for case in group})} files"
    )
    passing = next((case for case in suite.cases if case.outcome == "passed" and case.file == first.file), None)
    passing = passing or next((case for case in suite.cases if case.outcome == "passed"), None)
    runner = base_of(suite.command)
    return Candidate(
        kind=why.kind,
        rule=why.rule,
        title=f"{many} on a fresh clone {where}: {why.title or message}",
        description=f"{names} {'fail' if len(tests) > 1 else 'fails'} with `{message}`. {why.text}".strip(),
        severity=Severity.HIGH,
        places=(*why.places, place),
        reproduction=Reproduction(
            command=f"{suite.command} -p no:cacheprovider -rfE"
            if why.whole
            else f"{runner} -p no:cacheprovider {shlex.quote(first.id)}",
            expected="the test passes",
            observed=message,
            environment=Environment.TEST,
            control=f"{runner} -p no:cacheprovider {shlex.quote(passing.id)}" if passing else None,
            symptom=Symptom(nonzero=True, contains=contained(first, why.whole)),
            timeout_s=ALONE_S + (suite.ran.seconds * 4 if why.whole else 0.0),
        ),
        shape=shape_of(first.type, first.message),
    )


def brief(case: Case) -> str:
    """Type and message on one line, cut where it stops telling anything."""
    text = f"{case.type}: {case.message}".strip(": ").replace("/job/repo/", "").splitlines()
    first = text[0] if text else "no message"
    return first if len(first) <= 140 else f"{first[:140].rstrip()}…"


def contained(case: Case, whole: bool) -> tuple[str, ...]:
    """What the output of the proof must hold: the exception, and the test's name where others run too."""
    kind = (case.type,) if re.fullmatch(r"\w+", case.type) else ()
    return (*kind, case.test.rpartition("::")[2]) if whole or not kind else kind


class Why(Record):
    kind: Kind = Kind.CORRECTNESS
    rule: str = "tests.fail"
    title: str = ""
    text: str = ""
    places: tuple[Place, ...] = ()
    whole: bool = False  # shown only by a run of the whole suite


def explain(workspace: Workspace, case: Case, settled: Settled, tree: SourceTree) -> Why:
    """The cause, where the tree itself tells it."""
    if case in settled.together:
        text = "Alone it passes; in every run of the whole suite it fails, so another test leaves something behind."
        return Why(title="it passes alone and fails after other tests", text=text, whole=True)
    path = missing_path(case)
    if path and path not in tree.tracked and not path.startswith(("/", "..")):
        return explain_missing_file(workspace, path, tree)
    module = re.search(r"No module named '([^']+)'", case.message)
    if module and module[1].split(".")[0] in tree.prepared.missing_modules:
        text = (
            f"The tests import `{module[1]}`, which no dependency, extra, group or requirements file of the repo names."
        )
        return Why(
            kind=Kind.PACKAGING,
            rule="tests.undeclared-dependency",
            title=f"`{module[1]}` is not declared anywhere",
            text=text,
        )
    return Why()


def explain_missing_file(workspace: Workspace, path: str, tree: SourceTree) -> Why:
    """Is the file kept out of the repo by an ignore rule? Then the clone of everybody else lacks it."""
    script = f"git -c safe.directory='*' check-ignore -v --no-index -- {shlex.quote(path)}"
    ran = workspace.run(script, environment=Environment.NONE, timeout_s=30)
    rule = re.search(r"^([^:\t\n]+):(\d+):([^\t\n]+)\t", ran.output, re.M)
    if ran.exit == 0 and rule and rule[1] in tree.tracked:
        text = (
            f"The file {path} is not in the repository: the pattern `{rule[3]}` in {rule[1]} (line {rule[2]}) ignores "
            "it, so it exists only on the author's machine and `git add` passes over it in silence."
        )
        return Why(
            kind=Kind.PACKAGING,
            title=f"{path} is missing because {rule[1]} ignores `{rule[3]}`",
            text=text,
            places=(tree.place(rule[1], int(rule[2])),),
        )
    return Why(
        title=f"{path} is not in the repository", text=f"The file {path} that the test needs is not in the repository."
    )


def flaky_candidates(flaky: Iterable[Case], suite: Suite, tree: SourceTree) -> list[Candidate]:
    found: dict[str, Candidate] = {}
    for case in flaky:
        if case.file not in tree.tracked or surroundings_of(case, tree):
            continue
        name = case.test.rpartition("::")[2]
        place = tree.place(case.file, case.line or tree.line_of(case.file, f"def {name}"))
        command = f"for run in $(seq 20); do\n  {suite.command} -p no:cacheprovider -q -rfE || exit 1\ndone"
        found.setdefault(
            case.test,
            Candidate(
                kind=Kind.RELIABILITY,
                rule="tests.flaky",
                title=f"The test {name} in {case.file} is flaky: the same run fails and passes",
                description=(
                    f"`{case.id}` failed in some of several identical runs with `{brief(case)}` and passed in the "
                    "others, with nothing changed between them."
                ),
                severity=Severity.MEDIUM,
                places=(place,),
                reproduction=Reproduction(
                    command=command,
                    expected="the same outcome every time",
                    observed=f"failed in some runs with {brief(case)}",
                    environment=Environment.TEST,
                    symptom=Symptom(nonzero=True, contains=(name,)),
                    timeout_s=ALONE_S + suite.ran.seconds * 40,
                ),
                shape="flaky",
            ),
        )
    return list(found.values())


# A run that does not start --------------------------------------------------------------


def does_not_start(suite: Suite, tree: SourceTree) -> Candidate | None:
    """The repo's own conftest.py breaks the test run for a reason of its own, not for a module that is missing here."""
    output = suite.ran.output
    conftest = re.search(
        r"(?:ImportError while loading conftest|Plugin:?|conftest) '?(?:/job/repo/)?([\w/.-]*conftest\.py)", output
    )
    raised = re.findall(r"^(?:E\s+)?(?:[\w]+\.)*([A-Z]\w*(?:Error|Exception)): (.+)$", output, re.M)
    if not conftest or conftest[1] not in tree.tracked or not raised or suite.ran.timed_out:
        return None
    kind, message = raised[-1]
    if kind in ("ModuleNotFoundError", "ImportError") or surroundings(f"{kind}: {message}"):
        return None
    detail = re.search(r"^(Argument\(s\) .+)$", output, re.M)  # pluggy says what is wrong some lines further down
    message = f"{message}: {detail[1]}" if detail else message
    hook = re.search(r"for hook '(\w+)'", message)
    line = tree.line_of(conftest[1], f"def {hook[1]}") if hook else line_in(conftest[1], output)
    return Candidate(
        kind=Kind.CORRECTNESS,
        rule="tests.do-not-start",
        title=f"No test runs on a fresh clone: {conftest[1]} ends with {kind}: {message[:160]}",
        description=(
            f"`{suite.command}` stops while it loads {conftest[1]}, before any test: {kind}: {message[:300]}. "
            f"Installed was {pytest_version(tree)}, since nothing in the repository asks for another one."
        ),
        severity=Severity.HIGH,
        places=(tree.place(conftest[1], line),),
        reproduction=Reproduction(
            command=f"{base_of(suite.command)} -p no:cacheprovider",
            expected="the tests run",
            observed=f"{kind}: {message[:200]}",
            environment=Environment.TEST,
            symptom=Symptom(nonzero=True, contains=(kind,)),
            timeout_s=ALONE_S,
        ),
        shape=shape_of(kind, message),
    )


def line_in(path: str, output: str) -> int | None:
    found = re.search(rf"{re.escape(path)}(?::|\", line )(\d+)", output)
    return int(found[1]) if found else None


def pytest_version(tree: SourceTree) -> str:
    return f"pytest {tree.prepared.resolved_test.get('pytest', '')}".strip()


# What the sandbox lacks ------------------------------------------------------------------


def surroundings_of(case: Case, tree: SourceTree) -> str:
    """What the sandbox lacks for this test ("" when the failure is the repo's own)."""
    started = "subprocess.py" in case.text
    why = surroundings(f"{case.type}: {case.message}", ran_program=started)
    if not why and case.type in OPAQUE:
        why = surroundings(case.text[-1500:])
    if "Using pytest.skip outside of a test" in case.text or "Skipped: " in case.text:
        return "skips itself here"
    fixture = re.search(r"fixture '(\w+)' not found", case.text)
    if fixture:
        return f"needs the pytest plugin that provides the fixture {fixture[1]}"
    path = missing_path(case)
    if re.search(r"No such file or directory|FileNotFoundError", f"{case.type}: {case.message}"):
        steps = preparing_steps(tree.repo.files, lambda name: tree.text(name) or None)
        if steps and path not in tree.tracked:
            return f"needs what the step {steps[0]} makes"
    module = next((folder for folder in submodules(tree) if path == folder or path.startswith(f"{folder}/")), "")
    if module:
        return f"needs the git submodule {module}, which is not fetched here"
    quoted = re.findall(r"['\"]([\w./-]+)['\"]", case.message)
    if any(tree.text(path.removeprefix("/job/repo/")).startswith("version https://git-lfs") for path in quoted):
        return "needs files from git LFS, which are not fetched here"
    return why


def reached_outside(workspace: Workspace, way: str, case: Case) -> str:
    """Run a failing test once more and see whether it tried to reach what is not here, which its failure hides."""
    workspace.run("mkdir -p /tmp/lamplighter-watch && rm -f /tmp/lamplighter-seen", environment=Environment.NONE)
    send(workspace, "watch_test", "/tmp/lamplighter-watch/sitecustomize.py")
    watched = "LAMPLIGHTER_SEEN=/tmp/lamplighter-seen PYTHONPATH=/tmp/lamplighter-watch"
    command = f"{watched} {base_of(way)} -p no:cacheprovider -q {shlex.quote(case.id)}"
    workspace.run(command, environment=Environment.TEST, timeout_s=ALONE_S)
    try:
        seen = workspace.read("/tmp/lamplighter-seen").splitlines()
    except NoSuchFile:
        return ""
    if not seen:
        return ""
    kind, _, name = seen[0].partition(" ")
    return f"needs the network: it tried to reach {name}" if kind == "network" else f"needs the program {name}"


IN_A_TERMINAL = (
    "import os, pty, sys\n"
    "sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:], lambda fd: os.read(fd, 4096), lambda fd: b'')))"
)


def wants_a_terminal(workspace: Workspace, way: str, case: Case) -> str:
    """Run a failing test in a terminal of a known kind: what passes there is no fault."""
    command = f"{base_of(way)} -p no:cacheprovider -q -s --color=no {shlex.quote(case.id)}"
    settings = "TERM=xterm-256color COLUMNS=80 LINES=24 LC_ALL=C.UTF-8"
    script = f"{settings} python -c {shlex.quote(IN_A_TERMINAL)} bash -c {shlex.quote(command)} </dev/null"
    ran = workspace.run(script, environment=Environment.TEST, timeout_s=ALONE_S)
    return "needs a terminal" if ran.ok and re.search(r"\b1 passed\b", ran.output) else ""


def submodules(tree: SourceTree) -> list[str]:
    return re.findall(r"^\s*path\s*=\s*(\S+)", tree.text(".gitmodules"), re.M)
