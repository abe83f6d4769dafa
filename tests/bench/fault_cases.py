"""The fault cases, as data: what happens, in which step of a review, and how long it lasts.

Each case has a repo of its own. Those of the step `measure:base` have a commit before the reviewed one, which is built
and timed beside it; the other repos have one commit, so that step does not occur in their reviews.
"""

from dataclasses import dataclass
from itertools import cycle

STEPS = ("checkout", "prepare", "probe:greets", "probe:counts", "focus:correctness", "verify", "merge", "record")
MEASURE = "measure:base"
IN_ORDER = (*STEPS[:4], MEASURE, *STEPS[4:])
WITH_A_BOX = frozenset({"prepare", "probe:greets", "probe:counts", MEASURE, "focus:correctness", "verify"})
KILLED = ("worker", "web", "beat", "node", "redis", "postgres", "engine")


@dataclass(frozen=True)
class Case:
    fault: str  # a function of tests.bench.faults
    step: str = ""  # the review is held up there while it happens; "": it is not held up
    when: str = "before"
    seconds: float = 0.5  # how long what was killed or cut stays away
    sandbox: str = "bubblewrap"
    ends: str = "done"

    @property
    def measured(self) -> bool:
        return self.step == MEASURE

    @property
    def name(self) -> str:
        place = f" {self.when} {self.step}" if self.step else ""
        lasts = f" for {self.seconds:g} s" if self.seconds != 0.5 else ""
        return f"{self.fault}{place}{lasts}, {self.sandbox}"


def moment(step: str, *, box: bool = True) -> str:
    return "box" if box and step in WITH_A_BOX else "before"


def killed() -> list[Case]:
    """Each process, at each step; the engine where there is one."""
    cases = []
    for who in KILLED:
        sandbox = "docker" if who == "engine" else "bubblewrap"
        cases += [Case(f"kill {who}", step, moment(step), sandbox=sandbox) for step in IN_ORDER]
    cases += [Case("kill worker", step, "after") for step in IN_ORDER]
    cases += [Case("kill worker", step, "box", sandbox="docker") for step in IN_ORDER if step in WITH_A_BOX]
    return cases


def others() -> list[Case]:
    return [
        Case("kill the worker's child", "probe:greets", "box"),
        Case("kill the worker's child", "merge", "ended"),
        Case("kill the worker each time", "probe:counts", "before", ends="failed"),
        Case("kill the box", "probe:greets", "box"),
        Case("kill the box", "verify", "box"),
        Case("kill the box", "verify", "box", sandbox="docker"),
        Case("kill the box", MEASURE, "box"),
        Case("end the worker politely", "probe:greets", "box"),
        Case("end the worker politely", MEASURE, "box"),
        Case("end the worker politely", "focus:correctness", "box"),
        Case("end the worker politely", "verify", "box", sandbox="docker"),
        Case("kill everything", "probe:greets", "box"),
        Case("kill everything", "focus:correctness", "box"),
        Case("kill everything", MEASURE, "box"),
        Case("kill everything", "record", "before"),
        Case("kill everything", "verify", "box", sandbox="docker"),
        Case("kill redis", "probe:counts", "before", 8.0),
        Case("kill postgres", "probe:counts", "before", 8.0),
        Case("kill postgres", "record", "after"),
        Case("kill node", "focus:correctness", "box", 8.0),
        Case("redis loses everything", "checkout"),
        Case("redis loses everything", "verify", "box"),
        Case("redis loses everything"),
        Case("cut the worker off", "probe:greets", "before", 2.0),
        Case("cut the worker off", "probe:greets", "box", 15.0),
        Case("cut the worker off", "merge", "before", 2.0),
        Case("cut the worker off", "record", "before", 15.0),
        Case("cut the worker off", "verify", "box", 2.0, sandbox="docker"),
        Case("cut the worker off", "verify", "box", 15.0, sandbox="docker"),
        Case("cut the node off", "focus:correctness", "box", 2.0),
        Case("cut the node off", "focus:correctness", "box", 15.0),
        Case("cut the node off", "verify", "box", 8.0),
        Case("fill the disk", "checkout", "before", 3.0),
        Case("fill the disk", "prepare", "before", 3.0),
        Case("fill the disk", "probe:greets", "before", 3.0),
        Case("fill the disk", "record", "before", 3.0),
        Case("fill the disk", "", "", 4.0),
        Case("set the clock back", "checkout"),
        Case("set the clock back", "probe:greets", "box"),
        Case("set the clock back", "record"),
        Case("set the clock back, then kill the worker", "probe:counts"),
        Case("put the clock forward", "probe:greets", "box"),
        Case("put the clock forward", "merge"),
        Case("two workers"),
        Case("two workers", "probe:greets", "box"),
        Case("two beats and a due schedule"),
        Case("the message comes five times"),
        Case("the message comes again at the end", "record", "ended"),
        Case("the message never comes"),
    ]


ALL = tuple(sorted((*killed(), *others()), key=lambda case: case.sandbox))


def tenth() -> tuple[Case, ...]:
    """For CI: one of each kind of fault that takes little time, on both sandboxes."""
    steps = cycle(("checkout", "probe:greets", "focus:correctness", "record"))
    wanted = [Case(f"kill {who}", step, moment(step)) for who, step in zip(KILLED[:-1], steps, strict=False)]
    wanted += [
        Case("the message never comes"),
        Case("two workers"),
        Case("cut the worker off", "probe:greets", "before", 2.0),
        Case("kill worker", MEASURE, "box"),
        Case("kill engine", "probe:greets", "box", sandbox="docker"),
    ]
    missing = set(wanted) - set(ALL)
    assert not missing, missing
    return tuple(wanted)
