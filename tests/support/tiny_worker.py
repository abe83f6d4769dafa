"""A real worker process on a real queue whose reviews are tiny, and which can be held up in any step.

    python -m tests.support.tiny_worker DATA [STEP WHEN]

With STEP (the beginning of its name) it stops there, WHEN being `before` its work, `box` (with its first box open),
`after` its work (nothing of the step is written yet), or `ended` (the step's row is done); it then writes DATA/held
and waits to be killed. A second worker on the same DATA finds that file and goes on.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator import logs, wiring
from orchestrator.jobs.app import run_worker
from orchestrator.services.job import Job, Outcome, StepRun
from orchestrator.services.workshop import Workshop
from orchestrator.settings import Settings, load
from orchestrator.store import migrate
from tests.support import tiny


def main() -> None:
    data = Path(sys.argv[1])
    settings = load(data=data)
    logs.configure(settings, "tiny worker")
    migrate.upgrade(settings.database)
    if len(sys.argv) > 3:
        hold_up(data / "held", sys.argv[2], sys.argv[3])
    run_worker(settings, build=build)


def build(settings: Settings, **more: Any) -> Workshop:
    return replace(wiring.worker(settings, **more), prepare=tiny.prepare, probes=tiny.PROBES)


def hold_up(held: Path, step: str, when: str) -> None:
    """Make every step of that name wait for ever, once."""
    do_step, open_box = Job.step, StepRun.open

    def open_and_wait(run: StepRun, **order: Any) -> Any:
        box = open_box(run, **order)
        if run.name.startswith(step) and not held.exists():
            wait(held)
        return box

    def step_with_pauses(self: Job, name: str, work: Callable[[StepRun], Outcome], *, redo: bool = False) -> Any:
        here = name.startswith(step) and not held.exists()

        def paused(run: StepRun) -> Outcome:
            if here and when == "before":
                wait(held)
            outcome = work(run)
            if here and when == "after":
                wait(held)
            return outcome

        result = do_step(self, name, paused, redo=redo)
        if here and when == "ended":
            wait(held)
        return result

    Job.step = step_with_pauses  # type: ignore[method-assign]
    if when == "box":
        StepRun.open = open_and_wait  # type: ignore[method-assign]


def wait(held: Path) -> None:
    held.write_text("")
    time.sleep(600)


if __name__ == "__main__":
    main()
