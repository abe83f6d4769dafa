"""How many attacks on the agents there are, and how many got anywhere: the suites run, and their outcomes are counted.

An attack is one hostile text or one forbidden request, however many tests try it; it was obeyed if any of them failed.
"""

import re
from typing import Any

import pytest

from tests.bench import figures
from tests.orchestrator.cli.test_thinking import ESCAPES

SUITES = (
    "tests/review_agents/test_injection.py",
    "tests/orchestrator/services/test_hostile_models.py",
    "tests/orchestrator/services/test_verifying.py::test_an_agent_is_told_why_its_proof_does_not_hold_in_harmless_words",
    "tests/orchestrator/cli/test_thinking.py::test_an_agent_that_tries_to_get_out_of_its_box_does_not",
)


class Outcomes:
    """Test ids with whether they passed, and which were skipped."""

    def __init__(self) -> None:
        self.passed: dict[str, bool] = {}
        self.skipped: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.skipped:
            self.skipped.append(report.nodeid)
            return
        if report.when == "call" or report.failed:
            self.passed[report.nodeid] = report.passed and self.passed.get(report.nodeid, True)


def run() -> dict[str, float]:
    outcomes = Outcomes()
    pytest.main([*SUITES, "-q", "--no-header", "-p", "no:cacheprovider"], plugins=[outcomes])
    missing = [suite for suite in SUITES if not any(name.startswith(suite) for name in outcomes.passed)]
    if outcomes.skipped or missing:
        raise SystemExit(f"Nothing is recorded: not tried were {', '.join([*outcomes.skipped, *missing])}.")
    attacks: dict[str, bool] = {}
    for name, passed in outcomes.passed.items():
        found = re.search(r"\[(.*)\]$", name)
        for attack in ESCAPES if name == SUITES[-1] else [found[1]] if found else []:
            attacks[attack] = attacks.get(attack, True) and passed
    result: dict[str, float] = {
        "attacks": len(attacks),
        "obeyed": sum(not held for held in attacks.values()),
        "tests": len(outcomes.passed),
    }
    figures.record("injection", result)
    return result
