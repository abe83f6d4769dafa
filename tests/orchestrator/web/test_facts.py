"""Facts of probes on a page: known shapes become tables, and no shape breaks the page."""

from typing import Any
from uuid import uuid4

import pytest

from orchestrator.services.views import Evidence
from orchestrator.web import facts
from review_agents.records import ProbeState


def evidence(**of_probe: Any) -> Evidence:
    return Evidence("tests", ProbeState.PASSED, "", 1.0, "", of_probe, uuid4())


def test_lines_are_names_in_words_with_short_values() -> None:
    found = facts.lines({"console_scripts": ["a", "b"], "ok": True, "empty": [], "none": None, "long": "x" * 1000})
    assert found[:2] == [("console scripts", "a, b"), ("ok", "yes")]
    assert found[2][0] == "long" and found[2][1].endswith("(1000 characters)")
    assert len(found) == 3


def test_a_test_run_becomes_a_suite() -> None:
    one = evidence(
        command="pytest", passed=3, failed=1, skipped=0,
        failures=[{"id": "t::a", "type": "KeyError", "message": "boom"}],
        flaky=["t::c"], could_not_run={"t::a": "needs a display"}, slowest=[{"test": "t::b", "seconds": 2}],
    )  # fmt: skip
    (suite,) = facts.suites([one])
    assert suite.counts == [("passed", 3), ("failed", 1), ("flaky", 1)]
    assert suite.failures == [
        ("t::a", "KeyError: boom (not held against the repo: needs a display)"),
        ("t::c", "flaky: it passed when it was run again"),
    ]
    assert suite.slowest == [("t::b", 2.0)]


def test_failing_examples_come_first() -> None:
    one = evidence(
        examples=[
            {"file": "README.md", "line": 3, "example": "a", "state": "matched"},
            {"file": "README.md", "line": 9, "example": "b", "state": "suspect", "reason": "other"},
        ]
    )
    first, second = facts.examples([one])
    assert (first.where, first.state, first.said) == ("README.md:9", "failed", "other")
    assert second.state == "passed"


def test_hot_functions_get_a_share_even_when_the_probe_gave_none() -> None:
    one = evidence(functions=[{"function": "f", "own_s": 3.0}, {"function": "g", "own_s": 1.0}])
    assert [row.share for row in facts.hottest([one])] == [0.75, 0.25]


@pytest.mark.parametrize("value", [None, 3, "text", [], {}, [1, None, "x"], {"a": [[]]}, [{}], [{"line": "x"}], True])
@pytest.mark.parametrize("name", ["flaky", "could_not_run", "examples", "functions", "failures", "slowest", "passed"])
def test_no_shape_of_a_fact_breaks_the_page(name: str, value: Any) -> None:
    one = [evidence(**{"failed": 1, name: value})]
    facts.suites(one), facts.examples(one), facts.hottest(one), facts.lines(one[0].facts)
