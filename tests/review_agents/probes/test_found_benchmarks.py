"""What is found to be timed, on files in a dict; the programs that time inside run for real."""

import json
import shlex
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from review_agents.ports import NoSuchFile
from review_agents.probes.found_benchmarks import found
from review_agents.probes.prepared import Distribution, Prepared
from review_agents.records import Benchmark, BenchmarkKind, Environment, Repo, RepoSettings
from tests.review_agents.probes.test_figures import LINES

PREPARED = Prepared(
    languages=("python",),
    installed_plain=True,
    installed_test=True,
    distributions=(Distribution(name="tool", import_packages=("tool",), console_scripts={"tool": "tool:main"}),),
)


def benchmarks(files: dict[str, str], prepared: Prepared = PREPARED, **given) -> dict[BenchmarkKind, Benchmark]:
    class Workspace:
        def read(self, path: str, *, limit_bytes: int = 0) -> str:
            if path not in files:
                raise NoSuchFile(path)
            return files[path]

    repo = Repo(
        name="tool", url="https://example.org/tool.git", ref="", commit="0" * 40,
        commit_date="2025-01-01T00:00:00+00:00", files=tuple(sorted(files)),
        settings=given.pop("settings", RepoSettings()),
    )  # fmt: skip
    return {one.kind: one for one in found(Workspace(), repo, prepared, **given)}  # type: ignore[arg-type]


def test_import_time_and_every_program_s_start_are_always_there():
    kinds = benchmarks({"tool/__init__.py": ""})
    assert kinds[BenchmarkKind.IMPORT].name == "import tool"
    assert kinds[BenchmarkKind.PROGRAM].command == "cd /tmp\ntool --help </dev/null >/dev/null"
    assert {one.environment for one in kinds.values()} == {Environment.PLAIN}


def test_tests_that_take_the_benchmark_fixture_need_the_plugin_among_what_was_installed():
    files = {"tests/test_speed.py": "def test_fast(tmp_path, benchmark):\n    benchmark(len, [])\n", "conftest.py": ""}
    assert BenchmarkKind.PYTEST_BENCHMARK not in benchmarks(files)
    with_plugin = PREPARED.model_copy(update={"resolved_test": {"pytest-benchmark": "5.1"}})
    one = benchmarks(files, with_plugin)[BenchmarkKind.PYTEST_BENCHMARK]
    assert one.command.endswith(" tests/test_speed.py") and "--benchmark-only" in one.command
    assert one.files == ("tests/test_speed.py", "conftest.py")


def test_an_asv_suite_is_found_by_its_configuration_comments_and_all():
    config = '{\n  // where they are\n  "benchmark_dir": "perf/suite",\n  "version": 1,\n}\n'
    files = {"asv.conf.json": config, "perf/suite/__init__.py": "", "perf/suite/a.py": "def time_it():\n    pass\n"}
    one = benchmarks(files)[BenchmarkKind.ASV]
    assert (one.name, one.inside) == ("asv perf/suite", ("run_asv",))
    assert "perf/suite/a.py" in one.files
    assert BenchmarkKind.ASV not in benchmarks({**files, "perf/suite/a.py": "x = 1\n"})


def test_pyperf_scripts_scripts_and_configured_commands_are_told_apart():
    files = {
        "perf.mk": "all:\n",
        "benchmarks/plain.py": "if __name__ == '__main__':\n    print('x: 1 ms')\n",
        "benchmarks/fine.py": "import pyperf\npyperf.Runner().bench_func('f', len, [])\n",
    }
    prepared = PREPARED.model_copy(update={"resolved_test": {"pyperf": "2.8"}})
    kinds = benchmarks(files, prepared, settings=RepoSettings(benchmark={"own": "make -f ./perf.mk"}))
    assert kinds[BenchmarkKind.SCRIPT].command == "python benchmarks/plain.py"
    assert "benchmarks/fine.py --processes 1" in kinds[BenchmarkKind.PYPERF].command
    own = kinds[BenchmarkKind.CONFIGURED]
    assert own.command == "make -f ./perf.mk"
    assert own.files == ("perf.mk", "benchmarks/fine.py", "benchmarks/plain.py")


def test_only_tests_that_take_long_enough_to_be_timed_are_and_agents_wishes_come_last():
    wish = Benchmark(name="agent: loop", kind=BenchmarkKind.AGENT, command="python -c 1")
    slowest = [
        {"test": "tests/test_a.py::test_slow", "seconds": 2.0},
        {"test": "tests/test_a.py::test_x", "seconds": 0.01},
    ]
    every = benchmarks({"tests/test_a.py": "def test_slow(): pass"}, slowest=slowest, asked=[wish])
    assert every[BenchmarkKind.SLOW_TEST].name == "test tests/test_a.py::test_slow"
    assert list(every)[-1] is BenchmarkKind.AGENT


def test_what_was_not_installed_is_not_timed():
    nothing = PREPARED.model_copy(update={"installed_plain": False, "installed_test": False})
    assert benchmarks({"tests/test_a.py": "def test_a(): pass"}, nothing) == {}


# Inside ------------------------------------------------------------------------------------


def run_inside(name: str, *arguments: str, folder: Path) -> dict:
    program = resources.files("review_agents.probes.inside").joinpath(f"{name}.py")
    result = folder / "result.json"
    subprocess.run([sys.executable, str(program), *arguments, str(result)], check=True, cwd=folder)
    return json.loads(result.read_text())


SUITE = """
import time

def setup():
    global ready
    ready = True

def time_function():
    assert ready
    time.sleep(0.001)

class Suite:
    params = [10, 20]
    def setup(self, size):
        self.data = list(range(size))
    def time_sum(self, size):
        assert len(self.data) == size
        time.sleep(0.002)
    def time_broken(self, size):
        raise RuntimeError("broken")
    def peakmem_sum(self, size):
        return self.data
"""


def test_an_asv_suite_is_timed_with_its_setups_and_parameters(tmp_path: Path):
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "suite.py").write_text(SUITE)
    told = run_inside("run_asv", "bench", folder=tmp_path)
    assert set(told["seconds"]) == {"suite.time_function", "suite.Suite.time_sum(10)", "suite.Suite.time_sum(20)"}
    assert 0.001 <= told["seconds"]["suite.time_function"] < 0.5  # a sleep is never shorter
    assert 0.002 <= told["seconds"]["suite.Suite.time_sum(20)"] < 0.5
    assert "broken" in told["problems"]["suite.Suite.time_broken(10)"]


@pytest.mark.parametrize("algorithm", ["sha1", "sha256"])
def test_what_an_import_gives_is_told_file_by_file_as_git_names_it(algorithm: str, tmp_path: Path):
    (tmp_path / "pack" / "sub").mkdir(parents=True)
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "sub" / "__init__.py").write_bytes(b"# -*- coding: latin-1 -*-\nx = '\xe4'\r\n")
    (tmp_path / "single.py").write_text("y = 2\n")
    program = resources.files("review_agents.probes.inside").joinpath("what_runs.py")
    subprocess.run(
        [sys.executable, str(program), '["pack", "single", "gone"]', "no-such-distribution", algorithm, "r.json"],
        check=True, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    told = json.loads((tmp_path / "r.json").read_text())
    assert told["version"] == ""
    subprocess.run(["git", "init", "-q", f"--object-format={algorithm}", "git"], check=True, cwd=tmp_path)
    named = ["git", f"--git-dir={tmp_path}/git/.git", "hash-object", "--no-filters", "__init__.py", "sub/__init__.py"]
    blobs = subprocess.run(named, check=True, cwd=tmp_path / "pack", capture_output=True, text=True).stdout.split()
    assert told["packages"]["pack"]["files"] == dict(zip(["__init__.py", "sub/__init__.py"], blobs, strict=True))
    assert set(told["packages"]["single"]["files"]) == {"single.py"}
    assert "gone" in told["packages"]["gone"]["problem"]


def test_the_canary_prints_one_figure():
    program = resources.files("review_agents.probes.inside").joinpath("canary.py")
    said = subprocess.run([sys.executable, str(program)], check=True, capture_output=True, text=True).stdout
    assert said.startswith("canary: 0.") and said.endswith(" s\n")


def test_stacks_of_a_program_are_sampled_without_its_knowing(tmp_path: Path):
    sampler = resources.files("review_agents.probes.inside").joinpath("sample_stacks.py").read_text("utf-8")
    (tmp_path / "sitecustomize.py").write_text(sampler)
    program = "def burn():\n    total = 0\n    while total < 6_000_000:\n        total += 1\n\n\nburn()\n"
    (tmp_path / "busy.py").write_text(program)
    target = tmp_path / "stacks.json"
    environment = {"PYTHONPATH": str(tmp_path), "LAMPLIGHTER_STACKS": str(target)}
    subprocess.run([sys.executable, str(tmp_path / "busy.py")], check=True, env=environment)
    busy = json.loads(target.read_text())["stacks"]
    subprocess.run([sys.executable, "-c", "pass"], check=True, env=environment)
    added = json.loads(target.read_text())["stacks"]
    assert all(added[stack] >= seconds for stack, seconds in busy.items())  # another process takes nothing away
    burning = sum(seconds for stack, seconds in busy.items() if stack.endswith(":1:burn"))
    assert burning / sum(busy.values()) > 0.8 and burning > 0.1


@pytest.mark.parametrize(("limit", "said"), [("0.0005", "OVER THE LIMIT"), ("50", "within the limit")])
@pytest.mark.parametrize(
    ("what", "figure", "command"),
    [
        ("wall", "", "true"),
        ("output", "get", "echo 'got it'; echo 'get: 1.5 ms'"),
        ("figures.json", "t.py::test_a", """echo '{"benchmarks": [{"fullname": "t.py::test_a", "stats": {"median": 0.0015}}]}' >figures.json"""),  # noqa: E501
        ("figures.json", "sort", """echo '{"metadata": {"name": "sort"}, "benchmarks": [{"runs": [{"values": [0.0015]}]}]}' >figures.json"""),  # noqa: E501
        ("figures.json", "m.time_x", """echo '{"seconds": {"m.time_x": 0.0015}}' >figures.json"""),
        ("figures.json", "t::a", """echo '<testsuite><testcase classname="t" name="a" time="0.0015"/></testsuite>' >figures.json"""),  # noqa: E501
    ],
)  # fmt: skip
def test_a_reproduction_says_whether_the_best_run_is_over_its_limit(
    what: str, figure: str, command: str, limit: str, said: str, tmp_path: Path
):
    if what == "wall":
        limit = "0.00001" if said.startswith("OVER") else limit
    done = over_limit(tmp_path, what, figure, limit, command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == said


def over_limit(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Started as a reproduction starts it, with the reader of figures beside it."""
    for name, place in (("inside/over_limit", "lamplighter-over_limit"), ("figures", "lamplighter_figures")):
        text = resources.files("review_agents.probes").joinpath(f"{name}.py").read_text("utf-8")
        (folder / f"{place}.py").write_text(text, encoding="utf-8")
    program = str(folder / "lamplighter-over_limit.py")
    return subprocess.run([sys.executable, program, *arguments], capture_output=True, text=True, cwd=folder)


@pytest.mark.parametrize(("line", "figures"), LINES)
def test_a_reproduction_reads_every_figure_that_was_judged_and_no_other(
    line: str, figures: dict[str, float], tmp_path: Path
):
    command = f"echo {shlex.quote(line)}"
    for name, value in figures.items():
        for limit, said in ((value / 2, "OVER THE LIMIT"), (value * 2, "within the limit")):
            assert over_limit(tmp_path, "output", name, str(limit), command).stdout.splitlines()[-1] == said
    done = over_limit(tmp_path, "output", "nothing of the sort", "1", command)
    assert done.returncode == 1 and "no figure 'nothing of the sort'" in done.stderr


def test_a_benchmark_that_fails_is_no_reproduction(tmp_path: Path):
    done = over_limit(tmp_path, "wall", "", "1", "exit 3")
    assert done.returncode == 1 and "OVER" not in done.stdout


@pytest.mark.parametrize(
    ("worked", "command"),
    [
        ("", "python -m pytest -q -p no:cacheprovider; status=$?; test $status -eq 5 || exit $status"),
        ("python -m unittest checks", "python -m unittest checks"),
    ],
)
def test_the_test_run_is_the_one_that_worked(worked: str, command: str):
    found = benchmarks({"tests/test_a.py": ""}, test_command=worked)
    assert found[BenchmarkKind.TEST_RUN].command == command
