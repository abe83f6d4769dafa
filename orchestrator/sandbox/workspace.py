"""What probes and agents are handed: a box as a `review_agents.ports.Workspace`."""

import math
import re
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.sandbox.contract import Box, Patience
from orchestrator.sandbox.stopwatch import REPEATS, WAIT_S, Stopwatch
from review_agents.ports import Match
from review_agents.records import Environment, Measurement, Network, Ran, Session

__all__ = ["IMPATIENT", "REPEATS", "WAIT_S", "BoxWorkspace"]

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
        self.note = note
        self.on_output = on_output
        self.cancelled = cancelled
        self.stopwatch = Stopwatch(
            box, cpus=cpus, patience=patience or Patience(math.inf), cancelled=cancelled, wait=wait, clock=clock
        )

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
            self.stopwatch.session(command, environment, timeout_s)
        taken: list[Session] = []
        notes = [self.note] if self.note else []
        for _ in range(sessions):
            tried = self.stopwatch.until_good(command, environment, timeout_s)
            taken += tried
            if tried[-1].void and len(tried) <= REPEATS and IMPATIENT not in notes:
                notes.append(IMPATIENT)
        return Measurement(name=name, command=command, sessions=tuple(taken), note="; ".join(notes))

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
