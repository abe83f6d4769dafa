import json
import os
import pstats
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from review_agents.probes.prepared import Prepared
from review_agents.probes.source_tree import SourceTree
from review_agents.probes.suite_commands import profiled, quiet, ran_tests, single_runs, timed_runs
from review_agents.records import Ran, Repo, RepoSettings

RUNNER = "/tmp/lamplighter-profile_script.py"


def tree_of(files: dict[str, str], **settings: tuple[str, ...]) -> SourceTree:
    class Workspace:
        def read(self, path: str, **_: object) -> str:
            return files[path.removeprefix("/job/repo/")]

    repo = Repo(
        name="c", url="https://example.org/c.git", ref="", commit="0" * 40, commit_date="2025-01-01T00:00:00+00:00",
        files=tuple(files), settings=RepoSettings(**settings),
    )  # fmt: skip
    return SourceTree(Workspace(), repo, Prepared(languages=("python",)))  # type: ignore[arg-type]


def test_a_suite_is_timed_in_the_ways_in_which_the_probe_of_tests_tries_it():
    tree = tree_of({"README.md": "    $ pytest\n", "test_a.py": ""})
    assert timed_runs(tree.repo, tree) == (
        "python -m pytest -q -p no:cacheprovider",
        "pytest -q -p no:cacheprovider",
    )
    tree = tree_of({"tests.py": "", "README.md": "    $ python -m unittest discover checks\n"})
    assert single_runs(tree.repo, tree) == (
        "python -m pytest",
        "python -m pytest tests.py",
        "python -m unittest discover checks",
    )


def test_what_the_repo_sets_itself_is_one_test_run_whatever_documents_say():
    tree = tree_of({"README.md": "    $ pytest more\n"}, test=("python -m unittest", "make check"))
    assert timed_runs(tree.repo, tree) == ("python -m unittest && make check",)
    assert single_runs(tree.repo, tree) == ("python -m unittest", "make check", "python -m pytest")


@pytest.mark.parametrize(
    ("way", "command"),
    [
        ("python -m pytest -m 'not slow'", "python -m cProfile -o F -m pytest -m 'not slow'"),
        ("A=1 python3 -W error -bb -m unittest -v", "A=1 python3 -W error -bb -m cProfile -o F -m unittest -v"),
        ("python tests.py --all", f"python {RUNNER} F tests.py --all"),
        ("A=1 pytest checks", f'A=1 python {RUNNER} F "$(command -v pytest)" checks'),
        ("make check", ""),
        ("python -c 'print()'", ""),
        ("python -m pytest | tee log", ""),
    ],
)
def test_each_way_that_is_one_python_process_can_be_profiled(way: str, command: str):
    assert profiled(way, runner=RUNNER, target="F") == command


def test_only_pytest_gets_options_of_pytest():
    assert quiet("python -m pytest tests.py") == "python -m pytest tests.py -q -p no:cacheprovider"
    assert quiet("python -m unittest") == "python -m unittest"


@pytest.mark.parametrize(
    ("way", "ran", "whether"),
    [
        ("python -m pytest", Ran(exit=1, head="1 failed, 2 passed in 0.1s"), True),
        ("python -m pytest", Ran(exit=1, head="PluginValidationError: unknown argument"), False),
        ("python -m pytest", Ran(exit=5, head="no tests ran in 0.01s"), False),
        ("python -m unittest", Ran(exit=0, head="Ran 0 tests in 0.000s"), False),
        ("python -m unittest", Ran(exit=1, head="Ran 12 tests in 0.100s\n\nFAILED (failures=1)"), True),
        ("pytest", Ran(exit=127, head="pytest: not found"), False),
    ],
)
def test_a_way_counts_when_a_test_ran(way: str, ran: Ran, whether: bool):
    assert ran_tests(way, ran) is whether


def test_a_script_is_its_own_main_under_the_profiler(tmp_path: Path):
    (tmp_path / "beside.py").write_text("def answer():\n    return 42\n")
    (tmp_path / "checks.py").write_text(
        "import sys, unittest\nfrom beside import answer\n\n\nclass Checks(unittest.TestCase):\n"
        "    def test_answer(self):\n        self.assertEqual(answer(), 42)\n"
        "        self.assertEqual(sys.argv, ['checks.py', '-v'])\n\n\nunittest.main()\n"
    )
    runner = tmp_path / "apart" / "runner.py"
    runner.parent.mkdir()
    runner.write_text(resources.files("review_agents.probes.inside").joinpath("profile_script.py").read_text())
    target = str(tmp_path / "profile")
    ran = subprocess.run(
        [sys.executable, str(runner), target, "checks.py", "-v"], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0 and "Ran 1 test in" in ran.stderr
    functions = {(os.path.basename(file), name) for file, _, name in pstats.Stats(target).stats}  # type: ignore[attr-defined]
    assert ("beside.py", "answer") in functions, json.dumps(sorted(map(str, functions)))
