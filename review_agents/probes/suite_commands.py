"""The ways in which a repo's tests may run, and each of them made fit for being timed or profiled."""

import re
import shlex

from review_agents.probes.source_tree import TEST_MODULES, SourceTree
from review_agents.probes.suites import pytest_ways
from review_agents.probes.unittest_runs import RAN_TESTS, unittest_ways
from review_agents.probes.ways_to_test import Command, documented_commands
from review_agents.records import Ran, Repo

ASSIGNMENTS = r"(?:[A-Za-z_]\w*=\S+\s+)*"
PYTHON = re.compile(rf"({ASSIGNMENTS}python[\d.]*(?:\s+-(?:[WX]\s*\S+|[bBdEIOPsSu]+))*)\s+(-m\s+\S.*|[^-\s].*)")
PYTEST_PROGRAM = re.compile(rf"^({ASSIGNMENTS})(?:pytest|py\.test)(?=\s|$)")
COUNTED = re.compile(r"\b[1-9]\d* (?:passed|failed|skipped|xfailed|xpassed)\b")


def documented_ways(tree: SourceTree) -> tuple[Command, ...]:
    return documented_commands(tree.repo.files, tree.prepared.manifests, lambda path: tree.text(path) or None)


def pytest_commands(tree: SourceTree) -> tuple[str, ...]:
    """pytest command lines in the order in which the probe of tests tries them."""
    modules = [path for path in sorted(tree.tracked) if path.rpartition("/")[2] in TEST_MODULES][:5]
    by_name = (f"python -m pytest {shlex.join(modules)}",) if modules else ()  # names that pytest does not look for
    return (*pytest_ways(documented_ways(tree)), *by_name)


def single_runs(repo: Repo, tree: SourceTree) -> tuple[str, ...]:
    """Commands of which the first that runs a test is the way of the probe of tests, pytest as a module first.

    A bare `pytest` comes once more behind that: where the tree must not be on the path, only the program works.
    """
    found: list[str] = list(repo.settings.test)
    for way in pytest_commands(tree) if not found else ("python -m pytest",):
        found += [PYTEST_PROGRAM.sub(r"\1python -m pytest", way), way]
    if not repo.settings.test:
        found += unittest_ways(documented_ways(tree))
    return tuple(dict.fromkeys(found))


def is_pytest(way: str) -> bool:
    return Command(text=way, source="").is_pytest


def ran_tests(way: str, ran: Ran) -> bool:
    """Whether any test ran, by what the runner printed."""
    if not is_pytest(way):
        return bool(RAN_TESTS.search(ran.output))
    return ran.exit == 0 or (ran.exit == 1 and bool(COUNTED.search(ran.output)))


def quiet(way: str) -> str:
    """For timing: a pytest that leaves nothing in the tree; anything else as it is."""
    return f"{way} -q -p no:cacheprovider" if is_pytest(way) else way


def timed_runs(repo: Repo, tree: SourceTree) -> tuple[str, ...]:
    """Test runs to time; of several, the first that runs a test. What .lamplighter.toml names is one run."""
    if repo.settings.test:
        return (" && ".join(repo.settings.test),)
    return tuple(quiet(way) for way in single_runs(repo, tree))


def profiled(way: str, *, runner: str, target: str) -> str:
    """The same under cProfile; empty when it is no single Python process.

    runner    our inside/profile_script.py, for scripts
    target    file for the profile
    """
    if re.search(r"[;&|<>`\n]|\$\(", way):
        return ""
    if program := PYTEST_PROGRAM.match(way):
        return f'{program[1]}python {runner} {target} "$(command -v pytest)"{way[program.end() :]}'
    called = PYTHON.fullmatch(way)
    if called is None:
        return ""
    python, rest = called.groups()
    return f"{python} -m cProfile -o {target} {rest}" if rest.startswith("-m") else f"{python} {runner} {target} {rest}"
