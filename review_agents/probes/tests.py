"""The project's own tests on a fresh clone: how many pass, how long they take, and why the others fail.

A test counts as failing only when it fails in the whole run, fails again alone, and fails under each way of running it
that the repo names. What fails for want of a network, a program, a display and so on is told apart and never a fault.
"""

import re
import shlex
from collections.abc import Iterable
from typing import Any

from review_agents.ports import NoSuchFile, Workspace
from review_agents.probes.prepared import Prepared
from review_agents.probes.source_tree import SourceTree, is_test_path
from review_agents.probes.tracebacks import shape_of, surroundings
from review_agents.probes.ways_to_test import Command, documented_commands
from review_agents.probes.within import InsideFailed, run_inside, send
from review_agents.records import (
    Candidate,
    Environment,
    Kind,
    Place,
    ProbeResult,
    ProbeState,
    Ran,
    Record,
    Repo,
    Reproduction,
    Severity,
    Symptom,
)

NAME = "tests"
LIMIT_S = 900.0
ALONE_S = 120.0
RERUNS = 3  # whole runs after a test failed in the first one and passed alone
SHORT_RUN_S = 90.0  # a run that takes longer is not repeated for that
MOST_RERUN = 60
MOST_WATCHED = 25
MOST_FINDINGS = 12
REPORT = "/tmp/lamplighter-junit.xml"


class Case(Record):
    """One test, or one file that could not be collected."""

    id: str  # what pytest takes, for example tests/test_a.py::TestB::test_c
    file: str
    outcome: str  # passed, failed, error, skipped, xfailed
    seconds: float = 0.0
    type: str = ""  # exception type, where it failed
    message: str = ""
    text: str = ""  # the failure as pytest shows it, its last part
    place: str = ""  # FILE:LINE of the deepest line in the repo
    line: int | None = None

    @property
    def failed(self) -> bool:
        return self.outcome in ("failed", "error")

    @property
    def test(self) -> str:
        """The id without the parameters."""
        return self.id.partition("[")[0]


class Suite(Record):
    """One run of the tests."""

    command: str
    ran: Ran
    cases: tuple[Case, ...] = ()

    @property
    def failed(self) -> tuple[Case, ...]:
        return tuple(case for case in self.cases if case.failed)

    def count(self, outcome: str) -> int:
        return sum(case.outcome == outcome for case in self.cases)


def probe(workspace: Workspace, repo: Repo, prepared: Prepared) -> ProbeResult:
    tree = SourceTree(workspace, repo, prepared)
    if repo.settings.test:
        return own_commands(workspace, repo)
    if "python" not in prepared.languages or not has_tests(repo):
        return ProbeResult(
            probe=NAME, state=ProbeState.NOT_APPLICABLE, summary="There are no Python tests in this repo."
        )
    if not prepared.installed_test:
        return ProbeResult(
            probe=NAME, state=ProbeState.COULD_NOT_RUN, reason="the package could not be installed for its tests"
        )
    documented = documented_commands(repo.files, prepared.manifests, lambda path: tree.text(path) or None)
    suite, other_ways = first_that_runs(workspace, pytest_ways(documented))
    if not suite.cases:
        return nothing_ran(suite, documented, tree)
    settled = settle(workspace, suite, other_ways)
    failing = (*settled.failing, *settled.together)
    around = {case.id: surroundings_of(case, tree) for case in failing}
    for case in [case for case in failing if not around[case.id]][:MOST_WATCHED]:
        around[case.id] = reached_outside(workspace, suite.command, case)
    faults = [case for case in failing if not around[case.id]]
    candidates = failures(workspace, faults, suite, settled, tree)
    candidates.extend(flaky_candidates(settled.flaky, suite, tree))
    facts = facts_of(suite, settled, around, documented)
    return ProbeResult(
        probe=NAME,
        state=ProbeState.FAILED if candidates else ProbeState.PASSED,
        reason="; ".join(sorted(set(filter(None, around.values()))))[:300],
        summary=summary_of(suite, faults, settled.flaky, around),
        facts=facts,
        log=suite.ran.output[-20000:],
        candidates=tuple(candidates),
    )


def has_tests(repo: Repo) -> bool:
    return any(path.endswith(".py") and is_test_path(path) for path in repo.files)


# Running ---------------------------------------------------------------------------------


def pytest_ways(documented: Iterable[Command]) -> tuple[str, ...]:
    """pytest command lines to try, the repo's own first; `python -m pytest` is always one of them."""
    covered = re.compile(r"^(?:python[\d.]* -m )?coverage run .*?-m pytest")
    own = [covered.sub("python -m pytest", one.text) for one in documented if one.is_pytest]
    whole = [
        text
        for text in own
        if not re.search(r"\s(?:[\w./-]+\.py|-k|-m\s+(?!pytest)\S+|--collect-only|--lf)\b", f" {text}")
    ]
    return tuple(dict.fromkeys([*whole[:3], "python -m pytest"]))


def with_report(way: str, *more: str) -> str:
    """The command with a machine-readable report, no stop at the first failure, and no cache left in the tree."""
    extra = shlex.join(
        [
            "-p",
            "no:cacheprovider",
            f"--junitxml={REPORT}",
            "-o",
            "junit_family=xunit1",
            "--maxfail=0",
            "--continue-on-collection-errors",
            *more,
        ]
    )
    return f"rm -f {REPORT}; {way} {extra}"


def run_suite(workspace: Workspace, way: str, *more: str, timeout_s: float = LIMIT_S) -> Suite:
    command = with_report(way, "--durations=10", *more)
    ran = workspace.run(command, environment=Environment.TEST, timeout_s=timeout_s)
    cases = tuple(Case(**case) for case in read_report(workspace))
    return Suite(command=way, ran=ran, cases=cases)


def read_report(workspace: Workspace) -> list[dict[str, Any]]:
    """The cases of the last run; none when pytest did not get as far as writing a report."""
    try:
        return list(run_inside(workspace, "read_junit", REPORT, "/job/repo", environment=Environment.NONE))
    except InsideFailed:
        return []


def first_that_runs(workspace: Workspace, ways: tuple[str, ...]) -> tuple[Suite, tuple[str, ...]]:
    """The run of the first way that collects any test, and the ways that were not tried."""
    suite = run_suite(workspace, ways[0])
    for at, way in enumerate(ways[1:], start=1):
        if suite.cases:
            return suite, ways[at:]
        other = run_suite(workspace, way)
        suite = other if other.cases or other.ran.exit == 5 else suite
    return suite, ()


class Settled(Record):
    """What became of the tests that failed in the first run."""

    failing: tuple[Case, ...] = ()  # fail alone as well, and in every way of running
    together: tuple[Case, ...] = ()  # fail in every whole run and pass alone
    flaky: tuple[Case, ...] = ()  # failed and passed in whole runs of the same kind
    once: tuple[Case, ...] = ()  # failed in the first run and never again


def settle(workspace: Workspace, suite: Suite, other_ways: tuple[str, ...]) -> Settled:
    """Run each failed test alone, in the other ways of running, and where it passed alone, in whole runs again."""
    failing: list[Case] = []
    passed_alone: list[Case] = []
    for case in suite.failed[:MOST_RERUN]:
        again = run_alone(workspace, suite.command, case)
        (failing if again is None or again.failed else passed_alone).append(case)
    for way in other_ways:
        if failing:
            other = run_suite(workspace, way, *dict.fromkeys(case.id for case in failing), timeout_s=300.0)
            passed = {case.id for case in other.cases if not case.failed}
            failing = [case for case in failing if case.id not in passed]
    sorts: dict[str, list[Case]] = {"together": [], "flaky": [], "once": []}
    if passed_alone and suite.ran.seconds <= SHORT_RUN_S:
        runs = [run_suite(workspace, suite.command) for _ in range(RERUNS)]
        for case in passed_alone:
            ends = {other.failed for run in runs for other in run.cases if other.id == case.id}
            sorts["flaky" if len(ends) == 2 else "together" if ends == {True} else "once"].append(case)
    return Settled(failing=tuple(failing), **{name: tuple(cases) for name, cases in sorts.items()})


def run_alone(workspace: Workspace, way: str, case: Case) -> Case | None:
    """The same test by itself; None when it did not run at all."""
    found = run_suite(workspace, base_of(way), case.id, timeout_s=ALONE_S)
    return next((other for other in found.cases if other.id == case.id), None)


def base_of(way: str) -> str:
    """The runner with the options that decide what a test sees; a single test is named instead of paths."""
    words = shlex.split(way)
    at = next((number for number, word in enumerate(words) if word in ("pytest", "py.test")), len(words) - 1)
    kept = words[: at + 1]
    rest = iter(words[at + 1 :])
    for word in rest:
        if word in ("-W", "-p", "-o", "-c", "--import-mode", "--rootdir"):
            kept.extend([word, next(rest, "")])
        elif word.startswith(("--doctest-", "--import-mode=", "--rootdir=", "-W", "--asyncio-mode=")):
            kept.append(word)
    return shlex.join(kept)


def own_commands(workspace: Workspace, repo: Repo) -> ProbeResult:
    """The test commands of .lamplighter.toml, judged by their exit status."""
    runs = [(text, workspace.run(text, environment=Environment.TEST, timeout_s=LIMIT_S)) for text in repo.settings.test]
    bad = [(text, ran) for text, ran in runs if not ran.ok]
    log = "\n".join(f"$ {text}\n{ran.output[-8000:]}[{ran.ending}]" for text, ran in runs)
    facts = {"commands": [{"command": text, "ending": ran.ending, "seconds": ran.seconds} for text, ran in runs]}
    if not bad:
        return ProbeResult(
            probe=NAME, state=ProbeState.PASSED, summary=f"{len(runs)} commands passed.", facts=facts, log=log
        )
    around = surroundings(bad[0][1].output)
    candidates = (
        () if around else tuple(command_candidate(text, ran) for text, ran in bad if not (ran.timed_out or ran.oom))
    )
    return ProbeResult(
        probe=NAME,
        state=ProbeState.FAILED if candidates else ProbeState.COULD_NOT_RUN,
        reason=around or f"{bad[0][0]}: {bad[0][1].ending}",
        summary=f"{len(bad)} of {len(runs)} commands failed.",
        facts=facts,
        log=log,
        candidates=candidates,
    )


def command_candidate(text: str, ran: Ran) -> Candidate:
    return Candidate(
        kind=Kind.CORRECTNESS,
        rule="tests.fail",
        title=f"The repo's own test command fails: {text}",
        description=f"`{text}`, named in .lamplighter.toml, ends with {ran.ending} on a fresh clone.",
        severity=Severity.HIGH,
        places=(Place(file=".lamplighter.toml"),),
        reproduction=Reproduction(
            command=text,
            expected="exit status 0",
            observed=ran.ending,
            environment=Environment.TEST,
            symptom=Symptom(nonzero=True),
            timeout_s=LIMIT_S,
        ),
    )


def nothing_ran(suite: Suite, documented: Iterable[Command], tree: SourceTree) -> ProbeResult:
    """No test was collected: wrong options, a missing plugin, a broken conftest. Never a silent pass."""
    facts = {"command": suite.command, "documented": [one.model_dump() for one in documented]}
    if suite.ran.exit == 5:
        return ProbeResult(
            probe=NAME,
            state=ProbeState.NOT_APPLICABLE,
            summary="pytest found no tests.",
            facts=facts,
            log=suite.ran.output,
        )
    lines = [line for line in suite.ran.output.splitlines() if re.search(r"[Ee]rror|unrecognized", line)]
    reason = f"`{suite.command}` ran no test ({suite.ran.ending}): {lines[-1].strip()[:200] if lines else 'no report'}"
    candidate = does_not_start(suite, tree)
    return ProbeResult(
        probe=NAME,
        state=ProbeState.FAILED if candidate else ProbeState.COULD_NOT_RUN,
        reason=reason,
        facts=facts,
        log=suite.ran.output[-20000:],
        candidates=(candidate,) if candidate else (),
    )


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
    line = line_in(conftest[1], output)
    return Candidate(
        kind=Kind.CORRECTNESS,
        rule="tests.do-not-start",
        title=f"No test runs on a fresh clone: {conftest[1]} ends with {kind}: {message[:120]}",
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


def surroundings_of(case: Case, tree: SourceTree) -> str:
    """What the sandbox lacks for this test ("" when the failure is the repo's own)."""
    started = "subprocess.py" in case.text
    why = surroundings(f"{case.type}: {case.message}", ran_program=started)
    if not why and case.type in OPAQUE:
        why = surroundings(case.text[-1500:])
    path = missing_path(case)
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


def submodules(tree: SourceTree) -> list[str]:
    return re.findall(r"^\s*path\s*=\s*(\S+)", tree.text(".gitmodules"), re.M)


OPAQUE = {"", "AssertionError", "Failed", "CalledProcessError"}  # types whose cause stands in the text around


# Findings --------------------------------------------------------------------------------


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
                    f"`{case.id}` failed in some of {RERUNS + 1} identical runs with `{brief(case)}` and passed in the "
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


# The page --------------------------------------------------------------------------------


def facts_of(
    suite: Suite, settled: Settled, around: dict[str, str], documented: Iterable[Command]
) -> dict[str, object]:
    slowest = sorted(suite.cases, key=lambda case: case.seconds, reverse=True)[:10]
    return {
        "command": suite.command,
        "documented": [one.model_dump() for one in documented],
        "seconds": round(suite.ran.seconds, 2),
        "peak_bytes": suite.ran.peak_bytes,
        "tests": len(suite.cases),
        **{outcome: suite.count(outcome) for outcome in ("passed", "failed", "error", "skipped", "xfailed")},
        "failures": [case.model_dump(exclude={"text"}) for case in (*settled.failing, *settled.together)[:50]],
        "could_not_run": {test: why for test, why in around.items() if why},
        "flaky": [case.id for case in settled.flaky],
        "failed_once": [case.id for case in settled.once],
        "slowest": [{"test": case.id, "seconds": case.seconds} for case in slowest],
    }


def summary_of(suite: Suite, faults: list[Case], flaky: tuple[Case, ...], around: dict[str, str]) -> str:
    parts = [f"{suite.count('passed')} of {len(suite.cases)} tests passed in {suite.ran.seconds:.1f} s"]
    excused = sum(bool(why) for why in around.values())
    for number, word in (
        (suite.count("skipped"), "skipped"),
        (len(faults), "failed"),
        (len(flaky), "flaky"),
        (excused, "need what the sandbox lacks"),
    ):
        parts.extend([f"{number} {word}"] if number else [])
    return ", ".join(parts) + "."
