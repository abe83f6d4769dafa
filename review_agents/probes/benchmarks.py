"""Numbers for the history: benchmark commands, the test run and the start of each program, as fresh processes."""

import re
import shlex

from review_agents.ports import CommandFailed, Workspace
from review_agents.probes.entry_points import programs
from review_agents.probes.own import extras_needed
from review_agents.probes.prepared import Prepared
from review_agents.probes.source_tree import SourceTree
from review_agents.probes.suite_commands import ran_tests, timed_runs
from review_agents.probes.tests import has_tests
from review_agents.records import Environment, Measurement, ProbeResult, ProbeState, Ran, Repo

NAME = "benchmarks"
SESSIONS = 6
LONGEST_S = 12.0  # a command that takes longer is not repeated here
MOST_SCRIPTS, MOST_PROGRAMS = 6, 4
TEST_RUN, NO_TESTS = "test run", 5  # pytest's exit status where it collects nothing
FOLDERS = ("benchmarks/", "benchmark/", "bench/", "perf/")


def probe(workspace: Workspace, repo: Repo, prepared: Prepared) -> ProbeResult:
    tree = SourceTree(workspace, repo, prepared)
    commands = wanted(workspace, repo, prepared, tree)
    if not commands and prepared.not_installed:
        return ProbeResult(probe=NAME, state=ProbeState.COULD_NOT_RUN, reason=prepared.not_installed)
    if not commands:
        return ProbeResult(probe=NAME, state=ProbeState.NOT_APPLICABLE, summary="There is nothing to time.")
    taken: list[Measurement] = []
    skipped: dict[str, str] = {}
    used: dict[str, str] = {}
    for name, (ways, environment) in commands.items():
        command, first = first_that_works(workspace, ways, environment)
        used[name] = command
        if name == TEST_RUN and first.exit == NO_TESTS:
            continue
        if not first.ok:
            skipped[name] = first.ending
            continue
        try:
            taken.append(
                workspace.measure(
                    name, command, sessions=SESSIONS, warmup=0, environment=environment, timeout_s=4 * LONGEST_S
                )
            )
        except CommandFailed as problem:
            skipped[name] = f"failed when repeated: {problem.ran.ending}"
    facts = {"commands": used, "not_timed": skipped}
    summary = f"{len(taken)} commands timed, {len(skipped)} not."
    if not taken and not skipped:
        return ProbeResult(probe=NAME, state=ProbeState.NOT_APPLICABLE, summary="There is nothing to time.")
    if not taken:
        reason = "; ".join(f"{name}: {why}" for name, why in skipped.items())
        return ProbeResult(probe=NAME, state=ProbeState.COULD_NOT_RUN, reason=reason, summary=summary, facts=facts)
    return ProbeResult(probe=NAME, state=ProbeState.PASSED, summary=summary, facts=facts, measurements=tuple(taken))


def first_that_works(workspace: Workspace, ways: tuple[str, ...], environment: Environment) -> tuple[str, Ran]:
    """The command and how it ended; of several ways to run the tests, the first that runs any, else the first."""
    found: list[tuple[str, Ran]] = []
    for way in ways:
        ran = workspace.run(way, environment=environment, timeout_s=LONGEST_S)
        if ran.timed_out or ran.oom or ran_tests(way, ran):
            return way, ran
        found.append((way, ran))
    return found[0]


def wanted(
    workspace: Workspace, repo: Repo, prepared: Prepared, tree: SourceTree
) -> dict[str, tuple[tuple[str, ...], Environment]]:
    """Name of the measurement -> command, or ways to run the same, and environment; in a stable order."""
    found: dict[str, tuple[tuple[str, ...], Environment]] = {}
    for name, command in repo.settings.benchmark.items():
        found[name] = ((command,), Environment.TEST)
    for command in documented(tree):
        found.setdefault(command, ((command,), Environment.TEST))
    for path in scripts(repo, tree):
        if not any(path in command for ways, _ in found.values() for command in ways):
            found[f"python {path}"] = ((f"python {shlex.quote(path)}",), Environment.TEST)
    if prepared.installed_test and (has_tests(repo) or repo.settings.test):
        found[TEST_RUN] = (timed_runs(repo, tree), Environment.TEST)
    if prepared.installed_plain:
        for program in programs(prepared)[:MOST_PROGRAMS]:
            extras = extras_needed(workspace, prepared, program.distribution, program.command)
            environment = Environment.TEST if extras else Environment.PLAIN
            found[f"{program.command} --help"] = ((f"cd /tmp\n{program.command} --help </dev/null",), environment)
    return found


def scripts(repo: Repo, tree: SourceTree) -> list[str]:
    """Plain scripts in a benchmark folder: they run something when started and ask for no arguments."""
    found = []
    for path in repo.files:
        if (
            path.endswith(".py")
            and path.startswith(FOLDERS)
            and not path.endswith(("__init__.py", "conftest.py", "asv.py"))
        ):
            text = tree.text(path)
            if "__main__" in text and not re.search(
                r"required=True|sys\.argv\[1\]|import pytest|class Time|def time_", text
            ):
                found.append(path)
    return found[:MOST_SCRIPTS]


def documented(tree: SourceTree) -> list[str]:
    """`python benchmarks/x.py ...` lines of README and docs."""
    pattern = re.compile(
        r"^\s*(?:[$>]\s+)?(python[\d.]*\s+(?:benchmarks?|bench|perf)/[\w./-]+\.py(?:\s+[\w./=-]+)*)\s*$"
    )
    found: list[str] = []
    for path in sorted(tree.tracked):
        if path.lower().endswith((".md", ".rst")) and ("/" not in path or path.startswith("docs/")):
            found.extend(match[1] for line in tree.text(path).splitlines() if (match := pattern.match(line)))
    files = [command for command in found if command.split()[1] in tree.tracked]
    return list(dict.fromkeys(files))[:MOST_SCRIPTS]
