"""The plain-code checks, one file each, all through the Workspace port.

`prepare.prepare` runs first, in an install box. Then each of `ALL` runs in a step box of its own, in this order.
"""

import importlib
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from review_agents.ports import Workspace
from review_agents.probes.prepare import Prepared, prepare
from review_agents.records import ProbeResult, ProbeState, Repo

__all__ = ["ALL", "Prepared", "Probe", "prepare", "run_probe"]


@dataclass(frozen=True, slots=True)
class Probe:
    """One check. `run` never raises for what the repo does; if it raises, that is our bug."""

    name: str
    run: Callable[[Workspace, Repo, Prepared], ProbeResult]


# In the order in which they run: what others build on first, what takes longest last.
MODULES: tuple[str, ...] = (
    "wheel",
    "dependencies",
    "entry_points",
    "examples",
    "doctests",
    "options",
    "misuse",
    "reviewer_text",
    "imports",
    "tests",
    "other_languages",
    "profile",
    "benchmarks",
)


def _load(name: str) -> Probe:
    module = importlib.import_module(f"review_agents.probes.{name}")
    return Probe(module.NAME, module.probe)


ALL: tuple[Probe, ...] = tuple(_load(name) for name in MODULES)


def run_probe(probe: Probe, workspace: Workspace, repo: Repo, prepared: Prepared) -> ProbeResult:
    """The probe's result with its seconds. An exception is our bug and says nothing about the repo."""
    started = time.monotonic()
    try:
        result = probe.run(workspace, repo, prepared)
    except Exception as problem:
        result = ProbeResult(
            probe=probe.name,
            state=ProbeState.COULD_NOT_RUN,
            reason=f"our bug: {type(problem).__name__}: {problem}",
            log=traceback.format_exc(),
        )
    return result.model_copy(update={"seconds": round(time.monotonic() - started, 2)})
