"""A real worker, beat or web process for the stage of fault cases: python -m tests.support.stage_process worker

Everything is the service's own but the checks (the tiny review's) and some pauses, which are shorter so that a case
takes seconds. A worker can be held up in a step: the file CONTROL/hold names the step (the beginning of its name) and
when (`before` its work, `box` with its first box open, `after` its work and before its row is written, or `ended`).
It then renames the file to `held` and waits for a file `go`, or to be killed.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator import logs, wiring
from orchestrator.cli.processes import web
from orchestrator.clients.inference import HttpChatModel
from orchestrator.jobs import app as jobs
from orchestrator.services import running
from orchestrator.services.job import Job, Outcome, StepRun
from orchestrator.services.workshop import Workshop
from orchestrator.settings import Settings, load
from review_agents.ports import Workspace
from review_agents.probes import Prepared
from review_agents.records import ProbeResult, Repo
from tests.support import measured_repo, tiny
from tests.support.measured_repo import LENIENT, lenient

CONTROL, TOLD = "control", "told"  # a folder below the data folder; a file in it: the worker told its child to end
PATIENCE_S = 600.0
NOTHING_MOVES = replace(LENIENT, least_effect=1e9)  # what is timed beside a fault says nothing about speed


def main() -> None:
    settings = load()
    kind = sys.argv[1]
    if kind == "web":
        web()
        return
    logs.configure(settings, kind)
    running.RETRY_AFTER_S = running.NODE_AGAIN_S = 1.0
    jobs.TICK_EVERY_S, jobs.REPORT_EVERY_S = 1.5, 1.0
    if kind == "beat":
        jobs.run_beat(settings)
        return
    hold_up(settings.data / CONTROL)
    say_when_told(settings.data / CONTROL)
    jobs.run_worker(settings, build=build)


def build(settings: Settings, **more: Any) -> Workshop:
    def chat() -> HttpChatModel:
        return HttpChatModel(settings.model_url, settings.model_name, pause_s=0.3, silence_s=8.0)

    shop = lenient(wiring.worker(settings, **more), rule=NOTHING_MOVES)
    return replace(shop, prepare=prepare, probes=tiny.PROBES, chat=chat)


def prepare(workspace: Workspace, repo: Repo) -> tuple[Prepared, ProbeResult]:
    """The tiny review's, or the measured repo's where there is something to time."""
    measured = "tortoise/__init__.py" in repo.files
    return measured_repo.install(workspace, repo) if measured else tiny.prepare(workspace, repo)


def hold_up(control: Path) -> None:
    do_step, open_box = Job.step, StepRun.open

    def open_and_wait(run: StepRun, **order: Any) -> Any:
        box = open_box(run, **order)
        wait(control, run.name, "box")
        return box

    def step_with_pauses(self: Job, name: str, work: Callable[[StepRun], Outcome], *, redo: bool = False) -> Any:
        def paused(run: StepRun) -> Outcome:
            wait(control, name, "before")
            outcome = work(run)
            wait(control, name, "after")
            return outcome

        result = do_step(self, name, paused, redo=redo)
        wait(control, name, "ended")
        return result

    Job.step = step_with_pauses  # type: ignore[method-assign]
    StepRun.open = open_and_wait  # type: ignore[method-assign]


def say_when_told(control: Path) -> None:
    tell = jobs.tell_children_to_end

    def tell_and_say() -> None:
        tell()
        (control / TOLD).write_text("")

    jobs.tell_children_to_end = tell_and_say


def wait(control: Path, step: str, when: str) -> None:
    """Where that is asked for; whoever renames the file is the one who waits."""
    asked = control / "hold"
    try:
        wanted_step, wanted_when = asked.read_text().split()
    except (FileNotFoundError, ValueError):
        return
    if not step.startswith(wanted_step) or when != wanted_when:
        return
    asked.rename(control / "held")
    give_up = time.monotonic() + PATIENCE_S
    while not (control / "go").exists() and time.monotonic() < give_up:
        time.sleep(0.05)


if __name__ == "__main__":
    main()
