"""In which order sessions are taken, how often, how long each is, and what they are worth. Decides only.

A session is one or a few fresh processes of one side. The sides alternate A B B A, so that a machine that slowly
warms up or slows down touches both alike.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from orchestrator.measure.records import Block, Metric, Side, Taken, Unit
from review_agents.records import Session

QUARTETS = {Block.SCREEN: 3, Block.CONFIRM: 5}  # A B B A so many times: 6 + 6 and 10 + 10
PATTERN = (Side.BASE, Side.HEAD, Side.HEAD, Side.BASE)
LEAST_SESSION_S = 0.1  # shorter commands are started several times in one session
MOST_PROCESSES = 8
WALL, MEMORY, INSTRUCTIONS = "", "peak memory", "instructions"
TIME_FLOOR_S = 0.001  # wall time of a process that moved less has not moved
FIGURE_FLOOR_S = 1e-9  # figures of a benchmark's own are averaged inside
MEMORY_FLOOR_BYTES = float(1 << 20)
BOX_S = 0.02  # what a command costs beside its own time


@dataclass(frozen=True, slots=True)
class Turn:
    """One place of a block."""

    block: Block
    place: int
    side: Side

    @property
    def seed(self) -> int:
        """For PYTHONHASHSEED: fixed, the same for both sides of a pair, and another one for the next pair."""
        return 1 + self.place // 2 + (1000 if self.block is Block.CONFIRM else 0)


def turns(block: Block) -> Iterator[Turn]:
    """All places of the block in order."""
    for place, side in enumerate(PATTERN * QUARTETS[block]):
        yield Turn(block, place, side)


def sessions_each(block: Block) -> int:
    return 2 * QUARTETS[block]


def processes(run_s: float) -> int:
    """How many fresh processes make a session of a command that takes so long."""
    return max(1, min(MOST_PROCESSES, math.ceil(LEAST_SESSION_S / max(run_s, 1e-3))))


def seconds(block: Block, run_s: float) -> float:
    """What the block takes when nothing disturbs it."""
    return 2 * sessions_each(block) * processes(run_s) * (run_s + BOX_S)


def affordable(run_s: Sequence[float], left_s: float) -> list[bool]:
    """Which benchmarks (their times for one run, in order of importance) are screened in so many seconds.

    Half of the time is kept for the second block, which takes two thirds more than the first.
    """
    chosen, spent = [], 0.0
    for one in run_s:
        takes = seconds(Block.SCREEN, one)
        fits = spent + takes <= left_s / 2
        spent += takes if fits else 0.0
        chosen.append(fits)
    return chosen


def contaminated(taken: Sequence[Taken]) -> str:
    """Why the block gives no number; empty when every place has a good session."""
    last = {one.place: one for one in taken}
    void = [one for one in last.values() if one.session.void]
    if not void:
        return ""
    tries = void[0].attempt
    times = "once" if tries == 1 else f"{tries} times"
    return f"a session was void {times} ({void[0].session.reason})"


def values(taken: Sequence[Taken], block: Block, side: Side, metric: Metric) -> list[float]:
    """The metric in the good sessions of one side, as far as they have it."""
    sessions = [one.session for one in taken if one.block is block and one.side is side and not one.session.void]
    return [value for session in sessions if (value := value_of(session, metric)) is not None]


def value_of(session: Session, metric: Metric) -> float | None:
    if metric.name == WALL:
        return session.value
    if metric.name == MEMORY:
        return float(session.group_peak_bytes or session.peak_bytes) or None
    if metric.name == INSTRUCTIONS:
        return float(session.instructions) if session.instructions else None
    return session.figures.get(metric.name)


def alone(taken: Sequence[Taken], metric: Metric) -> tuple[Taken, ...]:
    """With this one figure: each of a benchmark's many would else be kept, and read again, with all the others."""
    return tuple(
        replace(one, session=one.session.model_copy(update={"figures": only_figure(one.session, metric)}))
        for one in taken
    )


def only_figure(session: Session, metric: Metric) -> dict[str, float]:
    return {name: value for name, value in session.figures.items() if name == metric.name}


def metrics(taken: Sequence[Taken]) -> list[Metric]:
    """What these sessions allow to compare: their own figures, else the wall time; memory and instructions beside.

    Where a benchmark times itself, its whole process mostly measures imports.
    """
    good = [one.session for one in taken if not one.session.void]
    if not good:
        return [Metric(WALL, Unit.SECONDS, TIME_FLOOR_S)]
    figures = [name for name in good[0].figures if all(name in session.figures for session in good)]
    found = [Metric(name, Unit.SECONDS, FIGURE_FLOOR_S) for name in sorted(figures)]
    found = found or [Metric(WALL, Unit.SECONDS, TIME_FLOOR_S)]
    found += [Metric(MEMORY, Unit.BYTES, MEMORY_FLOOR_BYTES)]
    found += [Metric(INSTRUCTIONS, Unit.INSTRUCTIONS, 0.0)] if all(session.instructions for session in good) else []
    return [metric for metric in found if all(value_of(session, metric) is not None for session in good)]


def series_name(benchmark: str, metric: Metric) -> str:
    return f"{benchmark}: {metric.name}" if metric.name else benchmark
