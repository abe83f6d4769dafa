import shutil
from pathlib import Path

import pytest

from review_agents.probes.other_languages import npm_tests
from review_agents.records import Kind, ProbeState
from tests.review_agents.probes.samples import Reviewed

needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")


def test_make_builds_and_its_failing_tests_are_a_finding(tmp_path: Path):
    files = {
        "Makefile": "all: add\nadd: add.c\n\tcc -o add add.c\ntest: add\n\t./add || { echo 'FAIL: 1 + 1'; exit 1; }\n",
        "add.c": "int main(void) { return 1 + 1 != 3; }\n",
        "README.md": "# add\n",
    }
    one = Reviewed(tmp_path, files)
    try:
        found = one.only("other_languages", "tests.fail")
        assert found.kind is Kind.CORRECTNESS and "FAIL: 1 + 1" in found.description
        assert one.install.state is ProbeState.NOT_APPLICABLE
    finally:
        one.close()


def test_a_tool_that_is_not_here_is_named_and_no_fault(tmp_path: Path):
    files = {
        "Makefile": "all:\n\tfrobnicate-compiler main.frob\ntest: all\n\ttrue\n",
        "main.frob": "x",
    }
    one = Reviewed(tmp_path, files)
    try:
        result = one.result("other_languages")
        assert result.state is ProbeState.COULD_NOT_RUN and not result.candidates
        assert "frobnicate-compiler" in result.reason
    finally:
        one.close()


@needs_npm
def test_node_runs_its_tests_and_checks_what_is_packed(tmp_path: Path):
    files = {
        "package.json": (
            '{"name": "sample-add", "version": "1.0.0", "main": "dist/add.js", "files": ["lib"], '
            '"scripts": {"test": "node test.js"}}'
        ),
        "dist/add.js": "module.exports = (a, b) => a + b\n",
        "lib/index.js": "",
        "test.js": "const add = require('./dist/add.js')\nif (add(1, 1) !== 2) process.exit(1)\n",
    }
    one = Reviewed(tmp_path, files)
    try:
        assert one.install.state is ProbeState.PASSED and "npm install" in one.install.summary
        result = one.result("other_languages")
        assert result.facts["commands"][0]["command"] == "npm test"
        assert [found.rule for found in result.candidates] == []  # npm always packs what `main` names
    finally:
        one.close()


def test_linters_are_left_out_of_npm_test():
    assert [one.text for one in npm_tests("node --test")] == ["npm test"]
    assert [one.text.splitlines()[-1] for one in npm_tests("xo && c8 ava && tsd")] == ["c8 ava"]
    assert npm_tests("eslint .") == [] and npm_tests("") == []
