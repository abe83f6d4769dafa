"""One repo that has each fault once: every probe must find it, with a proof that holds in a fresh sandbox."""

from collections.abc import Iterator

import pytest

from review_agents.records import Kind, ProbeState
from tests.review_agents.probes.samples import Reviewed, setuptools_project

FILES = {
    "pyproject.toml": setuptools_project(
        "brimful",
        more=(
            '\n[project.optional-dependencies]\ntest = ["pytest"]\n\n'
            '[project.scripts]\nbrimful = "brimful.cli:main"\nbrimful-gone = "brimful.cli:gone"\n\n'
            '[project.entry-points."brimful.plugins"]\nlost = "brimful.nothing:Plugin"\nwhole = "brimful.cli:main"\n\n'
            '[tool.setuptools]\npackage-dir = {"" = "src"}\npackages = ["brimful"]\n'
            '[tool.setuptools.exclude-package-data]\n"*" = ["py.typed"]\n'
        ),
    ),
    "README.md": "# brimful\n\n    pip install '.[plots]'\n    pip install -r requirements-dev.txt\n\n"
    "```python\nfrom brimful.extra import more\n```\n",
    ".gitignore": "build/\n",
    "src/brimful/__init__.py": (
        '"""Brimful."""\n\nprint("Thank you for using brimful")\n'
        "SQUARES = [str(pow(n, 9, 10**12)) for n in range(2_000_000)]\n"
    ),
    "src/brimful/py.typed": "",
    "src/brimful/words.py": (
        "import json\nfrom importlib.resources import files\n\n\ndef load_words(lang):\n"
        '    return json.loads(files(__package__).joinpath("words", f"{lang}.json").read_text())\n'
    ),
    "src/brimful/words/de.json": "{}",
    "src/brimful/words/fr.json": "{}",
    "src/brimful/extra/__init__.py": "more = 1\n",
    "src/brimful/table.py": "def show(rows):\n    from tabulate import tabulate\n\n    return tabulate(rows)\n",
    "src/brimful/modern.py": "def name(x):\n    match x:\n        case 1:\n            return 'one'\n",
    "src/brimful/cli.py": (
        "import sys\n\n\ndef main():\n    word = sys.argv[1]\n"
        '    if word == "--help":\n        print("usage: brimful FILE")\n        return 0\n'
        '    if word == "--version":\n        print("brimful 0.9.0")\n        return 0\n'
        '    if word.startswith("-"):\n        print(f"error: unknown option {word}")\n        return 0\n'
        "    print(open(word).read())\n"
    ),
    "tests/test_brimful.py": (
        "import json\nimport socket\nfrom pathlib import Path\n\nHERE = Path(__file__).parent\n"
        "COUNT = Path('/tmp/brimful-count')\n\n\n"
        "def test_good():\n    assert True\n\n\n"
        "def test_sum():\n    assert sum([1, 2]) == 4\n\n\n"
        'def test_release():\n    assert json.loads((HERE / "build" / "release.json").read_text())\n\n\n'
        'def test_release_again():\n    assert json.loads((HERE / "build" / "release.json").read_text())\n\n\n'
        'def test_network():\n    socket.create_connection(("192.0.2.1", 80), timeout=2)\n\n\n'
        "def test_now_and_then():\n    count = int(COUNT.read_text()) if COUNT.exists() else 0\n"
        "    COUNT.write_text(str(count + 1))\n    assert count % 3\n"
    ),
    "tests/build/release.json": "{}",
}


@pytest.fixture(scope="module")
def brimful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reviewed]:
    reviewed = Reviewed(tmp_path_factory.mktemp("brimful"), FILES)
    yield reviewed
    reviewed.close()


def test_a_readme_that_names_an_unknown_extra_is_found(brimful: Reviewed):
    assert "`plots`" in brimful.only("install", "install.unknown-extra").title


def test_a_readme_that_names_a_requirements_file_that_is_not_there_is_found(brimful: Reviewed):
    assert "requirements-dev.txt" in brimful.only("install", "install.missing-file").title


@pytest.mark.parametrize("rule", ["install.unknown-extra", "install.missing-file"])
def test_what_readme_tells_to_install_is_no_fault_of_a_readme_that_tells_otherwise(brimful: Reviewed, rule: str):
    candidate = brimful.only("install", rule)
    assert candidate.reproduction is not None
    (copied,) = candidate.reproduction.copied
    assert (copied.file, copied.text) == ("README.md", candidate.places[0].quote)


def test_missing_package_data_is_shown_by_a_call_that_works_from_the_tree(brimful: Reviewed):
    found = brimful.only("wheel", "wheel.missing-data")
    assert "src/brimful/words/*.json" in found.title and "load_words" in found.description
    assert found.reproduction is not None and found.reproduction.control is not None


def test_a_subpackage_that_readme_imports_and_the_wheel_lacks_is_found(brimful: Reviewed):
    assert "`brimful.extra`" in brimful.only("wheel", "wheel.missing-module").title


def test_a_type_marker_that_was_not_shipped_is_found(brimful: Reviewed):
    assert "src/brimful/py.typed" in brimful.only("wheel", "wheel.missing-marker").title


def test_syntax_newer_than_requires_python_is_found(brimful: Reviewed):
    found = brimful.only("wheel", "wheel.python-too-old")
    assert "match statement" in found.title and found.places[0].file == "src/brimful/modern.py"


def test_an_undeclared_dependency_is_found(brimful: Reviewed):
    found = brimful.only("dependencies", "wheel.undeclared-dependency")
    assert "`tabulate`" in found.title and found.kind is Kind.PACKAGING
    assert found.places[0].symbol == "show"


def test_a_program_that_does_not_start_is_found_once(brimful: Reviewed):
    found = brimful.only("entry_points", "entry-point.does-not-start")
    assert "`brimful-gone`" in found.title and found.places[0].file == "pyproject.toml"


def test_tracebacks_on_wrong_use_are_found_one_per_cause(brimful: Reviewed):
    found = brimful.candidates("entry_points", "cli.traceback")
    assert sorted(one.shape.split(":")[0] for one in found) == ["FileNotFoundError", "IndexError"]
    for one in found:
        brimful.holds(one)


def test_a_refusal_with_exit_status_zero_is_found(brimful: Reviewed):
    assert "exit status 0" in brimful.only("entry_points", "cli.exit-zero").title


def test_a_version_option_that_disagrees_with_the_metadata_is_found(brimful: Reviewed):
    found = brimful.only("entry_points", "entry-point.version-differs")
    assert "0.9.0" in found.title and "1.0.0" in found.title


def test_a_plugin_that_cannot_be_loaded_is_found(brimful: Reviewed):
    assert "`lost`" in brimful.only("entry_points", "entry-point.does-not-load").title


def test_an_import_that_prints_is_found(brimful: Reviewed):
    assert "Thank you" in brimful.only("imports", "import.prints").title


def test_a_slow_and_heavy_import_is_one_finding_that_names_the_statement(brimful: Reviewed):
    found = brimful.only("imports", "import.slow")
    assert "`SQUARES`" in found.title and "MiB" in found.title
    assert not brimful.candidates("imports", "import.memory")


def test_import_time_is_measured_as_fresh_processes(brimful: Reviewed):
    names = {one.name: one for one in brimful.result("imports").measurements}
    assert set(names) == {"bare interpreter start", "import brimful"}
    assert len(names["import brimful"].sessions) >= 6


def test_failing_tests_are_one_finding_per_cause(brimful: Reviewed):
    found = brimful.candidates("tests", "tests.fail")
    assert len(found) == 2, [one.title for one in found]
    for one in found:
        brimful.holds(one)


def test_a_file_that_gitignore_keeps_out_is_named_with_its_pattern(brimful: Reviewed):
    (found,) = [one for one in brimful.candidates("tests", "tests.fail") if one.kind is Kind.PACKAGING]
    assert "tests/build/release.json" in found.title and "`build/`" in found.title
    assert {place.file for place in found.places} == {".gitignore", "tests/test_brimful.py"}
    assert "test_release_again" in found.description


def test_a_test_that_needs_the_network_could_not_run_and_is_no_fault(brimful: Reviewed):
    facts = brimful.result("tests").facts
    assert list(facts["could_not_run"]) == ["tests/test_brimful.py::test_network"]
    assert not any("test_network" in one.description for one in brimful.candidates("tests"))


def test_a_flaky_test_is_told_apart_from_a_failing_one(brimful: Reviewed):
    found = brimful.only("tests", "tests.flaky")
    assert "test_now_and_then" in found.title and found.kind is Kind.RELIABILITY


def test_the_counts_and_durations_are_facts(brimful: Reviewed):
    facts = brimful.result("tests").facts
    assert facts["tests"] == 6 and facts["passed"] == 1
    assert facts["slowest"][0]["seconds"] >= 0


def test_a_failing_test_run_is_not_timed_and_says_so(brimful: Reviewed):
    result = brimful.result("benchmarks")
    assert result.facts["not_timed"]["test run"] == "exit status 1"
    assert "brimful --help" in {one.name for one in result.measurements}


def test_the_profile_still_names_the_packages_functions(brimful: Reviewed):
    result = brimful.result("profile")
    assert result.state is ProbeState.PASSED and result.facts["peak_bytes"] > 0


def test_probes_of_what_is_not_there_say_so(brimful: Reviewed):
    assert brimful.result("other_languages").state is ProbeState.NOT_APPLICABLE
