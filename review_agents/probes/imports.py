"""What `import PACKAGE` costs and what it does beside giving a name.

Costs are facts and measurements; only a large share that the package's own code causes is a finding, because the time
of a third party's library is not the package's own.
"""

import re
import shlex
from typing import Any

from review_agents.ports import CommandFailed, Workspace
from review_agents.probes.prepared import Distribution, Prepared
from review_agents.probes.source_tree import SourceTree
from review_agents.probes.tracebacks import last_traceback
from review_agents.probes.within import InsideFailed, run_inside
from review_agents.records import (
    Candidate,
    Environment,
    Kind,
    Measurement,
    Place,
    ProbeResult,
    ProbeState,
    Repo,
    Reproduction,
    Severity,
    Symptom,
)

NAME = "imports"
SESSIONS = 6
MOST_PACKAGES = 4
# From here on the package's own share of an import is claimed to be a fault. The proof asks for a little less, so that
# what is near the limit is not proved in one night and disproved in the next.
OWN_SECONDS, OWN_BYTES = 0.2, 20 * 1024 * 1024
PROVED_MS = 150
IMPORT_LINE = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \| (\s*)([\w.]+)")


def probe(workspace: Workspace, repo: Repo, prepared: Prepared) -> ProbeResult:
    packages = [(one, name) for one in prepared.distributions for name in one.import_packages if is_public(name)]
    if not packages:
        reason = prepared.not_installed
        state = ProbeState.COULD_NOT_RUN if reason else ProbeState.NOT_APPLICABLE
        return ProbeResult(probe=NAME, state=state, reason=reason, summary="There is nothing to import.")
    tree = SourceTree(workspace, repo, prepared)
    measurements = [measured(workspace, "bare interpreter start", "python -I -c pass")]
    candidates: list[Candidate] = []
    facts: dict[str, Any] = {}
    for one, name in packages[:MOST_PACKAGES]:
        seen = watch(workspace, name)
        facts[name] = seen
        if seen.get("error"):
            candidates.extend(broken_import(workspace, one, name, tree))
            continue
        measurements.append(measured(workspace, f"import {name}", f"python -I -c {shlex.quote(f'import {name}')}"))
        seen["own_seconds"], seen["slowest_own"] = own_seconds(workspace, name)
        candidates.extend(costly(workspace, one, name, seen, tree))
        candidates.extend(printing(workspace, name, seen, tree))
    good = tuple(filter(None, measurements))
    failed = {name: str(seen["error"]) for name, seen in facts.items() if seen.get("error")}
    reason = "; ".join(f"import {name}: {error}" for name, error in failed.items())
    state = ProbeState.FAILED if candidates else ProbeState.PASSED
    if not candidates and len(failed) == len(facts):
        state = ProbeState.COULD_NOT_RUN  # none could be imported, and not by a fault of the package that is proved
    return ProbeResult(
        probe=NAME,
        state=state,
        reason=reason,
        summary=summary_of(good),
        facts=facts,
        candidates=tuple(candidates),
        measurements=good,
    )


def is_public(name: str) -> bool:
    return not name.startswith("_") and name.split(".")[-1] not in ("tests", "test", "conftest", "setup")


def measured(workspace: Workspace, name: str, command: str) -> Measurement | None:
    try:
        return workspace.measure(
            name, command, sessions=SESSIONS, warmup=1, environment=Environment.PLAIN, timeout_s=60
        )
    except CommandFailed:
        return None


def summary_of(measurements: tuple[Measurement, ...]) -> str:
    parts = [f"{one.name} {one.median * 1000:.0f} ms" for one in measurements if one.median is not None]
    return ", ".join(parts) + "." if parts else "Every sample was void."


def watch(workspace: Workspace, name: str) -> dict[str, Any]:
    try:
        return dict(
            run_inside(workspace, "watch_import", name, environment=Environment.PLAIN, python="python", timeout_s=360)
        )
    except InsideFailed as problem:
        return {"error": str(problem)}


def own_seconds(workspace: Workspace, name: str) -> tuple[float, str]:
    """Least own time of three imports, in seconds of the package's own modules alone, and the slowest of those.

    Only the share of time in which the process had a processor counts: on a busy machine the rest is its neighbours'.
    """
    takes = []
    for _ in range(3):
        ran = workspace.run(
            f"python -I -X importtime -c {shlex.quote(f'import {name}')}", environment=Environment.PLAIN, timeout_s=60
        )
        times = {match[4]: int(match[1]) / 1e6 for match in IMPORT_LINE.finditer(ran.output)}
        own = {module: seconds for module, seconds in times.items() if module == name or module.startswith(f"{name}.")}
        if own:
            ran_share = min(1.0, (ran.user_s + ran.sys_s) / ran.seconds) if ran.seconds else 1.0
            takes.append((sum(own.values()) * ran_share, max(own, key=lambda module: own[module])))
    return min(takes) if takes else (0.0, "")


def broken_import(workspace: Workspace, one: Distribution, name: str, tree: SourceTree) -> list[Candidate]:
    """The package cannot be imported after a plain installation. What is undeclared is another probe's finding."""
    command = f'cd "$(mktemp -d)"\npython -c {shlex.quote(f"import {name}")}'
    ran = workspace.run(command, environment=Environment.PLAIN, timeout_s=60)
    raised = last_traceback(ran.output)
    if ran.ok or raised is None or raised.surroundings or raised.type == "ModuleNotFoundError":
        return []
    folder = tree.folder_of(one, name)
    paths = [path for frame in reversed(raised.frames) if (path := tree.tracked_path(frame.file))]
    path = paths[0] if paths else (f"{folder}/__init__.py" if folder and not folder.endswith(".py") else folder)
    if path not in tree.tracked:
        return []
    line = next((frame.line for frame in reversed(raised.frames) if tree.tracked_path(frame.file) == path), None)
    return [
        Candidate(
            kind=Kind.PACKAGING,
            rule="import.fails",
            title=f"`import {name}` fails after `pip install .`: {raised.text[:120]}",
            description=(
                f"In a fresh environment with nothing but {one.name} and its dependencies, `import {name}` ends with "
                f"{raised.text}."
            ),
            severity=Severity.CRITICAL,
            places=(tree.place(path, line),),
            reproduction=Reproduction(
                command=command,
                expected="the import works",
                observed=raised.text,
                symptom=Symptom(nonzero=True, contains=("Traceback", raised.type)),
            ),
            shape=raised.shape,
        )
    ]


TIMED = """python - <<'EOF'
import re, resource, subprocess, sys, time
command = [sys.executable, "-I", "-X", "importtime", "-c", "import {name}"]
takes = []
for _ in range(3):
    used, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    said = subprocess.run(command, capture_output=True, text=True).stderr
    wall, now = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    on_a_processor = min(1, (now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime) / wall)
    times = re.findall(r"import time:\\s+(\\d+) \\|\\s+\\d+ \\|\\s+([\\w.]+)", said)
    own = [int(us) for us, module in times if module == "{name}" or module.startswith("{name}.")]
    takes.append(sum(own) / 1000 * on_a_processor)
print(f"own import time: {{min(takes):.0f}} ms")
sys.exit(min(takes) > {limit_ms})
EOF"""

WEIGHED = """cd "$(mktemp -d)"
python - <<'EOF'
import os, sys, tracemalloc
tracemalloc.start(8)
import {name}
own = 0
for stat in tracemalloc.take_snapshot().statistics("traceback"):
    files = [frame.filename for frame in stat.traceback]
    ours = [at for at, file in enumerate(files) if file.startswith(os.path.dirname({name}.__file__))]
    if ours and not any("importlib" in file or "site-packages" in file for file in files[ours[-1] + 1 :]):
        own += stat.size / 1048576
print(f"own memory after the import: {{own:.1f}} MiB")
sys.exit(own > {limit_mib})
EOF"""


def costly(
    workspace: Workspace, one: Distribution, name: str, seen: dict[str, Any], tree: SourceTree
) -> list[Candidate]:
    """An import whose own code takes long or keeps much memory; where one statement does both it is one finding."""
    slow = seen["own_seconds"] > OWN_SECONDS
    large = seen.get("own_bytes", 0) > OWN_BYTES and bool(seen["largest"])
    ms, mib = seen["own_seconds"] * 1000, seen.get("own_bytes", 0) / 1048576
    found = []
    if slow:
        place = slowest_place(workspace, one, seen["slowest_own"], tree)
        if place and not (large and tree.tracked_path(seen["largest"][0]["file"]) != place.file):
            kept = f" and keeps {mib:.0f} MiB of memory" if large else ""
            found.append(slow_import(name, ms, kept, place))
            large = False
        elif place:
            found.append(slow_import(name, ms, "", place))
    if large:
        path = tree.tracked_path(seen["largest"][0]["file"])
        if path:
            found.append(heavy_import(name, mib, tree.place(path, seen["largest"][0]["line"])))
    return found


def slow_import(name: str, ms: float, kept: str, place: Place) -> Candidate:
    what = f"`{place.symbol}` in {place.file}" if place.symbol else place.file
    return Candidate(
        kind=Kind.PERFORMANCE,
        rule="import.slow",
        title=f"`import {name}` takes {ms:.0f} ms of the package's own time{kept}, most of it for {what}",
        description=(
            f"Third-party modules not counted, importing `{name}` takes {ms:.0f} ms{kept}. Most of it is work at "
            f"module level in {place.file} ({place.quote[:80]!r}), done at import whether it is needed or not. Every "
            "program that imports the package, and each of its own commands, pays that at start."
        ),
        severity=Severity.MEDIUM,
        places=(place,),
        reproduction=Reproduction(
            command=TIMED.format(name=name, limit_ms=PROVED_MS),
            expected=f"at most {PROVED_MS} ms",
            observed=f"{ms:.0f} ms",
            symptom=Symptom(exit=1, contains=("own import time",)),
        ),
        shape="slow import",
    )


def heavy_import(name: str, mib: float, place: Place) -> Candidate:
    what = f"`{place.symbol}` in {place.file}" if place.symbol else place.file
    return Candidate(
        kind=Kind.PERFORMANCE,
        rule="import.memory",
        title=f"`import {name}` alone keeps {mib:.0f} MiB of memory, most of it for {what}",
        description=(
            f"After nothing but `import {name}`, {mib:.0f} MiB that the package's own code allocated stay in use, most "
            f"of them from {place.file} ({place.quote[:80]!r}) at module level."
        ),
        severity=Severity.MEDIUM,
        places=(place,),
        reproduction=Reproduction(
            command=WEIGHED.format(name=name, limit_mib=OWN_BYTES // 1048576),
            expected=f"at most {OWN_BYTES // 1048576} MiB",
            observed=f"{mib:.0f} MiB",
            symptom=Symptom(exit=1, contains=("own memory after the import",)),
        ),
        shape="import memory",
    )


def slowest_place(workspace: Workspace, one: Distribution, module: str, tree: SourceTree) -> Place | None:
    """The slowest statement of the module, or the module where that cannot be told."""
    place = module_place(one, module, tree)
    if place is None:
        return None
    try:
        said = run_inside(workspace, "slowest_statement", module, environment=Environment.PLAIN, python="python")
    except InsideFailed:
        return place
    return tree.place(place.file, said["line"]) if said["line"] else place


def module_place(one: Distribution, module: str, tree: SourceTree) -> Place | None:
    for package in one.import_packages:
        if module == package or module.startswith(f"{package}."):
            folder = tree.folder_of(one, package)
            inner = module[len(package) :].replace(".", "/")
            for path in (f"{folder}{inner}.py", f"{folder}{inner}/__init__.py", folder):
                if path in tree.tracked:
                    return tree.place(path)
    return None


def printing(workspace: Workspace, name: str, seen: dict[str, Any], tree: SourceTree) -> list[Candidate]:
    """A package that writes to standard output when it is imported breaks every pipe it is used in."""
    command = f'cd "$(mktemp -d)"\npython -c {shlex.quote(f"import {name}")} 2>/dev/null'
    if not seen.get("printed", "").strip():
        return []
    ran = workspace.run(command, environment=Environment.PLAIN, timeout_s=60)
    text = ran.output.strip()
    if not ran.ok or not text:
        return []
    first = text.splitlines()[0].strip()[:80]
    place = printing_place(first, name, tree)
    if place is None:
        return []
    return [
        Candidate(
            kind=Kind.USABILITY,
            rule="import.prints",
            title=f"`import {name}` prints {first!r} to standard output",
            description=(
                f"Merely importing `{name}` writes to standard output, from {place.file}. A program whose output is "
                "read by another one cannot use the package without cleaning that away."
            ),
            severity=Severity.LOW,
            places=(place,),
            reproduction=Reproduction(
                command=command,
                expected="no output",
                observed=text[:200],
                symptom=Symptom(exit=0, contains=(first,)),
            ),
            shape="prints",
        )
    ]


def printing_place(text: str, name: str, tree: SourceTree) -> Place | None:
    """The module-level print that says it, by the first words of the text."""
    words = re.findall(r"[A-Za-z]{3,}", text)
    for one in tree.prepared.distributions:
        folder = tree.folder_of(one, name) if name in one.import_packages else ""
        for path in sorted(
            path for path in tree.tracked if folder and path.startswith(folder) and path.endswith(".py")
        ):
            for number, line in enumerate(tree.text(path).splitlines(), start=1):
                if "print(" in line and words and words[0] in line:
                    return tree.place(path, number)
    return None
