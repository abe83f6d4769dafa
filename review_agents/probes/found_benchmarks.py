"""Everything in a repo that can be timed night after night: found or given, each as one `Benchmark`."""

import json
import re
import shlex
from collections.abc import Iterable, Mapping

from review_agents.ports import Workspace
from review_agents.probes.benchmarks import FOLDERS, MOST_PROGRAMS, NO_TESTS, TEST_RUN, documented, scripts
from review_agents.probes.entry_points import programs
from review_agents.probes.own import extras_needed
from review_agents.probes.prepared import Prepared
from review_agents.probes.source_tree import SourceTree
from review_agents.probes.suite_commands import is_pytest
from review_agents.probes.tests import has_tests
from review_agents.records import Benchmark, BenchmarkKind, Environment, Repo

FIGURES = "/tmp/lamplighter-figures"
PYTEST = "python -m pytest -q -p no:cacheprovider"
MOST_IMPORTS, MOST_SLOW_TESTS, MOST_PYPERF = 2, 3, 4
SLOW_TEST_S = 0.05  # a report of pytest gives milliseconds
USES_FIXTURE = re.compile(r"^\s*(?:async )?def test_\w*\([^)]*\bbenchmark\b", re.M)
USES_PYPERF = re.compile(r"\bpyperf\.Runner\(|from pyperf import .*\bRunner\b")
OWN_SUITE = re.compile(r"\bclass Time|\bdef (?:time|timeraw)_")
ASV_CONFIG = ("asv.conf.json", "asv.conf.jsonc", "benchmarks/asv.conf.json", "asv_bench/asv.conf.json")


def found(
    workspace: Workspace,
    repo: Repo,
    prepared: Prepared,
    *,
    slowest: Iterable[Mapping[str, object]] = (),
    test_command: str = "",
    asked: Iterable[Benchmark] = (),
) -> tuple[Benchmark, ...]:
    """In the order of their worth, names in use for the history first.

    slowest        tests with their seconds, as the probe of tests tells them
    test_command   the test run that worked, as the probe of benchmarks tells it
    asked          what agents measured on an earlier night
    """
    tree = SourceTree(workspace, repo, prepared)
    every = [
        *configured(repo),
        *pytest_benchmarks(repo, prepared, tree),
        *asv_suites(repo, tree),
        *pyperf_scripts(repo, prepared, tree),
        *documented_ones(tree),
        *script_ones(repo, tree),
        *imports(prepared),
        *program_starts(workspace, prepared),
        *slow_tests(repo, prepared, slowest),
        *test_run(repo, prepared, test_command),
        *asked,
    ]
    usable = {
        Environment.TEST: prepared.installed_test,
        Environment.PLAIN: prepared.installed_plain,
        Environment.NONE: True,
    }
    unique: dict[str, Benchmark] = {}
    for one in every:
        if usable[one.environment]:
            unique.setdefault(one.name, one)
    return tuple(unique.values())


def configured(repo: Repo) -> list[Benchmark]:
    return [
        Benchmark(name=name, kind=BenchmarkKind.CONFIGURED, command=command, files=named_files(repo, command))
        for name, command in repo.settings.benchmark.items()
    ]


def pytest_benchmarks(repo: Repo, prepared: Prepared, tree: SourceTree) -> list[Benchmark]:
    if "pytest-benchmark" not in prepared.resolved_test:
        return []
    files = [path for path in repo.files if path.endswith(".py") and USES_FIXTURE.search(tree.text(path))]
    if not files:
        return []
    command = (
        f"{PYTEST} --benchmark-only --benchmark-json={FIGURES}.json --benchmark-min-rounds=3 "
        f"--benchmark-max-time=0.2 --benchmark-warmup=on --benchmark-warmup-iterations=1 {shlex.join(files)}"
    )
    return [
        Benchmark(
            name="pytest-benchmark",
            kind=BenchmarkKind.PYTEST_BENCHMARK,
            command=f"rm -f {FIGURES}.json; {command}",
            figures_file=f"{FIGURES}.json",
            files=(*files, *(path for path in repo.files if path.endswith("conftest.py"))),
        )
    ]


def asv_suites(repo: Repo, tree: SourceTree) -> list[Benchmark]:
    """Timed by a small program of ours, which knows the shapes of asv's benchmarks; asv itself would build a repo."""
    found = []
    for folder in asv_folders(repo, tree):
        files = tuple(path for path in repo.files if path.startswith(f"{folder}/") and path.endswith(".py"))
        if any(OWN_SUITE.search(tree.text(path)) for path in files):
            command = f"python /tmp/lamplighter-run_asv.py {shlex.quote(folder)} {FIGURES}.json"
            found.append(
                Benchmark(
                    name=f"asv {folder}",
                    kind=BenchmarkKind.ASV,
                    command=f"rm -f {FIGURES}.json; {command}",
                    figures_file=f"{FIGURES}.json",
                    files=files,
                    inside=("run_asv",),
                )
            )
    return found


def asv_folders(repo: Repo, tree: SourceTree) -> list[str]:
    """The benchmark folders that asv's configuration names."""
    found = []
    for path in ASV_CONFIG:
        if path in tree.tracked:
            lines = [line for line in tree.text(path).splitlines() if not line.lstrip().startswith("//")]
            try:
                content = json.loads(re.sub(r",(\s*[}\]])", r"\1", "\n".join(lines)))
            except ValueError:
                content = {}
            named = content.get("benchmark_dir") if isinstance(content, dict) else None
            base = path.rpartition("/")[0]
            folder = str(named or "benchmarks").strip("./")
            found.append(f"{base}/{folder}" if base else folder)
    return list(dict.fromkeys(found))


def pyperf_scripts(repo: Repo, prepared: Prepared, tree: SourceTree) -> list[Benchmark]:
    if "pyperf" not in prepared.resolved_test:
        return []
    files = [path for path in repo.files if path.endswith(".py") and USES_PYPERF.search(tree.text(path))]
    return [
        Benchmark(
            name=f"pyperf {path}",
            kind=BenchmarkKind.PYPERF,
            command=(
                f"rm -f {FIGURES}.json; python {shlex.quote(path)} --processes 1 --values 3 --warmups 1 --quiet "
                f"-o {FIGURES}.json"
            ),
            figures_file=f"{FIGURES}.json",
            files=(path,),
        )
        for path in files[:MOST_PYPERF]
    ]


def documented_ones(tree: SourceTree) -> list[Benchmark]:
    return [
        Benchmark(name=command, kind=BenchmarkKind.DOCUMENTED, command=command, files=benchmark_files(tree.repo))
        for command in documented(tree)
    ]


def script_ones(repo: Repo, tree: SourceTree) -> list[Benchmark]:
    shown = documented(tree)
    return [
        Benchmark(
            name=f"python {path}",
            kind=BenchmarkKind.SCRIPT,
            command=f"python {shlex.quote(path)}",
            files=benchmark_files(repo),
        )
        for path in scripts(repo, tree)
        if not any(path in command for command in shown) and not USES_PYPERF.search(tree.text(path))
    ]


def benchmark_files(repo: Repo) -> tuple[str, ...]:
    """What lies beside a benchmark and belongs to it."""
    return tuple(path for path in repo.files if path.startswith(FOLDERS))


def named_files(repo: Repo, command: str) -> tuple[str, ...]:
    """Files that the command names, and those of benchmark folders."""
    words = set(re.findall(r"[\w./-]+", command))
    named = tuple(path for path in repo.files if path in words or f"./{path}" in words)
    return tuple(dict.fromkeys((*named, *benchmark_files(repo))))


def imports(prepared: Prepared) -> list[Benchmark]:
    """The time of the import statement itself, the interpreter's start left out."""
    return [
        Benchmark(
            name=f"import {name}",
            kind=BenchmarkKind.IMPORT,
            command=(
                "cd /tmp\n"
                f"python -c 'import time; start = time.perf_counter(); import {name}; "
                f'print("import: %.9f s" % (time.perf_counter() - start))\''
            ),
            environment=Environment.PLAIN,
        )
        for name in prepared.import_packages[:MOST_IMPORTS]
    ]


def program_starts(workspace: Workspace, prepared: Prepared) -> list[Benchmark]:
    return [
        Benchmark(
            name=f"{program.command} --help",
            kind=BenchmarkKind.PROGRAM,
            command=f"cd /tmp\n{program.command} --help </dev/null >/dev/null",
            environment=Environment.TEST
            if extras_needed(workspace, prepared, program.distribution, program.command)
            else Environment.PLAIN,
        )
        for program in programs(prepared)[:MOST_PROGRAMS]
    ]


def slow_tests(repo: Repo, prepared: Prepared, slowest: Iterable[Mapping[str, object]]) -> list[Benchmark]:
    names = [
        str(one.get("test"))
        for one in slowest
        if isinstance(seconds := one.get("seconds"), int | float) and seconds >= SLOW_TEST_S
    ][:MOST_SLOW_TESTS]
    return [
        Benchmark(
            name=f"test {name}",
            kind=BenchmarkKind.SLOW_TEST,
            command=f"rm -f {FIGURES}.xml; {PYTEST} --junitxml={FIGURES}.xml {shlex.quote(name)}",
            figures_file=f"{FIGURES}.xml",
            files=(name.partition("::")[0],),
        )
        for name in names
        if has_tests(repo)
    ]


def test_run(repo: Repo, prepared: Prepared, command: str = "") -> list[Benchmark]:
    if not prepared.installed_test or not (has_tests(repo) or repo.settings.test):
        return []
    command = command or PYTEST
    if is_pytest(command) and not repo.settings.test:
        command = f"{command}; status=$?; test $status -eq {NO_TESTS} || exit $status"
    return [Benchmark(name=TEST_RUN, kind=BenchmarkKind.TEST_RUN, command=command)]
