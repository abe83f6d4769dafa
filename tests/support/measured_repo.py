"""A small repo with a history of speed, and a workshop that measures it for real, on machines of any restlessness.

Each commit is a version of one function, installed by copying it into environments without pip. The gate lets
everything pass and the change is large: verdicts must not depend on who else works on the machine of the tests.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator import wiring
from orchestrator.measure.records import Rule
from orchestrator.sandbox.contract import Box, Patience, Sandbox
from orchestrator.sandbox.stopwatch import Stopwatch, Tolerance
from orchestrator.services.workshop import Workshop
from orchestrator.settings import Settings
from orchestrator.store.session import Sessions
from review_agents.ports import Workspace
from review_agents.probes.prepared import Distribution, Prepared
from review_agents.records import Environment, ProbeResult, ProbeState, Repo
from tests.support.boxes import git

LENIENT = Rule(most_drift=1e9)
ANYTHING = Tolerance(pressure=2.0, foreign=2.0, steal=2.0)

BENCH = """
import time
import tortoise

start = time.process_time()
for _ in range(60):
    tortoise.walk(4000)
print("walk: %.9f s" % ((time.process_time() - start) / 60))
"""
FILES = {
    "pyproject.toml": '[project]\nname = "tortoise"\nversion = "1.0"\n',
    "bench.py": BENCH,
    ".lamplighter.toml": '[benchmark]\nwalk = "python bench.py"\n',
    "README.md": "# tortoise\n",
}
PLAIN = "def walk(steps):\n    return sum(step & 7 for step in range(steps))\n"
SLOW = (
    "def walk(steps):\n    return sum(careful(step) for step in range(steps))\n\n\n"
    "def careful(step):\n    for _ in range(12):\n        step = step & 0xFFFF\n    return step & 7\n"
)


INSTALL = """
for name in plain test; do
    python3 -m venv --without-pip /venv/$name || exit
    place=$(/venv/$name/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    cp -r tortoise $place/ && mkdir $place/tortoise-1.0.dist-info || exit
    printf 'Metadata-Version: 2.1\\nName: tortoise\\nVersion: 1.0\\n' >$place/tortoise-1.0.dist-info/METADATA
done
"""


def install(workspace: Workspace, repo: Repo) -> tuple[Prepared, ProbeResult]:
    """What `prepare` comes to in the end, in a fraction of its time."""
    ran = workspace.run(INSTALL, environment=Environment.NONE)
    assert ran.ok, ran.output
    one = Distribution(name="tortoise", version="1.0", import_packages=("tortoise",))
    prepared = Prepared(
        python=f"{sys.version_info.major}.{sys.version_info.minor}.0",
        languages=("python",),
        distributions=(one,),
        installed_plain=True,
        installed_test=True,
    )
    return prepared, ProbeResult(probe="install", state=ProbeState.PASSED, summary="installed")


def commit(repo: Path, subject: str, files: Mapping[str, str]) -> str:
    """Write the files and commit everything; the commit's id."""
    if not (repo / ".git").exists():
        repo.mkdir(parents=True, exist_ok=True)
        git(repo, "init", "-q", "-b", "main")
    for name, text in files.items():
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(text, encoding="utf-8")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "--allow-empty", "-m", subject)
    return git(repo, "rev-parse", "HEAD").strip()


def history(repo: Path, versions: Sequence[tuple[str, str]]) -> list[str]:
    """One commit per (subject, text of the package), oldest first; their ids."""
    return [commit(repo, subject, {**FILES, "tortoise/__init__.py": text}) for subject, text in versions]


def lenient(shop: Workshop, *, rule: Rule = LENIENT) -> Workshop:
    """The same workshop with a gate that lets every session pass."""
    assert shop.measuring is not None

    def stopwatch(box: Box, patience: Patience) -> Stopwatch:
        return Stopwatch(box, patience=patience, tolerance=ANYTHING)

    return replace(shop, measuring=replace(shop.measuring, stopwatch=stopwatch, rule=rule, no_verdicts=""))


def measuring_shop(sessions: Sessions, settings: Settings, sandbox: Sandbox, **changed: Any) -> Workshop:
    """A worker's workshop without probes, whose gate lets everything pass."""
    shop = lenient(wiring.with_sandbox(replace(wiring.service(settings), sessions=sessions), sandbox))
    given: dict[str, Any] = {
        "probes": (),
        "prepare": install,
        "chat": None,
        "nudge": lambda review: None,
    }
    return replace(shop, **{**given, **changed})
