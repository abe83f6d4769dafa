"""The project's own tests on a fresh clone: how many pass, how long they take, and why the others fail.

A test counts as failing only when it fails in the whole run, fails again alone, and fails under each way of running it
that the repo names. What fails for want of a network, a program, a display and so on is told apart and never a fault.
"""

import re
from collections.abc import Iterable

from review_agents.ports import Workspace
from review_agents.probes.failing_tests import (
    Settled,
    does_not_start,
    failures,
    flaky_candidates,
    reached_outside,
    surroundings_of,
    wants_a_terminal,
)
from review_agents.probes.prepared import Prepared
from review_agents.probes.source_tree import SourceTree, is_test_path
from review_agents.probes.suite_commands import documented_ways, pytest_commands
from review_agents.probes.suites import LIMIT_S, Case, Suite, first_that_runs, run_alone, run_suite
from review_agents.probes.tracebacks import surroundings
from review_agents.probes.unittest_runs import RAN_TESTS, unittest_result, unittest_ways
from review_agents.probes.ways_to_test import Command
from review_agents.records import (
    Candidate,
    Environment,
    Kind,
    Place,
    ProbeResult,
    ProbeState,
    Ran,
    Repo,
    Reproduction,
    Severity,
    Symptom,
)

NAME = "tests"
RERUNS = 3  # whole runs after a test failed in the first one and passed alone
SHORT_RUN_S = 90.0  # a run that takes longer is not repeated for that
MOST_RERUN = 60
MOST_WATCHED = 25


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
            probe=NAME,
            state=ProbeState.COULD_NOT_RUN,
            reason=prepared.not_installed or "the package could not be installed for its tests",
        )
    documented = documented_ways(tree)
    suite, other_ways = first_that_runs(workspace, pytest_commands(tree))
    if not suite.cases:
        for way in unittest_ways(documented):
            ran = workspace.run(way, environment=Environment.TEST, timeout_s=LIMIT_S)
            if RAN_TESTS.search(ran.output):
                return unittest_result(way, ran, tree)
        return nothing_ran(suite, documented, tree)
    settled = settle(workspace, suite, other_ways)
    failing = (*settled.failing, *settled.together)
    around = {case.id: surroundings_of(case, tree) for case in failing}
    for case in [case for case in failing if not around[case.id]][:MOST_WATCHED]:
        around[case.id] = reached_outside(workspace, suite.command, case) or wants_a_terminal(
            workspace, suite.command, case
        )
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


def settle(workspace: Workspace, suite: Suite, other_ways: tuple[str, ...]) -> Settled:
    """Run each failed test alone, in the other ways of running, and where it passed alone, in whole runs again."""
    failing: list[Case] = []
    passed_alone: list[Case] = []
    for case in suite.failed[:MOST_RERUN]:
        again = run_alone(workspace, suite.command, case)
        if again is None or again.failed:
            failing.append(again or case)  # how it fails alone is what the proof will show
        else:
            passed_alone.append(case)
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
        (suite.count("xfailed"), "failed as expected"),
        (len(faults), "failed"),
        (len(flaky), "flaky"),
        (excused, "need what the sandbox lacks"),
    ):
        parts.extend([f"{number} {word}"] if number else [])
    return ", ".join(parts) + "."
