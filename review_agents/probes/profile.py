"""A profile of the test run: the package's own hottest functions and the peak memory. Facts only."""

import json

from review_agents.ports import Workspace
from review_agents.probes.prepared import Prepared
from review_agents.probes.source_tree import SourceTree
from review_agents.probes.suite_commands import is_pytest, profiled, ran_tests, single_runs
from review_agents.probes.suites import read_report, with_report
from review_agents.probes.tests import has_tests
from review_agents.probes.within import InsideFailed, run_inside, send
from review_agents.records import Environment, ProbeResult, ProbeState, Ran, Repo

NAME = "profile"
LIMIT_S = 300.0
RAN = ("passed", "failed", "xfailed")
WORTH_NAMING = 0.01  # of the profiled time
FILE = "/tmp/lamplighter.prof"


def probe(workspace: Workspace, repo: Repo, prepared: Prepared) -> ProbeResult:
    if prepared.not_installed and has_tests(repo):
        return ProbeResult(probe=NAME, state=ProbeState.COULD_NOT_RUN, reason=prepared.not_installed)
    if not prepared.distributions or not has_tests(repo):
        return ProbeResult(probe=NAME, state=ProbeState.NOT_APPLICABLE, summary="There is no test run to profile.")
    if not prepared.installed_test:
        return ProbeResult(probe=NAME, state=ProbeState.COULD_NOT_RUN, reason="the tests could not be installed")
    tree = SourceTree(workspace, repo, prepared)
    found = profiled_run(workspace, repo, prepared, tree)
    if isinstance(found, str):
        return ProbeResult(probe=NAME, state=ProbeState.COULD_NOT_RUN, reason=f"the profiled test run {found}")
    command, ran = found
    folders = own_folders(prepared, tree)
    try:
        said = run_inside(
            workspace, "read_profile", FILE, json.dumps(folders), environment=Environment.TEST, python="python"
        )
    except InsideFailed as problem:
        return ProbeResult(probe=NAME, state=ProbeState.COULD_NOT_RUN, reason=f"no profile was written: {problem}")
    functions = [{**entry, "file": tree.tracked_path(entry["file"]) or entry["file"]} for entry in said["functions"]]
    facts = {
        "command": command,
        "seconds": round(said["seconds"], 3),
        "own_seconds": round(said["own_seconds"], 3),
        "functions": functions,
        "peak_bytes": ran.peak_bytes,
    }
    summary = f"{said['seconds']:.1f} s profiled, {said['own_seconds']:.1f} s of it in the package's own code"
    if functions and functions[0]["share"] >= WORTH_NAMING:
        hottest = functions[0]
        summary += f"; hottest is {hottest['function']} in {hottest['file']} with {hottest['share'] * 100:.0f} %"
    return ProbeResult(probe=NAME, state=ProbeState.PASSED, summary=f"{summary}.", facts=facts)


def profiled_run(workspace: Workspace, repo: Repo, prepared: Prepared, tree: SourceTree) -> tuple[str, Ran] | str:
    """The first way of running the tests that runs any under the profiler, and how it ended; else what hindered it."""
    runner = send(workspace, "profile_script")
    serial = ("-n0",) if "pytest-xdist" in prepared.resolved_test else ()  # other processes are not seen
    why = ""
    for way in single_runs(repo, tree):
        if not (command := profiled(way, runner=runner, target=FILE)):
            continue
        if is_pytest(way):
            command = with_report(command, "-q", *serial)
        ran = workspace.run(f"rm -f {FILE}; {command}", environment=Environment.TEST, timeout_s=LIMIT_S)
        if ran.timed_out or ran.oom:
            return ran.ending
        # Whatever pytest's exit status, cProfile's is 0: the report says whether a test ran.
        if any(case["outcome"] in RAN for case in read_report(workspace)) if is_pytest(way) else ran_tests(way, ran):
            return f"{way} -q" if is_pytest(way) else way, ran
        last = (ran.output.strip().splitlines() or [ran.ending])[-1].strip(" =!")
        why = why or f"ran no test: {last[:200]}"
    return why


def own_folders(prepared: Prepared, tree: SourceTree) -> list[str]:
    """Folders, or single files, of the package: the tree's for an editable installation, else those installed."""
    found = []
    for one in prepared.distributions:
        for package in one.import_packages:
            folder = tree.folder_of(one, package)
            found.extend([f"/job/repo/{folder}"] if folder else [])
            version = ".".join(prepared.python.split(".")[:2])
            installed = f"/venv/test/lib/python{version}/site-packages/{package.replace('.', '/')}"
            found += [installed, f"{installed}.py"]
    return found
