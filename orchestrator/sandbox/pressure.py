"""Whether others wanted the processor while we measured: PSI and foreign CPU time, read on the host.

PSI tells to the microsecond how long some task waited for a CPU, but our own threads raise it too;
/proc/stat counts everybody's CPU time, in steps of 10 ms. Steal sees only the hypervisor: a
neighbour in the same machine stretched a 16 ms task to 33 ms with steal below 3 %. So a session
counts as disturbed when somebody waited and we alone cannot have been the reason, or when others
used a noticeable share of the CPUs.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

CPU_PRESSURE = Path("/proc/pressure/cpu")
STAT = Path("/proc/stat")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
SHORTEST_FOR_STAT_S = 0.2  # below this, ticks of 10 ms say nothing


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters of one moment. `waited_s` is None where the kernel has no PSI."""

    at: float
    waited_s: float | None
    busy_s: float  # CPU time that the watched CPUs spent on anybody


@dataclass(frozen=True, slots=True)
class Contention:
    """What happened between two readings, as shares of that time, 0 to 1."""

    pressure: float | None  # some task waited for a CPU
    foreign: float | None  # of the watched CPUs' time, used by others; None when too short to tell

    def complaint(self, *, own_share: float, most_pressure: float, most_foreign: float) -> str:
        """Why the session is void; empty when it is good.

        own_share   CPU time we used over the time all watched CPUs had; near 1 we make PSI ourselves
        """
        if self.foreign is not None and self.foreign > most_foreign:
            return f"others used {self.foreign:.0%} of the processor time"
        if self.pressure is not None and self.pressure > most_pressure and own_share < 0.9:
            return f"some task waited for a processor during {self.pressure:.0%} of the session"
        return ""


def read(cpus: tuple[int, ...] = ()) -> Reading:
    """The counters now. `cpus`: the ones to watch; empty means all."""
    return Reading(time.monotonic(), waited_seconds(), busy_seconds(STAT.read_text(), cpus))


def between(before: Reading, after: Reading, *, own_s: float, cpus: int) -> Contention:
    """`own_s` is the CPU time we used meanwhile, `cpus` how many CPUs are watched."""
    elapsed = max(1e-9, after.at - before.at)
    pressure = foreign = None
    if before.waited_s is not None and after.waited_s is not None:
        pressure = min(1.0, (after.waited_s - before.waited_s) / elapsed)
    if elapsed >= SHORTEST_FOR_STAT_S:
        others = after.busy_s - before.busy_s - own_s - TICK_S
        foreign = min(1.0, max(0.0, others / (elapsed * cpus)))
    return Contention(pressure, foreign)


def waited_seconds() -> float | None:
    try:
        text = CPU_PRESSURE.read_text()
    except OSError:
        return None
    return total_of(text)


def total_of(pressure_text: str) -> float | None:
    """Seconds in the `some` line of a PSI file."""
    for line in pressure_text.splitlines():
        words = line.split()
        if words and words[0] == "some":
            return int(words[-1].removeprefix("total=")) / 1e6
    return None


def busy_seconds(stat_text: str, cpus: tuple[int, ...]) -> float:
    """User, nice, system, interrupt and steal time of the given CPUs (all when empty) since boot."""
    total = 0
    for line in stat_text.splitlines():
        words = line.split()
        if not words or not words[0].startswith("cpu") or words[0] == "cpu":
            continue
        if cpus and int(words[0][3:]) not in cpus:
            continue
        user, nice, system, _idle, _iowait, irq, softirq, steal = (int(word) for word in words[1:9])
        total += user + nice + system + irq + softirq + steal
    return total * TICK_S


def cpu_count(cpus: tuple[int, ...]) -> int:
    return len(cpus) or os.cpu_count() or 1
