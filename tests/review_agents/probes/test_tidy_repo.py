"""A repo that looks wrong in many ways and is right: no probe may report anything."""

from collections.abc import Iterator

import pytest

from review_agents.records import ProbeState
from tests.review_agents.probes.samples import Reviewed, setuptools_project

FILES = {
    "pyproject.toml": setuptools_project(
        "tidy",
        more=(
            'dependencies = ["packaging"]\n\n'
            '[project.optional-dependencies]\nfast = ["orjson-that-does-not-exist"]\n\n'
            '[dependency-groups]\ntest = ["pytest", {include-group = "plugins"}]\nplugins = ["pytest-timeout"]\n\n'
            '[project.scripts]\ntidy = "tidy.cli:main"\n\n[project.gui-scripts]\ntidy-window = "tidy.cli:main"\n\n'
            '[project.entry-points.pytest11]\ntidy = "tidy.pytest_plugin"\n\n'
            '[tool.setuptools.packages.find]\nwhere = ["src"]\nexclude = ["tidy.tests*"]\n\n'
            '[tool.setuptools.package-data]\n"*" = ["*.txt", "py.typed"]\n\n'
            '[tool.pytest.ini_options]\naddopts = "--timeout=60"\n'
        ),
    ),
    "README.md": (
        "# tidy\n\n    pip install tidy\n    pip install 'tidy[fast]'\n    pip install -e '.[Fast]'\n\n"
        "The command `tidy report` needs tabulate; install it with `pip install tabulate`.\n\n"
        "    git clone https://example.org/elsewhere\n    cd elsewhere\n    pip install -r requirements.txt\n"
    ),
    ".gitignore": "build/\ncache/\n",
    ".gitmodules": '[submodule "corpus"]\n\tpath = tests/corpus\n\turl = https://example.org/corpus.git\n',
    "src/tidy/__init__.py": (
        "from importlib.metadata import version\n\n__version__ = version('tidy')\n\n"
        "try:\n    import orjson\nexcept ImportError:\n    orjson = None\n"
    ),
    "src/tidy/pytest_plugin.py": "import pytest\n\n\n@pytest.fixture\ndef tidy():\n    return 1\n",
    "src/tidy/py.typed": "",
    "src/tidy/tests/__init__.py": "",
    "src/tidy/tests/test_inside.py": "from tidy.data import load\n\n\ndef test_load():\n    assert load('a') == 'A'\n",
    "src/tidy/data/__init__.py": (
        "from pathlib import Path\n\nHERE = Path(__file__).parent\nCACHE = HERE / 'cache.json'\n\n\n"
        "def load(name):\n    return (HERE / f'{name}.txt').read_text()\n\n\n"
        "def cached():\n    return CACHE.read_text() if CACHE.exists() else ''\n"
    ),
    "src/tidy/data/a.txt": "A",
    "src/tidy/export.py": (
        "from __future__ import annotations\n\nimport sys\nfrom typing import TYPE_CHECKING\n\n"
        "if TYPE_CHECKING:\n    import numpy\n    from typing import Self\n\n"
        "if sys.version_info >= (3, 11):\n    import tomllib\nelse:\n    tomllib = None\n\n\n"
        "def to_polars(rows) -> list | None:\n    import polars\n\n    return polars.DataFrame(rows)\n\n\n"
        "def report(rows):\n    from tabulate import tabulate\n\n    return tabulate(rows)\n"
    ),
    "src/tidy/contrib/__init__.py": "",
    "src/tidy/contrib/web.py": "import bottle\n\napp = bottle.Bottle()\n",
    "src/tidy/cli.py": (
        "import argparse\nimport os\nimport sys\n\nfrom packaging.version import Version\n\nimport tidy\n\n\n"
        "def main():\n    parser = argparse.ArgumentParser()\n"
        "    parser.add_argument('--version', action='version', version=f'tidy {Version(tidy.__version__)}')\n"
        "    sub = parser.add_subparsers(dest='command')\n    show = sub.add_parser('show')\n"
        "    show.add_argument('file')\n"
        "    window = sub.add_parser('window')\n    window.set_defaults(window=True)\n"
        "    given = parser.parse_args()\n    if given.command is None:\n        parser.print_help()\n"
        "        return 2\n"
        "    if not os.path.exists(given.file):\n        sys.exit(f'tidy: no such file: {given.file}')\n"
    ),
    "tests/test_tidy.py": (
        "import subprocess\nimport sys\nfrom pathlib import Path\n\nimport pytest\n\nfrom tidy.data import load\n\n\n"
        "def test_load():\n    assert load('a') == 'A'\n\n\n"
        "@pytest.mark.skipif(True, reason='never')\ndef test_skipped():\n    assert False\n\n\n"
        "@pytest.mark.xfail\ndef test_known():\n    assert False\n\n\n"
        "def test_needs_a_program():\n    subprocess.run(['a-program-that-nobody-has'], check=True)\n\n\n"
        "def test_needs_a_submodule():\n    assert (Path(__file__).parent / 'corpus' / 'a.txt').read_text()\n\n\n"
        "def test_needs_root():\n    Path('/etc/tidy-was-here').write_text('x')\n\n\n"
        "def test_swallows_a_missing_network():\n    import socket\n    found = None\n"
        "    try:\n        found = socket.getaddrinfo('example.org', 80)\n    except OSError:\n        pass\n"
        "    assert found\n\n\n"
        "def test_speaks_to_a_terminal():\n    import os\n    import sys\n"
        "    assert os.isatty(sys.__stdout__.fileno())\n\n\n"
        "def test_once_in_a_while(tmp_path_factory):\n    mark = Path('/tmp/tidy-mark')\n"
        "    first = not mark.exists()\n    mark.write_text('x')\n    assert not first\n"
    ),
    "benchmarks/speed.py": "if __name__ == '__main__':\n    print(sum(range(1000)))\n",
}


@pytest.fixture(scope="module")
def tidy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reviewed]:
    reviewed = Reviewed(tmp_path_factory.mktemp("tidy"), FILES)
    yield reviewed
    reviewed.close()


@pytest.mark.parametrize(
    "name", ["install", "wheel", "dependencies", "entry_points", "imports", "tests", "other_languages", "profile"]
)
def test_nothing_is_reported(tidy: Reviewed, name: str):
    assert [(one.rule, one.title, one.description) for one in tidy.candidates(name)] == []


def test_included_dependency_groups_and_plugins_in_addopts_were_installed(tidy: Reviewed):
    assert "dependency group test" in tidy.prepared.test_needs
    assert "pytest-timeout" in tidy.prepared.resolved_test


def test_optional_imports_are_facts_with_the_reason(tidy: Reviewed):
    optional = {one["module"]: one["why"] for one in tidy.result("dependencies").facts["optional"]}
    assert set(optional) == {"orjson", "polars", "tabulate", "bottle", "pytest"} - {"orjson"}
    assert "README.md" in optional["tabulate"]


def test_what_tests_need_and_the_sandbox_lacks_is_named(tidy: Reviewed):
    could_not = tidy.result("tests").facts["could_not_run"]
    assert {name.partition("::")[2] for name in could_not} == {
        "test_needs_a_program",
        "test_needs_a_submodule",
        "test_needs_root",
        "test_swallows_a_missing_network",
        "test_speaks_to_a_terminal",
    }
    assert "submodule" in could_not["tests/test_tidy.py::test_needs_a_submodule"]


def test_a_test_that_failed_once_and_never_again_is_a_fact(tidy: Reviewed):
    assert tidy.result("tests").facts["failed_once"] == ["tests/test_tidy.py::test_once_in_a_while"]


def test_a_benchmark_script_is_timed_with_at_least_six_sessions(tidy: Reviewed):
    result = tidy.result("benchmarks")
    taken = {one.name: one for one in result.measurements}
    assert result.state is ProbeState.PASSED
    assert len(taken["python benchmarks/speed.py"].sessions) >= 6
