"""What was measured, as people and other tools get it: a repo's benchmarks over the nights, a review's verdicts.

Deciding is `measure`'s business and telling nights apart that of `histories`; here is only what people look at.
Reading takes a fixed number of queries, whatever number of benchmarks a repo has.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy.orm import Session as Database

from orchestrator.measure.machine_key import changed_dependencies
from orchestrator.measure.profiles import by_function, parts
from orchestrator.measure.records import Series
from orchestrator.services import histories
from orchestrator.services.errors import NotThere, UnknownRepo, UnknownReview
from orchestrator.services.histories import FalseAlarms, Step
from orchestrator.services.workshop import Workshop
from orchestrator.store import comparisons, measurements, repos, reviews
from orchestrator.store.comparisons import Explained, Told
from orchestrator.store.measurements import Night as Night
from review_agents.records import Verdict

NEWEST = histories.NEWEST  # measurements on one page; older ones are in the files
SHOWN_NIGHTS = 200  # newest nights of a benchmark that are listed on its page
SHOWN_SESSIONS = 60  # newest nights of a benchmark whose sessions are shown one by one
SHOWN_VERDICTS = 60
Grouped = Mapping[tuple[str, str], Mapping[str, Sequence[Night]]]  # nights by name and unit, then by machine key
Around = Mapping[tuple[str, str, datetime], Any]  # name, machine key and time of a night -> its Surroundings in JSON


class UnknownBenchmark(NotThere):
    thing = "benchmark"


class NoProfile(NotThere):
    thing = "profile of"


@dataclass(frozen=True, slots=True)
class Line:
    """A benchmark on one machine key: the only numbers that may be compared over nights."""

    machine_key: str
    changed: tuple[str, ...]  # what is otherwise than under the key before; empty for the first
    nights: tuple[Night, ...]  # oldest first


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One figure over the nights."""

    name: str
    unit: str
    lines: tuple[Line, ...]  # in the order in which their keys came up
    steps: tuple[Step, ...]  # oldest first

    @property
    def latest(self) -> Night:
        return max((line.nights[-1] for line in self.lines), key=lambda night: night.at)

    @property
    def nights(self) -> int:
        return sum(len(line.nights) for line in self.lines)


@dataclass(frozen=True, slots=True)
class Grew:
    """A function by profile; times are its own, in what the figure counts, or shares of all of the benchmark's."""

    function: str
    file: str
    line: int | None
    base: float
    head: float


@dataclass(frozen=True, slots=True)
class Compared:
    """Base against head for one figure, in one review."""

    review_id: UUID
    name: str
    kind: str
    unit: str
    machine_key: str
    base_commit: str
    head_commit: str
    same_code: bool  # a pair of equal code: an alarm would be a false one
    at: datetime
    verdict: Verdict
    ratio: float | None  # head over base; None where there is no number
    low: float | None  # of its interval
    high: float | None
    void: int
    # And what takes longer to read, which some pages show of a few only:
    reason: str = ""
    within: float | None = None  # with "no change": the share that the true change stays below
    base: float | None = None  # medians
    head: float | None = None
    sessions: int = 0  # on each side, in the block that is quoted
    confirmed: bool = False  # a second, independent block was measured
    grew: tuple[Grew, ...] = ()
    shares: bool = False  # what `grew` counts in
    dependencies: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # at base and head, of those that differ
    profiled: bool = False


@dataclass(frozen=True, slots=True)
class Measurements:
    """All benchmarks of a repo."""

    repo_id: UUID
    repo_name: str
    benchmarks: tuple[Benchmark, ...]  # by name
    steps: tuple[Step, ...]  # newest first
    compared: tuple[Compared, ...]  # by the last review that compared anything
    false_alarms: FalseAlarms
    complete: bool  # False: there are older measurements than these

    @property
    def verdicts(self) -> Mapping[Verdict, int]:
        """How often each was given; pairs of equal code apart."""
        return Counter(one.verdict for one in self.compared if not one.same_code)


@dataclass(frozen=True, slots=True)
class StepBeside:
    """A step with what else was new that night."""

    step: Step
    dependencies: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class BenchmarkPage:
    """One benchmark with all that is known of it."""

    repo_id: UUID
    repo_name: str
    benchmark: Benchmark
    steps: tuple[StepBeside, ...]  # newest first
    compared: tuple[Compared, ...]  # newest first
    sessions: Mapping[UUID, tuple[float, ...]]  # the good ones of the newest nights, by measurement
    complete: bool


@dataclass(frozen=True, slots=True)
class Profile:
    """Where base and head of a confirmed change spent their time. Stacks: "file:line:function;..." -> own seconds."""

    review_id: UUID
    name: str
    unit: str
    base_commit: str
    head_commit: str
    verdict: Verdict
    base: float  # medians of the figure, in `unit`
    head: float
    base_stacks: Mapping[str, float]
    head_stacks: Mapping[str, float]
    functions: tuple[Grew, ...]  # all that take a noticeable part on either side, what grew most first
    shares: bool = False  # it is of several figures together: functions have shares of that, and no part of this one

    def whole(self, side: str) -> float:
        """What all functions of a side come to."""
        return 1.0 if self.shares else self.head if side == "head" else self.base

    @property
    def parts_unit(self) -> str:
        return "share" if self.shares else self.unit


# A repo's benchmarks --------------------------------------------------------------------------


def get(shop: Workshop, repo_id: UUID, *, ids: bool = True, explained: int | None = None) -> Measurements:
    """Without `ids` nights do not say which measurement of which review they are, and come faster.

    explained   how many verdicts, by weight, come with all that is known of them; None: every one
    """
    with shop.sessions.reading() as db:
        name = name_of(db, repo_id)
        nights = measurements.nights(db, repo_id, newest=NEWEST, ids=ids)
        confirmed = comparisons.change_points(db, repo_id)
        last = comparisons.newest_review(db, repo_id)
        told = comparisons.told(db, last) if last else ()
        more = comparisons.explained(db, [one.id for one in by_weight(told)[:explained]]) if told else {}
        grouped = by_key(nights)
        around = surroundings(db, repo_id, grouped)
    steps = histories.steps_of(series(grouped), confirmed)
    return Measurements(
        repo_id=repo_id,
        repo_name=name,
        benchmarks=benchmarks(grouped, steps, around),
        steps=steps,
        compared=tuple(compared(one, more.get(one.id)) for one in told),
        false_alarms=histories.false_alarms(shop),
        complete=len(nights) < NEWEST,
    )


def name_of(db: Database, repo_id: UUID) -> str:
    repo = repos.get(db, repo_id)
    if repo is None:
        raise UnknownRepo(repo_id)
    return repo.name


def by_key(nights: Iterable[Night]) -> Grouped:
    """By name and unit, and in each by machine key, in the order in which keys came up. Nights come oldest first."""
    found: dict[tuple[str, str], dict[str, list[Night]]] = {}
    for night in nights:
        found.setdefault((night.name, night.unit), {}).setdefault(night.machine_key, []).append(night)
    return dict(sorted(found.items()))


def series(grouped: Grouped) -> Iterator[Series]:
    for (name, unit), keys in grouped.items():
        for key, nights in keys.items():
            yield Series(name, unit, key, tuple(nights))


def benchmarks(grouped: Grouped, steps: Sequence[Step], around: Around) -> tuple[Benchmark, ...]:
    """By name and unit; steps come newest first."""
    moved: dict[tuple[str, str], list[Step]] = {}
    for step in reversed(steps):
        moved.setdefault((step.point.name, step.point.unit), []).append(step)
    return tuple(
        Benchmark(name, unit, tuple(told_apart(keys, around)), tuple(moved.get((name, unit), ())))
        for (name, unit), keys in grouped.items()
    )


def told_apart(keys: Mapping[str, Sequence[Night]], around: Around) -> Iterator[Line]:
    before: tuple[str, Any] | None = None
    for key, nights in keys.items():
        now = key, around.get(place(nights[0]))
        yield Line(key, differences(before, now) if before else (), tuple(nights))
        before = now


def surroundings(db: Database, repo_id: UUID, grouped: Grouped) -> Around:
    """What was around the first night under each key, of benchmarks that have more than one."""
    wanted = {nights[0].at for keys in grouped.values() if len(keys) > 1 for nights in keys.values()}
    return measurements.surroundings(db, repo_id, wanted) if wanted else {}


def place(night: Night) -> tuple[str, str, datetime]:
    return night.name, night.machine_key, night.at


WORDS = {"cpu": "processor", "python": "Python", "pinned": "CPUs", "benchmark": "the benchmark itself"}


def differences(before: tuple[str, Any], now: tuple[str, Any]) -> tuple[str, ...]:
    """In words what differs between two machine keys; by their parts where no more is known."""
    if isinstance(before[1], Mapping) and isinstance(now[1], Mapping):
        fields = [field for field in now[1] if field != "dependencies" and before[1].get(field) != now[1][field]]
        return tuple(
            WORDS[field]
            if field == "benchmark"  # two digests say nothing to anybody
            else f"{WORDS.get(field, field)}: {before[1].get(field) or 'none'} → {now[1][field] or 'none'}"
            for field in fields
        )
    was, is_now = before[0].split("/"), now[0].split("/")
    old, new = [part for part in was if part not in is_now], [part for part in is_now if part not in was]
    if len(old) == len(new):
        return tuple(f"{one} → {other}" for one, other in zip(old, new, strict=True))
    return (*(f"no longer {part}" for part in old), *(f"now {part}" for part in new))


# One benchmark --------------------------------------------------------------------------------


def benchmark(shop: Workshop, repo_id: UUID, name: str, *, ids: bool = True) -> BenchmarkPage:
    """Without `ids` only the newest nights say which measurement of which review they are, and it comes faster."""
    with shop.sessions.reading() as db:
        repo_name = name_of(db, repo_id)
        nights = measurements.nights(db, repo_id, newest=NEWEST, name=name, ids=ids)
        if not nights:
            raise UnknownBenchmark(name[:200])
        if not ids:
            newest = measurements.nights(db, repo_id, newest=SHOWN_NIGHTS, name=name)
            nights = [*nights[: -len(newest)], *newest]
        name = nights[0].name  # as it is stored, where a very long one is cut
        confirmed = [row for row in comparisons.change_points(db, repo_id) if row.name == name]
        told = comparisons.told_of_name(db, repo_id, name, newest=SHOWN_VERDICTS)
        more = comparisons.explained(db, [one.id for one in told])
        grouped = by_key(nights)
        steps = histories.steps_of(series(grouped), confirmed)
        edges = {at for step in steps for at in (step.point.from_at, step.point.to_at)}
        beside = {**surroundings(db, repo_id, grouped), **measurements.surroundings(db, repo_id, edges, name)}
        sessions = measurements.sessions_of(db, [night.id for night in nights[-SHOWN_SESSIONS:] if night.id])
    # The unit of a name may have changed; the one used last is the one to show.
    found = next(one for one in benchmarks(grouped, steps, beside) if one.unit == nights[-1].unit)
    return BenchmarkPage(
        repo_id=repo_id,
        repo_name=repo_name,
        benchmark=found,
        steps=tuple(step_beside(step, beside) for step in reversed(found.steps)),
        compared=tuple(compared(one, more.get(one.id)) for one in told),
        sessions={id: tuple(one["value"] for one in every if not one["void"]) for id, every in sessions.items()},
        complete=len(nights) < NEWEST,
    )


def step_beside(step: Step, around: Around) -> StepBeside:
    """What was installed in another version on the other side of a step may be the reason."""
    point = step.point
    before, after = (installed(around.get((point.name, point.machine_key, at))) for at in (point.from_at, point.to_at))
    return StepBeside(step, changed_dependencies(before, after) if before and after else {})


def installed(around: Any) -> Mapping[str, str]:
    """Resolved versions; empty where they are not known."""
    return mapping(mapping(around).get("dependencies"))


# One review -----------------------------------------------------------------------------------


def of_review(shop: Workshop, review_id: UUID) -> tuple[Compared, ...]:
    """What it compared, by name; nothing where it compared nothing."""
    with shop.sessions.reading() as db:
        if reviews.get(db, review_id) is None:
            raise UnknownReview(review_id)
        told = comparisons.told(db, review_id)
        more = comparisons.explained(db, [one.id for one in told])
        return tuple(compared(one, more.get(one.id)) for one in told)


def compared(told: Told, more: Explained | None) -> Compared:
    short = Compared(
        review_id=told.review_id,
        name=told.name,
        kind=told.kind,
        unit=told.unit,
        machine_key=told.machine_key,
        base_commit=told.base_commit,
        head_commit=told.head_commit,
        same_code=told.same_code,
        at=told.at,
        verdict=told.verdict,
        ratio=told.ratio,
        low=told.low,
        high=told.high,
        void=told.void,
    )
    return short if more is None else with_reasons(short, more)


def with_reasons(short: Compared, more: Explained) -> Compared:
    outcome = mapping(more.outcome)
    block = mapping(outcome.get("confirm") or outcome.get("screen"))
    return replace(
        short,
        reason=str(outcome.get("reason", "")),
        within=outcome.get("within"),
        base=block.get("base"),
        head=block.get("head"),
        sessions=block.get("sessions", 0),
        confirmed=bool(outcome.get("confirm")),
        grew=tuple(
            Grew(one["function"], one["file"], one["line"], one["base_s"], one["head_s"]) for one in more.grown or ()
        ),
        shares=bool(more.shares),
        dependencies={name: (before, after) for name, (before, after) in mapping(more.dependencies).items()},
        profiled=more.no_profile == "",
    )


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def profile(shop: Workshop, review_id: UUID, name: str) -> Profile:
    """Only confirmed changes have one."""
    with shop.sessions.reading() as db:
        if reviews.get(db, review_id) is None:
            raise UnknownReview(review_id)
        body = mapping(comparisons.body(db, review_id, name))
    why, outcome = mapping(body.get("why")), mapping(body.get("outcome"))
    stacks = [{str(stack): float(seconds) for stack, seconds in mapping(why.get(side)).items() if seconds > 0}
              for side in ("base_stacks", "head_stacks")]  # fmt: skip
    block = mapping(outcome.get("confirm") or outcome.get("screen"))
    if not any(stacks) or not block:
        raise NoProfile(name[:200])
    base, head, shares = float(block["base"]), float(block["head"]), bool(why.get("shares"))
    return Profile(
        review_id=review_id,
        name=name,
        unit=str(body["metric"]["unit"]),
        base_commit=body["base_commit"],
        head_commit=body["head_commit"],
        verdict=Verdict(outcome["verdict"]),
        base=base,
        head=head,
        base_stacks=stacks[0],
        head_stacks=stacks[1],
        functions=functions(stacks[0], stacks[1], *((1.0, 1.0) if shares else (base, head))),
        shares=shares,
    )


def functions(base: Mapping[str, float], head: Mapping[str, float], of_base: float, of_head: float) -> tuple[Grew, ...]:
    sides = by_function(base, of_base, shortened), by_function(head, of_head, shortened)
    found = []
    for file, function in sides[0].keys() | sides[1].keys():
        (before, line), (after, line_now) = (side.get((file, function), (0.0, None)) for side in sides)
        if max(before, after) > 0.002 * max(of_base, of_head):
            found.append(Grew(function, file, line_now or line, before, after))
    return tuple(sorted(found, key=lambda one: (one.base - one.head, one.file, one.function)))


PLACES = re.compile(
    r"/(?:site-packages|dist-packages|job/repo|base/repo|lib/python3[^/]*)/(?!site-packages/|dist-packages/)"
)


def shortened(path: str) -> str:
    """Without where it was installed, which is another folder on either side."""
    found = PLACES.search(path)
    return path[found.end() :] if found else path


def function_of(frame: str) -> str:
    """Function and file of a frame: its line moves with any edit above it."""
    file, line, function = parts(frame)
    return f"{function} ({shortened(file)})" if line is not None else frame


def collapsed(stacks: Mapping[str, float]) -> str:
    """One stack a line with its microseconds, as flamegraph.pl and speedscope read it."""
    return "".join(
        f"{';'.join(map(function_of, stack.split(';')))} {round(seconds * 1e6)}\n"
        for stack, seconds in sorted(stacks.items())
    )


# Choosing and ordering ------------------------------------------------------------------------------------


def only(found: Measurements, *, words: str = "", moved: bool = False) -> Measurements:
    """Those whose name has the words; with `moved` those that a verdict or a step speaks of."""
    wanted = [word.casefold() for word in words.split()]
    alive = {one.name for one in found.compared if one.verdict in (Verdict.SLOWER, Verdict.FASTER)}
    alive |= {step.point.name for step in found.steps}
    kept = tuple(
        one
        for one in found.benchmarks
        if all(word in one.name.casefold() for word in wanted) and (one.name in alive or not moved)
    )
    return replace(found, benchmarks=kept)


ORDER = (Verdict.SLOWER, Verdict.CONTAMINATED, Verdict.INCONCLUSIVE, Verdict.FASTER, Verdict.NO_CHANGE)


Weighed = TypeVar("Weighed", Told, Compared)


def by_weight(every: Sequence[Weighed]) -> list[Weighed]:
    """What asks for a look first; pairs of equal code last."""
    return sorted(every, key=lambda one: (one.same_code, ORDER.index(one.verdict), -(one.ratio or 0.0)))
