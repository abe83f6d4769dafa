"""A program that works only with an extra that README says to install: tried with it, and said to need it."""

from collections.abc import Iterator

import pytest

from review_agents.records import Environment
from tests.review_agents.probes.samples import Reviewed, setuptools_project

CLI = """\
import argparse
import sys
from pathlib import Path

try:
    from tabulate import tabulate
except ImportError:
    sys.exit('No tables here. Run: pip install "lister[cli]"')

STORE = Path("settings.txt")


def main():
    parser = argparse.ArgumentParser(prog="lister")
    actions = parser.add_subparsers(dest="action", required=True)
    setting = actions.add_parser("set")
    setting.add_argument("name")
    setting.add_argument("value")
    actions.add_parser("list")
    asked = parser.parse_args()
    if asked.action == "set":
        with STORE.open("a") as store:
            store.write(f"{asked.name}={asked.value}\\n")
    else:
        print(STORE.read_text() if STORE.exists() else tabulate([]), end="")
"""
README = """\
# lister

    pip install "lister[cli]"

```console
$ lister set USER ada
$ DOMAIN=example.org
$ lister set EMAIL ada@${DOMAIN}
$ lister list
USER=ada
EMAIL=ada@example.org
```

```console
$ lister list --shout
```
"""
FILES = {
    "pyproject.toml": setuptools_project(
        "lister",
        more='[project.optional-dependencies]\ncli = ["tabulate"]\n\n[project.scripts]\nlister = "lister.cli:main"\n',
    ),
    "README.md": README,
    "src/lister/__init__.py": "",
    "src/lister/cli.py": CLI,
}


@pytest.fixture(scope="module")
def lister(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reviewed]:
    made = Reviewed(tmp_path_factory.mktemp("lister"), FILES)
    yield made
    made.close()


pytestmark = pytest.mark.slow


def test_the_program_is_called_where_it_works_and_the_summary_says_what_it_needs(lister: Reviewed):
    result = lister.result("entry_points")
    assert not result.candidates
    assert result.summary == (
        "1 programs, 7 calls, 0 problems. 1 of 1 answered --help only with what README installs besides: cli."
    )
    assert result.facts["extras_needed"] == {"lister": "cli"}


def test_its_options_are_compared_with_its_help(lister: Reviewed):
    found = lister.only("options", "readme.unknown-option")
    assert "--shout" in found.title and found.reproduction.environment is Environment.TEST


def test_its_transcript_is_played_names_in_capitals_and_variables_included(lister: Reviewed):
    states = {one["example"]: one["state"] for one in lister.result("readme").facts["examples"]}
    assert states["lister list"] == "matched", states
    assert "not_run" not in {state for example, state in states.items() if "EMAIL" in example or "USER" in example}


def test_its_start_is_timed_with_the_extra(lister: Reviewed):
    assert [one.name for one in lister.result("benchmarks").measurements] == ["lister --help"]
