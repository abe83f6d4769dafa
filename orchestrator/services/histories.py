"""What a repo's nights say together: series on one machine key each, the steps in them, and our own false alarms."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID

from pydantic import TypeAdapter
from sqlalchemy.orm import Session

from orchestrator.measure.records import ChangePoint, Series
from orchestrator.services.workshop import Workshop
from orchestrator.store import comparisons, measurements
from orchestrator.store.comparisons import ChangePointRow
from orchestrator.store.measurements import Night
from review_agents.records import Verdict

NEWEST = 10_000  # measurements of a repo that are looked at
NIGHTS = timedelta(days=30)
CHANGE_POINT = TypeAdapter(ChangePoint)


@dataclass(frozen=True, slots=True)
class Step:
    """A step, and the commit that a bisection named for it."""

    point: ChangePoint
    culprit: str = ""
    problem: str = ""  # why a bisection could name none; empty also where there was no bisection


@dataclass(frozen=True, slots=True)
class FalseAlarms:
    """Verdicts on pairs of equal code: any alarm among them is false."""

    pairs: int  # that gave a verdict
    alarms: int
    without: int  # contaminated or inconclusive

    @property
    def rate(self) -> float | None:
        """None where there is nothing to tell it from."""
        return self.alarms / self.pairs if self.pairs else None


def series(shop: Workshop, repo_id: UUID) -> tuple[Series, ...]:
    """All of a repo, oldest night first; by name, the machine key used last at the end."""
    with shop.sessions.reading() as db:
        return series_of(db, repo_id)


def series_of(db: Session, repo_id: UUID) -> tuple[Series, ...]:
    return lines(measurements.nights(db, repo_id, newest=NEWEST))


def lines(nights: Iterable[Night]) -> tuple[Series, ...]:
    """Nights (oldest first) as one series per name, unit and machine key."""
    points: dict[tuple[str, str, str], list[Night]] = {}
    for one in nights:
        points.setdefault((one.name, one.unit, one.machine_key), []).append(one)
    found = [Series(name, unit, key, tuple(line)) for (name, unit, key), line in points.items()]
    return tuple(sorted(found, key=lambda one: (one.name, one.points[-1].at)))


def steps(shop: Workshop, repo_id: UUID) -> tuple[Step, ...]:
    """Newest first. What reviews confirmed and bisected, and what the series show beside."""
    with shop.sessions.reading() as db:
        every = series_of(db, repo_id)
        confirmed = comparisons.change_points(db, repo_id)
    return steps_of(every, confirmed)


def steps_of(every: Iterable[Series], confirmed: Sequence[ChangePointRow]) -> tuple[Step, ...]:
    from orchestrator.measure.change_points import change_points

    left = {row.id: row for row in confirmed}
    found: list[Step] = []
    for one in every:
        for point in change_points(one):
            row = known(point, left.values())
            if row is not None:
                del left[row.id]
            found.append(searched(narrowed(point, row), row))
    found += [searched(read(row), row) for row in left.values()]
    return tuple(sorted(found, key=lambda step: step.point.to_at, reverse=True))


def searched(point: ChangePoint, row: ChangePointRow | None) -> Step:
    if row is None:
        return Step(point)
    return Step(point, row.culprit, (row.bisection or {}).get("problem", ""))


def known(point: ChangePoint, rows: Iterable[ChangePointRow]) -> ChangePointRow | None:
    """The confirmed step that this one of a series is; the newest where several are."""
    return next((row for row in rows if belongs(point, row)), None)


def belongs(point: ChangePoint, row: ChangePointRow) -> bool:
    """Whether both are of one series and came in the same nights.

    A step comes after `from_at`, and at `to_at` at the latest; one that a review confirmed itself came with that night.
    """
    if (row.name, row.machine_key) != (point.name, point.machine_key):
        return False
    other = read(row)
    return point.from_at < other.to_at <= point.to_at or other.from_at < point.to_at <= other.to_at


def narrowed(point: ChangePoint, row: ChangePointRow | None) -> ChangePoint:
    """The series' own step with the commits that a bisection found."""
    return replace(point, from_commit=row.from_commit, to_commit=row.to_commit) if row else point


def read(row: ChangePointRow) -> ChangePoint:
    """By the names that its series has: a very long one is cut where it is stored, the body keeps it whole."""
    return replace(CHANGE_POINT.validate_python(row.body), name=row.name, machine_key=row.machine_key)


def false_alarms(shop: Workshop) -> FalseAlarms:
    """Of the last nights, over all repos: how often we said that equal code differs."""
    with shop.sessions.reading() as db:
        counts = dict(comparisons.same_code_since(db, shop.clock() - NIGHTS))
    alarms = counts.get(Verdict.SLOWER, 0) + counts.get(Verdict.FASTER, 0)
    pairs = alarms + counts.get(Verdict.NO_CHANGE, 0)
    return FalseAlarms(pairs, alarms, sum(counts.values()) - pairs)


def named(every: Sequence[Series], name: str) -> tuple[Series, ...]:
    """One benchmark's series, one per machine key."""
    return tuple(one for one in every if one.name == name)
