"""How quiet this machine is for measuring: a fixed program of ours in fresh processes, what disturbed it, who else ran.

Runs on the host and not in a box: the program is ours, and the machine is asked about, not the sandbox.
"""

import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.sandbox import pressure
from orchestrator.sandbox.host import CPU_INFO
from orchestrator.sandbox.stopwatch import STRICT, Tolerance

PROC = Path("/proc")
LONGEST_S = 60.0
PINNED = "import os, sys; os.sched_setaffinity(0, {cpus}); exec(compile(sys.stdin.read(), 'workload', 'exec'))"


@dataclass(frozen=True, slots=True)
class Timed:
    """One run of the workload."""

    wall_s: float
    disturbed: str  # what did; empty when nothing


def timed(source: str, cpus: tuple[int, ...], tolerance: Tolerance = STRICT) -> Timed:
    """`source` is a Python program; `cpus` are those that it is pinned to, none: all.

    It is out of a terminal's reach: who presses Ctrl-C means us, who end it without a traceback.
    """
    seen = pressure.with_siblings(cpus)
    chosen = cpus or tuple(os.sched_getaffinity(0))
    used_s = children_s()
    before = pressure.read(seen)
    subprocess.run(
        [sys.executable, "-I", "-c", PINNED.format(cpus=set(chosen))], input=source, text=True, check=True,
        stdout=subprocess.DEVNULL, timeout=LONGEST_S, start_new_session=True,
    )  # fmt: skip
    after = pressure.read(seen)
    own_s = children_s() - used_s
    wall_s, count = after.at - before.at, pressure.cpu_count(seen)
    complaint = pressure.between(before, after, own_s=own_s, cpus=count).complaint(
        own_share=own_s / (wall_s * count),
        most_pressure=tolerance.pressure,
        most_foreign=tolerance.foreign,
        most_steal=tolerance.steal,
    )
    return Timed(wall_s, complaint)


def watched(cpus: tuple[int, ...]) -> Callable[[], pressure.Contention]:
    """What others did on those CPUs from now until it is asked."""
    seen = pressure.with_siblings(cpus)
    before, used_s = pressure.read(seen), children_s()

    def meanwhile() -> pressure.Contention:
        own_s = children_s() - used_s
        return pressure.between(before, pressure.read(seen), own_s=own_s, cpus=pressure.cpu_count(seen))

    return meanwhile


def children_s() -> float:
    """Processor time of our children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# What the machine is set to -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """Something of the machine that moves numbers."""

    name: str
    value: str
    advice: str  # what to do; empty where it is well


def machine_settings(cpus: tuple[int, ...], root: Path = pressure.CPUS) -> list[Setting]:
    """Governor, turbo, siblings, pressure and whether it is virtual; what the kernel does not tell is left out."""
    found = []
    governors = {
        pressure.text_of(root / f"cpu{cpu}" / "cpufreq" / "scaling_governor").strip()
        for cpu in cpus or tuple(os.sched_getaffinity(0))
    } - {""}
    if governors:
        calm = governors == {"performance"}
        advice = "" if calm else "the frequency follows the load; `cpupower frequency-set -g performance` fixes it"
        found.append(Setting("governor", ", ".join(sorted(governors)), advice))
    turbo = turbo_of(root)
    if turbo is not None:
        advice = f"how fast it runs depends on heat; `echo {turbo[1]} > {turbo[2]}` ends it" if turbo[0] else ""
        found.append(Setting("turbo", "on" if turbo[0] else "off", advice))
    siblings = set(pressure.with_siblings(cpus)) - set(cpus)
    if cpus and siblings:
        words = f"CPUs {', '.join(map(str, sorted(siblings)))} share a core with those that are measured on"
        found.append(Setting("siblings", words, "leave them idle, or turn hyper-threading off"))
    if pressure.waited_seconds() is None:
        found.append(Setting("pressure", "not told by this kernel", "boot with psi=1, so that neighbours are noticed"))
    return found


def turbo_of(root: Path) -> tuple[bool, str, Path] | None:
    """Whether it is on, and what to write where to turn it off; None where there is no such switch."""
    for name, on in (("intel_pstate/no_turbo", "0"), ("cpufreq/boost", "1")):
        value = pressure.text_of(root / name).strip()
        if value:
            return value == on, "1" if on == "0" else "0", root / name
    return None


def is_virtual(text: str | None = None) -> bool:
    """Whether a hypervisor may give our processors to others."""
    text = pressure.text_of(CPU_INFO) if text is None else text
    return bool(re.search(r"^flags\s*:.*\bhypervisor\b", text, re.MULTILINE))


# Who else runs ----------------------------------------------------------------------------------


def processor_times(proc: Path = PROC) -> dict[int, tuple[str, float]]:
    """By process its name and the seconds of processor time that it has used; ours and our children's are left out."""
    found: dict[int, tuple[str, float]] = {}
    for stat in proc.glob("[0-9]*/stat"):
        name, _, rest = pressure.text_of(stat).partition("(")[2].rpartition(")")
        words = rest.split()
        if len(words) > 12 and os.getpid() not in (int(stat.parent.name), int(words[1])):
            found[int(stat.parent.name)] = name, (int(words[11]) + int(words[12])) * pressure.TICK_S
    return found


def neighbours(
    before: Mapping[int, tuple[str, float]], after: Mapping[int, tuple[str, float]], elapsed_s: float
) -> list[tuple[str, float]]:
    """Names with the share of one processor that they used in between, the busiest first."""
    shares: dict[str, float] = {}
    for pid, (name, used) in after.items():
        known = before.get(pid)
        grew = used - (known[1] if known and known[0] == name else 0.0)
        shares[name] = shares.get(name, 0.0) + grew / elapsed_s
    return sorted(shares.items(), key=lambda one: (-one[1], one[0]))
