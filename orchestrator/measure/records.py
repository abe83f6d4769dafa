"""What measuring is about, as frozen records: benchmarks, sessions in their places, outcomes, series, change points.

Times are seconds, sizes bytes, shares and ratios plain numbers (0.02 is two per cent; a ratio is head over base).
A `review_agents.records.Session` (a fresh process or a few) is the unit of all statistics; here it gets its place in a
design. Everything turns into JSON by pydantic's `TypeAdapter`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from review_agents.records import Benchmark, Session, Verdict

# What is measured ----------------------------------------------------------------------------


class Unit(StrEnum):
    SECONDS = "s"
    BYTES = "bytes"
    INSTRUCTIONS = "instructions"


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a benchmark that is compared; less is better for all."""

    name: str  # "" is the wall time; "peak memory", "instructions", else a figure of the benchmark's own
    unit: Unit
    floor: float  # absolute, in `unit`: what moved less is no change, whatever its share

    @property
    def own(self) -> bool:
        """Whether it is a figure of the benchmark's own."""
        return self.unit is Unit.SECONDS and self.name != ""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """All that must be equal for two numbers to be comparable, and what is only told beside them."""

    machine: str
    cpu: str = ""  # model
    kernel: str = ""
    microcode: str = ""
    sandbox: str = ""  # backend
    image: str = ""  # digest, or what stands for it
    python: str = ""  # full version
    runtime: str = ""  # container runtime where it is not the usual one
    pinned: str = ""  # CPUs; empty: not pinned
    benchmark: str = ""  # digest of the benchmark's command and files
    dependencies: Mapping[str, str] = field(default_factory=dict)  # resolved versions; no part of the key


# Sessions in their places --------------------------------------------------------------------


class Side(StrEnum):
    BASE = "base"
    HEAD = "head"


class Block(StrEnum):
    SCREEN = "screen"  # 6 + 6
    CONFIRM = "confirm"  # 10 + 10, independent of the first


@dataclass(frozen=True, slots=True)
class Taken:
    """One session in its place. A void one is followed by its repeat in the same place."""

    block: Block
    place: int  # counted from 0, in the order in which places are gone through
    side: Side
    attempt: int  # counted from 1
    session: Session


@dataclass(frozen=True, slots=True)
class Canary:
    """The fixed program of ours, run in the same box before and after a block."""

    block: Block
    first_s: float
    last_s: float

    @property
    def drift(self) -> float:
        """Share by which the machine itself became slower or faster meanwhile."""
        return abs(self.last_s / self.first_s - 1) if self.first_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Rule:
    """The thresholds. Shares: 0.03 is three per cent."""

    confidence: float = 0.995  # of intervals
    screen_p: float = 0.10  # one wild session of the base alone makes it .065; the second block is the judge
    least_effect: float = 0.03
    noise_times: float = 3.0  # a change must be this many times the scatter of A/A ratios
    most_within: float = 0.10  # "no change within x": above this it says too little to be said
    false_discoveries: float = 0.01  # among the candidates of a review
    most_drift: float = 0.03  # of the canary


RULE = Rule()

# Outcomes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one block says about one metric."""

    ratio: float  # Hodges-Lehmann, head over base
    low: float  # of its interval
    high: float
    p: float  # exact Mann-Whitney, two-sided
    base: float  # median of the sessions, in the metric's unit
    head: float
    sessions: int  # on each side

    @property
    def effect(self) -> float:
        """Share by which head differs; above 0 it is slower."""
        return self.ratio - 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict on one metric of one benchmark, and what it rests on."""

    verdict: Verdict
    reason: str
    screen: Estimate | None = None  # None: contaminated before a number was to be had
    confirm: Estimate | None = None  # only of candidates
    within: float | None = None  # with "no change": the share that the true change stays below
    effect_floor: float | None = None  # share that a change had to reach here

    @property
    def best(self) -> Estimate | None:
        """The estimate to quote: the independent one where there is one."""
        return self.confirm or self.screen


@dataclass(frozen=True, slots=True)
class CodeThatRan:
    """Proof of which code ran on one side."""

    commit: str
    import_path: str
    version: str
    digest: str  # of git's ids of the package's files as imported
    matches: bool  # they are the files of `commit`
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Grown:
    """A function of the package by profile, base against head."""

    function: str
    file: str
    line: int | None
    base_s: float  # own time, of what the metric counts; or a share of all, where `Why.shares` says so
    head_s: float

    @property
    def grew_s(self) -> float:
        return self.head_s - self.base_s


@dataclass(frozen=True, slots=True)
class Why:
    """What stands beside a confirmed change."""

    grown: tuple[Grown, ...] = ()  # what grew most first
    base_stacks: Mapping[str, float] = field(default_factory=dict)  # "a;b;c" -> own seconds
    head_stacks: Mapping[str, float] = field(default_factory=dict)
    dependencies: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # name -> version at base, at head
    problem: str = ""  # why there is no profile
    shares: bool = False  # the samples are of several figures together, so that no function has a part of one of them


@dataclass(frozen=True, slots=True)
class Comparison:
    """Base against head for one metric of one benchmark, in one review."""

    name: str  # of the series: the benchmark, and the metric where it is not the wall time
    benchmark: Benchmark
    metric: Metric
    base_commit: str
    head_commit: str
    same_code: bool  # nothing that is measured differs: an A/A pair, whose alarms are all false
    machine_key: str
    outcome: Outcome
    taken: tuple[Taken, ...] = ()
    canaries: tuple[Canary, ...] = ()
    base_ran: CodeThatRan | None = None
    head_ran: CodeThatRan | None = None
    why: Why | None = None


# History -------------------------------------------------------------------------------------


class Night(Protocol):
    """What a series needs of a night; a row of the store has it too."""

    @property
    def at(self) -> datetime: ...
    @property
    def commit(self) -> str: ...
    @property
    def median(self) -> float | None: ...
    @property
    def spread(self) -> float | None: ...
    @property
    def good(self) -> int: ...
    @property
    def void(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Point:
    """One night of a series."""

    at: datetime
    commit: str
    median: float | None  # None: too many of its sessions were void
    spread: float | None  # median absolute deviation over the median
    good: int = 0  # sessions that counted
    void: int = 0  # and those that did not


@dataclass(frozen=True, slots=True)
class Series:
    """One metric on one machine key, oldest first. A new key starts a new series."""

    name: str
    unit: str
    machine_key: str
    points: tuple[Night, ...]


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A step in a series: the change came with a commit after `from_commit`, up to and including `to_commit`."""

    name: str
    unit: str
    machine_key: str
    from_commit: str
    to_commit: str
    from_at: datetime
    to_at: datetime
    before: float  # median of the level before, in `unit`
    after: float
    ratio: float  # after over before
    points_after: int


@dataclass(frozen=True, slots=True)
class Tried:
    """A commit that a bisection built and ran, or could not."""

    commit: str
    outcome: Outcome | None  # against the good end; None: it could not be built or run
    slow: bool | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Bisection:
    """The search for the commit of a step."""

    name: str
    good: str
    bad: str
    tried: tuple[Tried, ...] = ()
    culprit: str = ""  # named only if a block or two of their own showed it slower than its parent
    problem: str = ""  # why none could be named; then `good` and `bad` are the narrowest range known
