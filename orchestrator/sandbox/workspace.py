"""What probes and agents are handed: a box as a `review_agents.ports.Workspace`."""

import math
import re
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.sandbox import pressure
from orchestrator.sandbox.contract import Box, Patience
from review_agents.ports import CommandFailed, Match
from review_agents.records import Environment, Measurement, Network, Ran, Session

MOST_PRESSURE = 0.05  # share of a session; above it the session is void
MOST_FOREIGN = 0.05
REPEATS = 3  # how often a void session is tried again, while the review's patience lasts
WAIT_S = 0.3  # before a repeat; doubles each time
IMPATIENT = "disturbed sessions were not all taken again: the review's patience for that was spent"
SEARCH_TIMEOUT_S = 60.0


@dataclass(slots=True)
class FoundLine:
    """One line that a search found."""

    file: str
    line: int
    text: str


class BoxWorkspace:
    """A Workspace over one open box.

    cpus        the CPUs that the box is pinned to, for reading contention; empty: all of the machine
    note        goes on each measurement, for example "node on this machine"
    patience    shared by all boxes of a review; None: as long as it takes
    on_output, cancelled    handed on to each command, see `contract.Box.run`
    """

    def __init__(
        self,
        box: Box,
        *,
        cpus: tuple[int, ...] = (),
        note: str = "",
        patience: Patience | None = None,
        on_output: Callable[[str], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
        wait: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.box = box
        self.cpus = cpus
        self.note = note
        self.patience = patience or Patience(math.inf)
        self.on_output = on_output
        self.cancelled = cancelled
        self.wait = wait
        self.clock = clock

    def run(
        self,
        command: str,
        *,
        environment: Environment = Environment.PLAIN,
        network: Network = Network.NONE,
        timeout_s: float = 120.0,
        stdin: str = "",
    ) -> Ran:
        return self.box.run(
            command,
            environment=environment,
            network=network,
            timeout_s=timeout_s,
            stdin=stdin,
            on_output=self.on_output,
            cancelled=self.cancelled,
        )

    def measure(
        self,
        name: str,
        command: str,
        *,
        sessions: int = 6,
        warmup: int = 1,
        environment: Environment = Environment.PLAIN,
        timeout_s: float = 120.0,
    ) -> Measurement:
        for _ in range(warmup):
            self.session(command, environment, timeout_s)
        taken: list[Session] = []
        notes = [self.note] if self.note else []
        for _ in range(sessions):
            tried = self.until_good(command, environment, timeout_s)
            taken += tried
            if tried[-1].void and len(tried) <= REPEATS and IMPATIENT not in notes:
                notes.append(IMPATIENT)
        return Measurement(name=name, command=command, sessions=tuple(taken), note="; ".join(notes))

    def until_good(self, command: str, environment: Environment, timeout_s: float) -> list[Session]:
        """One session, and when it is void the repeats that patience covers; the last may be void too."""
        tried = [self.session(command, environment, timeout_s)]
        pause = WAIT_S
        while tried[-1].void and len(tried) <= REPEATS and self.patience.covers(pause + tried[-1].value):
            started = self.clock()
            self.wait(pause)
            waited = self.clock() - started
            tried.append(self.session(command, environment, timeout_s))
            self.patience.spend(waited_s=waited, measured_s=self.clock() - started - waited)
            pause *= 2
        return tried

    def session(self, command: str, environment: Environment, timeout_s: float) -> Session:
        """One fresh process, timed inside, with the contention around it. Raises `CommandFailed`."""
        count = pressure.cpu_count(self.cpus)
        before = pressure.read(self.cpus)
        ran = self.box.run(command, environment=environment, timeout_s=timeout_s, cancelled=self.cancelled)
        after = pressure.read(self.cpus)
        if not ran.ok:
            raise CommandFailed(command, ran)
        own_s = ran.user_s + ran.sys_s
        contention = pressure.between(before, after, own_s=own_s, cpus=count)
        own_share = own_s / max(1e-9, ran.seconds * count)
        reason = contention.complaint(own_share=own_share, most_pressure=MOST_PRESSURE, most_foreign=MOST_FOREIGN)
        return Session(
            value=ran.seconds,
            void=bool(reason),
            reason=reason,
            pressure=contention.pressure,
            user_s=ran.user_s,
            sys_s=ran.sys_s,
            peak_bytes=ran.peak_bytes,
        )

    def read(self, path: str, *, limit_bytes: int = 1_000_000) -> str:
        return self.box.read(path, limit_bytes=limit_bytes).decode("utf-8", errors="replace")

    def list(self, folder: str = ".") -> tuple[str, ...]:
        return self.box.list(folder)

    def search(self, pattern: str, *, folder: str = ".", limit: int = 200) -> tuple[Match, ...]:
        """Raises ValueError when the pattern is no extended regular expression."""
        quoted = shlex.quote(pattern)
        # The first line tells a bad pattern from a search that finds nothing.
        script = (
            f"grep -E -e {quoted} /dev/null; test $? -eq 2 && exit 2\n"
            f"grep -rnIsZE --exclude-dir=.git -e {quoted} -- {shlex.quote(folder)} | head -n {limit}\nexit 0"
        )
        ran = self.box.run(script, environment=Environment.NONE, timeout_s=SEARCH_TIMEOUT_S, cancelled=self.cancelled)
        if ran.exit == 2:
            raise ValueError(f"{pattern!r} is no extended regular expression: {ran.output.strip()[-200:]}")
        return tuple(found_lines(ran.head))

    def write(self, path: str, text: str) -> None:
        self.box.write(path, text.encode("utf-8", "surrogateescape"))


def found_lines(output: str) -> list[FoundLine]:
    """grep's `FILE NUL LINE:TEXT` lines, sorted by place."""
    lines = []
    for line in output.split("\n"):
        match = re.fullmatch(r"(?s)([^\0]+)\0(\d+):(.*)", line)
        if match:
            lines.append(FoundLine(match[1].removeprefix("./"), int(match[2]), match[3]))
    return sorted(lines, key=lambda found: (found.file, found.line))
