"""Measurements: one row per review and name. A series is one name on one machine key."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, Index, Text, UniqueConstraint, cast, func, select
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.orm import Mapped, Session, mapped_column

from orchestrator.store.base import AnyJson, Base, Key, Name
from orchestrator.store.reviews import Review
from orchestrator.store.session import AS_NUMBERS


def those_that_count(row: DefaultExecutionContext) -> int:
    values: Mapping[str, Any] = row.get_current_parameters()
    return len(values["sessions"]) - (values.get("contaminated") or 0)


class MeasurementRow(Base):
    __tablename__ = "measurements"
    __table_args__ = (
        UniqueConstraint("review_id", "name"),
        Index("ix_measurements_series", "repo_id", "at"),
        Index("ix_measurements_name", "repo_id", "name", "at"),
    )

    id: Mapped[Key]
    review_id: Mapped[UUID] = mapped_column(ForeignKey("reviews.id", ondelete="CASCADE"))
    repo_id: Mapped[UUID] = mapped_column(ForeignKey("repos.id"))
    name: Mapped[str] = mapped_column(Name)
    command: Mapped[str] = mapped_column(default="")
    unit: Mapped[str]
    # measure.machine_key: only equal keys are compared
    machine_key: Mapped[str] = mapped_column(Name)
    commit: Mapped[str]
    at: Mapped[datetime]
    sessions: Mapped[Any] = mapped_column(AnyJson, nullable=False)  # list of records.Session
    median: Mapped[float | None]  # in `unit`; empty when too many sessions were void
    spread: Mapped[float | None]  # median absolute deviation over the median
    contaminated: Mapped[int] = mapped_column(default=0)  # void sessions
    good: Mapped[int | None] = mapped_column(default=those_that_count)  # the others; empty of rows by an older version
    note: Mapped[str] = mapped_column(default="")
    verdict: Mapped[Any | None] = mapped_column(AnyJson)  # records.Change
    surroundings: Mapped[Any | None] = mapped_column(AnyJson)  # measure.records.Surroundings; empty of older rows


def of_review(db: Session, review_id: UUID) -> Sequence[MeasurementRow]:
    return db.scalars(
        select(MeasurementRow).where(MeasurementRow.review_id == review_id).order_by(MeasurementRow.name)
    ).all()


def named(db: Session, review_id: UUID, name: str) -> MeasurementRow | None:
    return db.scalars(
        select(MeasurementRow).where(MeasurementRow.review_id == review_id, MeasurementRow.name == name)
    ).first()


@dataclass(frozen=True, slots=True)
class Measured:
    """A measurement as a point of a series, without its sessions."""

    name: str
    unit: str
    machine_key: str
    at: datetime
    commit: str
    review_id: UUID
    median: float | None
    spread: float | None
    contaminated: int
    note: str
    verdict: Any


def history(db: Session, repo_id: UUID, *, reviews: int, most: int) -> Sequence[Measured]:
    """What the repo's newest reviews measured, oldest first; of many benchmarks only the newest `most` measurements."""
    columns = [getattr(MeasurementRow, field.name) for field in fields(Measured)]
    newest = (
        select(Review.id)
        .where(Review.repo_id == repo_id)
        .order_by(Review.created_at.desc(), Review.id.desc())
        .limit(reviews)
        .subquery()
    )
    found = db.execute(
        select(*columns)
        .join(newest, newest.c.id == MeasurementRow.review_id)
        .order_by(MeasurementRow.at.desc(), MeasurementRow.name.desc())
        .limit(most)
    ).all()
    return [Measured(*row) for row in reversed(found)]


@dataclass(slots=True)
class Night:
    """A measurement as a point of a history: how many sessions it had, but none of them.

    Nobody changes one. It is not frozen because making ten thousand frozen ones takes longer than reading them.
    """

    name: str
    unit: str
    machine_key: str
    at: datetime
    commit: str
    median: float | None
    spread: float | None
    good: int
    void: int
    note: str
    id: UUID | None = None  # None: not asked for
    review_id: UUID | None = None


def nights(
    db: Session,
    repo_id: UUID,
    *,
    newest: int,
    name: str = "",
    before: tuple[datetime, UUID] | None = None,
    ids: bool = True,
) -> Sequence[Night]:
    """The newest so many measurements of a repo (of one name; before that time and id), oldest first.

    A page may show ten thousand. So nobody looks into lists of sessions, which takes longer than all else; rows are no
    entities; numbers are not spelt out on their way; a time is, and read once for all that were measured then; and
    whoever needs no ids should say so, because they take a third of the time.
    """
    row = MeasurementRow
    columns = (row.name, row.unit, row.machine_key, cast(row.at, Text), row.commit, row.median, row.spread,
               func.coalesce(row.good, func.json_array_length(row.sessions) - row.contaminated), row.contaminated,
               row.note,
               *((row.id, row.review_id) if ids else ()))  # fmt: skip
    wanted = select(*columns).where(row.repo_id == repo_id)
    if name:
        wanted = wanted.where(row.name == name)
    if before is not None:
        wanted = wanted.where((row.at < before[0]) | ((row.at == before[0]) & (row.id < before[1])))
    wanted = wanted.order_by(row.at.desc(), row.id.desc()).limit(newest).execution_options(**AS_NUMBERS)
    by_column = list(zip(*reversed(db.connection().execute(wanted).all()), strict=True))
    if not by_column:
        return []
    at = list(Night.__dataclass_fields__).index("at")
    known = {sent: moment(sent) for sent in set(by_column[at])}
    by_column[at] = tuple(known[sent] for sent in by_column[at])
    return list(map(Night, *by_column))


def moment(sent: str) -> datetime:
    """A time as databases write it: PostgreSQL with the session's offset, SQLite in UTC and without any."""
    at = datetime.fromisoformat(sent)
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


def surroundings(
    db: Session, repo_id: UUID, at: Collection[datetime], name: str = ""
) -> dict[tuple[str, str, datetime], Any]:
    """What was around the measurements of those moments, by name, machine key and moment, where it was kept."""
    row = MeasurementRow
    wanted = select(row.name, row.machine_key, row.at, row.surroundings).where(
        row.repo_id == repo_id, row.at.in_(at), row.surroundings.is_not(None)
    )
    if name:
        wanted = wanted.where(row.name == name)
    return {(name, key, moment): around for name, key, moment, around in db.execute(wanted)}


def sessions_of(db: Session, ids: Sequence[UUID]) -> dict[UUID, Sequence[Any]]:
    """Their sessions, as records.Session in JSON."""
    found = db.execute(select(MeasurementRow.id, MeasurementRow.sessions).where(MeasurementRow.id.in_(ids)))
    return {id: sessions for id, sessions in found}


def verdicts(db: Session, repo_id: UUID, since: datetime, until: datetime) -> dict[UUID | None, Any]:
    """By measurement, what the comparisons of that time said, as records.Change in JSON."""
    row = MeasurementRow
    wanted = select(row.id, row.verdict).where(
        row.repo_id == repo_id, row.at >= since, row.at <= until, row.verdict.is_not(None)
    )
    return {id: verdict for id, verdict in db.execute(wanted)}
