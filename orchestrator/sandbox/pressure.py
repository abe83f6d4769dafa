"""Whether others wanted the processor while we measured, or the machine itself was another one: read on the host.

PSI tells to the microsecond how long some task waited for a CPU, but our own threads raise it too;
/proc/stat counts everybody's CPU time, in steps of 10 ms. Steal sees only the hypervisor: a
neighbour in the same machine stretched a 16 ms task to 33 ms with steal below 3 %. So a session
counts as disturbed when somebody waited and we alone cannot have been the reason, when others used
a noticeable share of the CPUs, when the hypervisor took them away, when the processor was throttled
or its highest frequency lowered, or when memory had to come back from swap.
"""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

CPU_PRESSURE = Path("/proc/pressure/cpu")
STAT = Path("/proc/stat")
VMSTAT = Path("/proc/vmstat")
CPUS = Path("/sys/devices/system/cpu")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
SHORTEST_FOR_STAT_S = 0.2  # below this, ticks of 10 ms say nothing


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters of one moment. None where the kernel does not tell."""

    at: float
    waited_s: float | None  # in which some task waited for a CPU
    busy_s: float  # CPU time that the watched CPUs spent on anybody
    steal_s: float = 0.0  # CPU time of the watched CPUs that the hypervisor gave to others; part of busy_s
    swapped_in: int | None = None  # pages
    throttled: int | None = None  # times that a watched CPU was slowed down for heat or power
    top_khz: int | None = None  # highest frequency that the watched CPUs may have together
    own_s: float = 0.0  # CPU time of this process, which may have been on the watched CPUs and is no neighbour


@dataclass(frozen=True, slots=True)
class Contention:
    """What happened between two readings, as shares of that time, 0 to 1."""

    pressure: float | None  # some task waited for a CPU
    foreign: float | None  # of the watched CPUs' time, used by others; None when too short to tell
    steal: float = 0.0  # of the watched CPUs' time
    machine: str = ""  # why the machine was not itself

    def complaint(self, *, own_share: float, most_pressure: float, most_foreign: float, most_steal: float) -> str:
        """Why the session is void; empty when it is good.

        own_share   CPU time we used over the time all watched CPUs had; near 1 we make PSI ourselves
        """
        if self.foreign is not None and self.foreign > most_foreign:
            return f"others used {self.foreign:.0%} of the processor time"
        if self.pressure is not None and self.pressure > most_pressure and own_share < 0.9:
            return f"some task waited for a processor during {self.pressure:.0%} of the session"
        if self.steal > most_steal:
            return f"the hypervisor gave {self.steal:.1%} of the processor time to others"
        return self.machine


def read(cpus: tuple[int, ...] = ()) -> Reading:
    """The counters now. `cpus`: the ones to watch; empty means all."""
    stat = STAT.read_text()
    return Reading(
        at=time.monotonic(),
        waited_s=waited_seconds(),
        busy_s=busy_seconds(stat, cpus),
        steal_s=steal_seconds(stat, cpus),
        swapped_in=swapped_in(text_of(VMSTAT)),
        throttled=sum_of_files("thermal_throttle/core_throttle_count", cpus),
        top_khz=sum_of_files("cpufreq/scaling_max_freq", cpus),
        own_s=time.process_time(),
    )


def between(before: Reading, after: Reading, *, own_s: float, cpus: int) -> Contention:
    """`own_s` is the CPU time that our commands used meanwhile, `cpus` how many CPUs are watched."""
    elapsed = max(1e-9, after.at - before.at)
    pressure = foreign = None
    if before.waited_s is not None and after.waited_s is not None:
        pressure = min(1.0, (after.waited_s - before.waited_s) / elapsed)
    stolen_s = after.steal_s - before.steal_s
    if elapsed >= SHORTEST_FOR_STAT_S:
        ours = own_s + after.own_s - before.own_s
        others = after.busy_s - before.busy_s - stolen_s - ours - TICK_S
        foreign = min(1.0, max(0.0, others / (elapsed * cpus)))
    steal = min(1.0, max(0.0, (stolen_s - TICK_S) / (elapsed * cpus)))
    return Contention(pressure, foreign, steal, changed_machine(before, after))


def changed_machine(before: Reading, after: Reading) -> str:
    """Why the machine was not the same throughout; empty when it was, or does not tell."""
    if before.throttled is not None and after.throttled is not None and after.throttled > before.throttled:
        return "the processor was throttled"
    if before.top_khz and after.top_khz and before.top_khz != after.top_khz:
        return "the processor's highest frequency was changed"
    if before.swapped_in is not None and after.swapped_in is not None and after.swapped_in > before.swapped_in:
        return f"{after.swapped_in - before.swapped_in} pages came back from swap"
    return ""


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
    for user, nice, system, _idle, _iowait, irq, softirq, steal in times_of(stat_text, cpus):
        total += user + nice + system + irq + softirq + steal
    return total * TICK_S


def steal_seconds(stat_text: str, cpus: tuple[int, ...]) -> float:
    return sum(times[-1] for times in times_of(stat_text, cpus)) * TICK_S


def times_of(stat_text: str, cpus: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The first eight counters of each given CPU, in ticks."""
    found = []
    for line in stat_text.splitlines():
        words = line.split()
        if words and re.fullmatch(r"cpu\d+", words[0]) and (not cpus or int(words[0][3:]) in cpus):
            found.append(tuple(int(word) for word in words[1:9]))
    return found


def swapped_in(vmstat_text: str) -> int | None:
    match = re.search(r"^pswpin (\d+)$", vmstat_text, re.MULTILINE)
    return int(match[1]) if match else None


def sum_of_files(name: str, cpus: tuple[int, ...]) -> int | None:
    """Over the folders of the given CPUs; None where no CPU has such a file."""
    folders = [CPUS / f"cpu{cpu}" for cpu in cpus] or list(CPUS.glob("cpu[0-9]*"))
    numbers = [int(text) for folder in folders if (text := text_of(folder / name).strip()).isdigit()]
    return sum(numbers) if numbers else None


def with_siblings(cpus: tuple[int, ...]) -> tuple[int, ...]:
    """The CPUs and those that share a core with them: a neighbour there slows them down as well."""
    found = set(cpus)
    for cpu in cpus:
        for part in text_of(CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list").strip().split(","):
            first, _, last = part.partition("-")
            if first.isdigit():
                found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))


def text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def cpu_count(cpus: tuple[int, ...]) -> int:
    return len(cpus) or os.cpu_count() or 1
