"""Taking one session: a fresh process, or a few, timed inside a box, with what disturbed it noted from outside."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from orchestrator.sandbox import pressure
from orchestrator.sandbox.contract import Box, Patience
from review_agents.ports import CommandFailed
from review_agents.records import Environment, Ran, Session

REPEATS = 3  # how often a void session is tried again, while the review's patience lasts
WAIT_S = 0.3  # before a repeat; doubles each time
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Shares of a session; above them it is void."""

    pressure: float = 0.05
    foreign: float = 0.05
    steal: float = 0.01


USUAL = Tolerance()
STRICT = Tolerance(pressure=0.02, foreign=0.02)  # for verdicts


def no_figures(ran: Ran) -> Mapping[str, float]:
    return {}


class Stopwatch:
    """Takes sessions in one open box.

    cpus        the CPUs that the box is pinned to, for reading contention; empty: all of the machine
    patience    shared by all boxes of a review; None: as long as it takes
    """

    def __init__(
        self,
        box: Box,
        *,
        cpus: tuple[int, ...] = (),
        patience: Patience | None = None,
        tolerance: Tolerance = USUAL,
        cancelled: Callable[[], bool] | None = None,
        wait: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.box = box
        self.cpus = pressure.with_siblings(cpus)
        self.patience = patience or Patience(math.inf)
        self.tolerance = tolerance
        self.cancelled = cancelled
        self.wait = wait
        self.clock = clock

    def until_good(
        self,
        command: str,
        environment: Environment,
        timeout_s: float,
        *,
        processes: int = 1,
        figures: Callable[[Ran], Mapping[str, float]] = no_figures,
    ) -> list[Session]:
        """One session, and when it is void the repeats that patience covers; the last may be void too."""
        tried = [self.session(command, environment, timeout_s, processes=processes, figures=figures)]
        pause = WAIT_S
        while tried[-1].void and len(tried) <= REPEATS and self.patience.covers(pause + tried[-1].value * processes):
            started = self.clock()
            self.wait(pause)
            waited = self.clock() - started
            tried.append(self.session(command, environment, timeout_s, processes=processes, figures=figures))
            self.patience.spend(waited_s=waited, measured_s=self.clock() - started - waited)
            pause *= 2
        return tried

    def session(
        self,
        command: str,
        environment: Environment,
        timeout_s: float,
        *,
        processes: int = 1,
        figures: Callable[[Ran], Mapping[str, float]] = no_figures,
    ) -> Session:
        """So many fresh processes one after another, timed inside, and the contention around them.

        The session's numbers are the medians of its processes'. Raises `CommandFailed` when one does not exit 0.
        """
        count = pressure.cpu_count(self.cpus)
        before = pressure.read(self.cpus)
        runs, own = [], []
        for _ in range(processes):
            ran = self.box.run(command, environment=environment, timeout_s=timeout_s, cancelled=self.cancelled)
            if not ran.ok:
                raise CommandFailed(command, ran)
            runs.append(ran)
            own.append(figures(ran))
        after = pressure.read(self.cpus)
        own_s = sum(ran.user_s + ran.sys_s for ran in runs)
        runner_s = sum(ran.runner_s for ran in runs)  # is on the same CPUs, and no neighbour
        contention = pressure.between(before, after, own_s=own_s + runner_s, cpus=count)
        own_share = own_s / max(1e-9, sum(ran.seconds for ran in runs) * count)
        reason = contention.complaint(
            own_share=own_share,
            most_pressure=self.tolerance.pressure,
            most_foreign=self.tolerance.foreign,
            most_steal=self.tolerance.steal,
        )
        return Session(
            value=statistics.median(ran.seconds for ran in runs),
            void=bool(reason),
            reason=reason,
            pressure=contention.pressure,
            foreign=contention.foreign,
            user_s=statistics.median(ran.user_s for ran in runs),
            sys_s=statistics.median(ran.sys_s for ran in runs),
            peak_bytes=max(ran.peak_bytes for ran in runs),
            group_peak_bytes=largest([ran.group_peak_bytes for ran in runs]),
            instructions=middle([ran.instructions for ran in runs]),
            figures={name: statistics.median(one[name] for one in own) for name in common_names(own)},
        )


def largest(values: list[int | None]) -> int | None:
    """None as soon as one process was not counted."""
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None


def middle(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return int(statistics.median(known)) if known and len(known) == len(values) else None


def common_names(figures: list[Mapping[str, float]]) -> list[str]:
    """Figures that every process gave, sorted."""
    return sorted(set.intersection(*(set(one) for one in figures))) if figures else []
