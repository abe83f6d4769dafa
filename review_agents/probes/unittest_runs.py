"""Tests that pytest cannot collect, by the repo's own unittest command, judged by what unittest prints."""

import re
from collections.abc import Iterable

from review_agents.probes.source_tree import SourceTree
from review_agents.probes.suites import LIMIT_S
from review_agents.probes.tracebacks import Raised, last_traceback
from review_agents.probes.ways_to_test import Command
from review_agents.records import (
    Candidate,
    Environment,
    Kind,
    Place,
    ProbeResult,
    ProbeState,
    Ran,
    Reproduction,
    Severity,
    Symptom,
)

RAN_TESTS = re.compile(r"^Ran [1-9]\d* tests? in", re.M)


def unittest_ways(documented: Iterable[Command]) -> list[str]:
    """The repo's own commands for tests that pytest cannot collect."""
    own = [re.sub(r"^(?:python[\d.]* -m )?coverage run .*?(?=-m unittest)", "python ", one.text) for one in documented]
    return [text for text in own if "unittest" in text or re.match(r"python[\d.]* \S+\.py", text)][:2]


def unittest_result(way: str, ran: Ran, tree: SourceTree) -> ProbeResult:
    """What `Ran N tests` and the failures above it say; one finding per failure's shape."""
    count = int((re.findall(r"^Ran (\d+) tests? in", ran.output, re.M) or ["0"])[-1])
    blocks = re.findall(r"^(?:FAIL|ERROR): (\S+) \(([\w.]+)\)[^\n]*\n-+\n(.*?)(?=^=+$|^-+$)", ran.output, re.M | re.S)
    found: dict[str, Candidate] = {}
    around: dict[str, str] = {}
    for name, dotted, text in blocks:
        raised = last_traceback(text)
        places = (
            [tree.place(path, frame.line) for frame in raised.frames if (path := own_path(frame.file, tree))]
            if raised
            else []
        )
        if raised is None or not places or raised.surroundings:
            around[f"{dotted}.{name}"] = raised.surroundings if raised else "no traceback"
            continue
        found.setdefault(raised.shape, unittest_failure(way, name, raised, places[-1]))
    facts = {"command": way, "tests": count, "failures": [name for name, _, _ in blocks], "could_not_run": around}
    state = ProbeState.FAILED if found else ProbeState.PASSED
    summary = f"{count - len(blocks)} of {count} tests passed in {ran.seconds:.1f} s with unittest."
    return ProbeResult(
        probe="tests",
        state=state,
        summary=summary,
        facts=facts,
        log=ran.output[-20000:],
        candidates=tuple(found.values()),
    )


def own_path(file: str, tree: SourceTree) -> str:
    return tree.tracked_path(file) or (file if file in tree.tracked else "")


def unittest_failure(way: str, name: str, raised: Raised, place: Place) -> Candidate:
    return Candidate(
        kind=Kind.CORRECTNESS,
        rule="tests.fail",
        title=f"The test {name} fails on a fresh clone in {place.file}: {raised.text[:140]}",
        description=f"`{way}`: {name} fails with `{raised.text[:300]}` at {place.file} line {place.line}.",
        severity=Severity.HIGH,
        places=(place,),
        reproduction=Reproduction(
            command=way,
            expected="the test passes",
            observed=raised.text[:300],
            environment=Environment.TEST,
            symptom=Symptom(nonzero=True, contains=(raised.type, name)),
            timeout_s=LIMIT_S,
        ),
        shape=raised.shape,
    )
