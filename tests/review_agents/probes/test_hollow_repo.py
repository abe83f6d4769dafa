"""A distribution that installs without a complaint and brings no code along, met in jpvanhal/inflection (88eefaa)."""

from collections.abc import Iterator

import pytest

from review_agents.records import ProbeState, Severity
from tests.review_agents.probes.samples import Reviewed

FILES = {
    "setup.py": "from setuptools import setup\n\nsetup()\n",
    "setup.cfg": "[metadata]\nname = hollow-words\nversion = 1.0\n\n[options]\npy_modules = hollow_words\n",
    "README.md": "# hollow-words\n\nMakes words plural.\n",
    "hollow_words/__init__.py": "def plural(word):\n    return word + 's'\n",
    "test_hollow.py": (
        "import hollow_words\n\n\ndef test_plural():\n    assert hollow_words.plural('lamp') == 'lamps'\n"
    ),
}


@pytest.fixture(scope="module")
def hollow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reviewed]:
    made = Reviewed(tmp_path_factory.mktemp("hollow"), FILES)
    yield made
    made.close()


def test_a_wheel_without_any_module_is_found_although_pip_installs_it(hollow: Reviewed) -> None:
    assert hollow.install.state is ProbeState.PASSED and not hollow.prepared.distributions[0].import_packages
    found = hollow.only("wheel", "wheel.missing-module")
    assert "`hollow_words`" in found.title and found.severity is Severity.CRITICAL
    assert {place.file for place in found.places} == {"setup.cfg", "test_hollow.py"}
