"""A review's steps as a reader wants them: named in words, the many small proofs gathered into one line."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from orchestrator.services.views import StepRow, StepState

TITLES = {
    "checkout": "Check out",
    "prepare": "Install from scratch",
    "merge": "Compare with earlier nights",
    "record": "Write down",
}
GATHERED = {"verify": "Prove findings in fresh sandboxes", "measure": "Measure"}


@dataclass(frozen=True, slots=True)
class Stop:
    title: str
    state: StepState
    seconds: float | None
    said: str
    step_id: UUID | None  # None for several steps in one line


def stops(steps: Sequence[StepRow], now: datetime) -> list[Stop]:
    found: list[Stop] = []
    gathered: set[str] = set()
    for step in steps:
        family = step.name.partition(":")[0]
        alike = [other for other in steps if other.name.startswith(f"{family}:")] if family in GATHERED else []
        if len(alike) < 2:
            found.append(stop(step, now))
        elif family not in gathered:
            gathered.add(family)
            found.append(together(GATHERED[family], alike, now))
    return found


def stop(step: StepRow, now: datetime) -> Stop:
    ended_badly = step.state in (StepState.FAILED, StepState.SKIPPED)
    said = (step.reason or step.summary) if ended_badly else (step.summary or step.reason)
    if step.state is StepState.WAITING_FOR_NODE:
        said = f"waiting for node: {said}".removesuffix(": ")
    elif step.attempt > 1:
        said = f"{said} (attempt {step.attempt})".strip()
    return Stop(title_of(step.name), step.state, seconds_of(step, now), said, step.id)


def together(title: str, steps: Sequence[StepRow], now: datetime) -> Stop:
    ended = [step for step in steps if step.state in (StepState.DONE, StepState.FAILED, StepState.SKIPPED)]
    seconds = [took for step in steps if (took := seconds_of(step, now)) is not None]
    if len(ended) == len(steps):
        state = StepState.FAILED if any(step.state is StepState.FAILED for step in steps) else StepState.DONE
    elif ended or any(step.state is StepState.RUNNING for step in steps):
        state = StepState.RUNNING
    else:
        state = StepState.PENDING
    return Stop(title, state, sum(seconds) if seconds else None, f"{len(ended)} of {len(steps)}", None)


def title_of(name: str) -> str:
    """`probe:readme` is "Probe readme"; steps of the service have names in words."""
    family, _, rest = name.partition(":")
    if name in TITLES:
        return TITLES[name]
    if family == "verify" and rest:
        return f"Prove {rest[:8]}"
    return f"{family.capitalize()} {rest.replace('_', ' ')}" if rest else family.capitalize()


def seconds_of(step: StepRow, now: datetime) -> float | None:
    if step.state is StepState.RUNNING and step.started_at is not None:
        return max(0.0, (now - step.started_at).total_seconds())
    return step.seconds
