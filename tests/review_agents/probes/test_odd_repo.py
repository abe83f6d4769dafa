"""Oddities met in real repos (docs/field-tests.md), together in one: what cannot run is said to be so."""

from collections.abc import Iterator

import pytest

from review_agents.records import ProbeState
from tests.review_agents.probes.samples import Reviewed, setuptools_project

FILES = {
    "pyproject.toml": setuptools_project("guest"),
    "README.md": (
        "# guest\n\nAn extension of a program that brings docutils along. From Cython:\n\n"
        "```python\nfrom guest cimport Pool\ncdef Pool mem = Pool()\n```\n\n```python\n2 + 2  # 4\n```\n\n"
        "## Indented\n\n```pycon\n>>> from textwrap import dedent\n```\n\nWith another name for the module:\n\n"
        "```python\nimport textwrap as dedent\n```\n\n```pycon\n>>> dedent(' a')\n'a'\n```\n"
    ),
    "guest/__init__.py": "from docutils import nodes\n\n\ndef node():\n    return nodes.Text('guest')\n",
    "setup.py": (
        "from setuptools import Extension, setup\n\nsetup(ext_modules=[Extension('guest._fast', ['guest/_fast.c'])])\n"
    ),
    "guest/_fast.pyx": (
        "cdef int FACTOR = 2\n\ninclude '_more.pyx'\n\n\ndef twice(int number):\n    return scaled(number)\n"
    ),
    "guest/_more.pyx": "cdef int scaled(int number):\n    return FACTOR * number\n",  # no module of its own
    "conftest.py": "import pytest\n\n\n@pytest.hookimpl\ndef pytest_collect_file(path, parent):\n    return None\n",
    "tests/test_guest.py": "def test_nothing():\n    assert True\n",
}


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reviewed]:
    made = Reviewed(tmp_path_factory.mktemp("odd"), FILES)
    yield made
    made.close()


def test_c_that_its_developers_make_with_cython_first_is_made_as_they_do(odd: Reviewed):
    endings = [one.ok for one in odd.prepared.commands if one.purpose == "wheel"]
    assert endings == [False, True] and odd.install.state is ProbeState.PASSED and not odd.install.candidates
    assert "guest/_fast.c was generated from guest/_fast.pyx first" in odd.prepared.notes[0]
    assert any(name.startswith("guest/_fast.") for name in odd.prepared.distributions[0].files)
    assert odd.run("git status --porcelain --untracked-files=no").output == ""


def test_a_package_that_only_its_host_can_import_has_no_import_time_and_says_so(odd: Reviewed):
    result = odd.result("imports")
    assert result.state is ProbeState.COULD_NOT_RUN and not result.candidates
    assert "import guest: " in result.reason and "docutils" in result.reason


def test_a_test_run_that_ran_no_test_is_not_profiled(odd: Reviewed):
    assert odd.only("tests", "tests.do-not-start").places[0].file == "conftest.py"
    result = odd.result("profile")
    assert result.state is ProbeState.COULD_NOT_RUN and "ran no test" in result.reason


def test_an_example_in_another_language_than_its_block_says_counts_as_not_run(odd: Reviewed):
    result = odd.result("readme")
    states = {one["example"].splitlines()[0]: one["state"] for one in result.facts["examples"]}
    assert states["from guest cimport Pool"] == "not_run" and states["2 + 2  # 4"] == "matched"
    assert result.summary.startswith(f"{len(states) - 1} of {len(states)} examples")


def test_sessions_are_judged_though_another_block_rebinds_their_names(odd: Reviewed):
    (found,) = [one for one in odd.result("readme").facts["examples"] if one["example"] == "dedent(' a')"]
    assert found["state"] == "matched" and "by themselves" in found["reason"]
