from pathlib import Path

import pytest

from review_agents.probes.suites import Case, Suite
from review_agents.probes.tests import summary_of
from review_agents.records import ProbeState, Ran
from tests.review_agents.probes.samples import Reviewed, setuptools_project

PACKAGE = {
    "pyproject.toml": setuptools_project("plain-sum"),
    "src/plain_sum/__init__.py": "def add(a, b):\n    return a + b\n",
}


@pytest.mark.slow
def test_tests_that_only_unittest_can_collect_run_by_the_documented_command(tmp_path: Path):
    files = {
        **PACKAGE,
        "README.md": "# plain-sum\n\n    $ python -m unittest checks.suite\n",
        "checks/__init__.py": "",
        "checks/suite.py": (
            "import unittest\n\nfrom plain_sum import add\n\n\nclass Sums(unittest.TestCase):\n"
            "    def test_add(self):\n        self.assertEqual(add(1, 1), 2)\n\n"
            "    def test_wrong(self):\n        self.assertEqual(add(1, 1), 3)\n"
        ),
        "tests/data/notes.py": "",
    }
    one = Reviewed(tmp_path, files)
    try:
        found = one.only("tests", "tests.fail")
        assert "test_wrong" in found.title and found.places[0].file == "checks/suite.py"
        assert one.result("tests").facts["tests"] == 2
        profiled = one.result("profile")  # pytest finds none of them
        assert profiled.state is ProbeState.PASSED, profiled.reason
        assert profiled.facts["command"] == "python -m unittest checks.suite"
        assert "add" in [function["function"] for function in profiled.facts["functions"]]
        timed = one.result("benchmarks")
        assert timed.facts["commands"]["test run"] == "python -m unittest checks.suite"
        assert timed.facts["not_timed"]["test run"] == "exit status 1"
    finally:
        one.close()


@pytest.mark.slow
def test_a_script_of_tests_that_pytest_does_not_look_for_is_profiled_and_timed_as_it_ran(tmp_path: Path):
    suite = "import unittest\n\nfrom plain_sum import add\n\n\nclass Sums(unittest.TestCase):\n"
    suite += "    def test_add(self):\n        self.assertEqual(add(1, 1), 2)\n"
    one = Reviewed(tmp_path, {**PACKAGE, "tests.py": suite, "tox.ini": "[testenv]\ncommands = pytest tests.py\n"})
    try:
        assert one.result("tests").facts["command"] == "python -m pytest tests.py"
        assert one.result("profile").facts["command"] == "python -m pytest tests.py -q"
        timed = one.result("benchmarks")
        assert [measured.name for measured in timed.measurements] == ["test run"]
    finally:
        one.close()


@pytest.mark.slow
def test_a_conftest_that_breaks_the_run_is_one_finding(tmp_path: Path):
    files = {
        **PACKAGE,
        "conftest.py": "def pytest_collect_file(path, parent):\n    return None\n",
        "tests/test_sum.py": "def test_sum():\n    assert True\n",
    }
    one = Reviewed(tmp_path, files)
    try:
        found = one.only("tests", "tests.do-not-start")
        assert "conftest.py" in found.title and "pytest" in found.description
    finally:
        one.close()


@pytest.mark.slow
def test_a_repo_without_tests_says_so(tmp_path: Path):
    one = Reviewed(tmp_path, PACKAGE)
    try:
        result = one.result("tests")
        assert result.state is ProbeState.NOT_APPLICABLE and "no Python tests" in result.summary
        assert one.result("profile").state is ProbeState.NOT_APPLICABLE
    finally:
        one.close()


def test_the_numbers_of_the_summary_add_up():
    outcomes = ["passed"] * 5 + ["skipped", "xfailed", "xfailed"]
    cases = tuple(Case(id=f"a.py::{at}", file="a.py", outcome=outcome) for at, outcome in enumerate(outcomes))
    said = summary_of(Suite(command="pytest", ran=Ran(exit=0, seconds=1.0), cases=cases), [], (), {})
    assert said == "5 of 8 tests passed in 1.0 s, 1 skipped, 2 failed as expected."
