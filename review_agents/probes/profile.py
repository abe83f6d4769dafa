"""A profile of the test run: the package's own hottest functions and the peak memory. Facts only."""

import json

from review_agents.ports import Workspace
from review_agents.probes.prepared import Prepared
from review_agents.probes.source_tree import SourceTree
from review_agents.probes.suites import read_report, with_report
from review_agents.probes.tests import has_tests
from review_agents.probes.within import InsideFailed, run_inside
from review_agents.records import Environment, ProbeResult, ProbeState, Repo

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
    # Whatever pytest's exit status, cProfile's is 0: the report says whether a test ran.
    command = f"rm -f {FILE}; {with_report(f'python -m cProfile -o {FILE} -m pytest', '-q', '-p', 'no:xdist')}"
    ran = workspace.run(command, environment=Environment.TEST, timeout_s=LIMIT_S)
    if ran.timed_out or ran.oom:
        return ProbeResult(probe=NAME, state=ProbeState.COULD_NOT_RUN, reason=f"the profiled test run {ran.ending}")
    if not any(case["outcome"] in RAN for case in read_report(workspace)):
        last = (ran.output.strip().splitlines() or [ran.ending])[-1].strip(" =!")
        reason = f"the profiled test run ran no test: {last[:200]}"
        return ProbeResult(probe=NAME, state=ProbeState.COULD_NOT_RUN, reason=reason)
    folders = own_folders(prepared, tree)
    try:
        said = run_inside(
            workspace, "read_profile", FILE, json.dumps(folders), environment=Environment.TEST, python="python"
        )
    except InsideFailed as problem:
        return ProbeResult(probe=NAME, state=ProbeState.COULD_NOT_RUN, reason=f"no profile was written: {problem}")
    functions = [{**entry, "file": tree.tracked_path(entry["file"]) or entry["file"]} for entry in said["functions"]]
    facts = {
        "command": "python -m pytest -q",
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
