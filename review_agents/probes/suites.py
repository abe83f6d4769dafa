"""Running the tests with pytest and reading its report: cases, runs, and the ways of running that a repo names."""

import re
import shlex
from collections.abc import Iterable
from typing import Any

from review_agents.ports import Workspace
from review_agents.probes.ways_to_test import Command
from review_agents.probes.within import InsideFailed, run_inside
from review_agents.records import Environment, Ran, Record

LIMIT_S = 900.0
ALONE_S = 120.0
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
