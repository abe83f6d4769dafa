"""Base against head, one row per review and compared metric; and the steps found in a repo's series."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, Index, Select, UniqueConstraint, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from orchestrator.store.base import AnyJson, Base, Key, Name, choice
from orchestrator.store.reviews import Review
from review_agents.records import Verdict


class ComparisonRow(Base):
    __tablename__ = "comparisons"
    __table_args__ = (
        UniqueConstraint("review_id", "name"),
        Index("ix_comparisons_series", "repo_id", "name", "at"),
        Index("ix_comparisons_same_code", "same_code", "at"),
    )

    id: Mapped[Key]
    review_id: Mapped[UUID] = mapped_column(ForeignKey("reviews.id", ondelete="CASCADE"))
    repo_id: Mapped[UUID] = mapped_column(ForeignKey("repos.id"))
    name: Mapped[str] = mapped_column(Name)
    kind: Mapped[str]  # review_agents.records.BenchmarkKind
    unit: Mapped[str]
    machine_key: Mapped[str] = mapped_column(Name)
    base_commit: Mapped[str]
    head_commit: Mapped[str]
    same_code: Mapped[bool]  # an A/A pair: any alarm is a false one
    at: Mapped[datetime]
    verdict: Mapped[Verdict] = mapped_column(choice(Verdict))
    ratio: Mapped[float | None]  # head over base; empty where there is no number
    low: Mapped[float | None]
    high: Mapped[float | None]
    void: Mapped[int] = mapped_column(default=0)  # void sessions
    body: Mapped[Any] = mapped_column(AnyJson, nullable=False)  # measure.records.Comparison


class ChangePointRow(Base):
    __tablename__ = "change_points"
    __table_args__ = (UniqueConstraint("repo_id", "name", "machine_key", "to_commit"),)

    id: Mapped[Key]
    repo_id: Mapped[UUID] = mapped_column(ForeignKey("repos.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(Name)
    machine_key: Mapped[str] = mapped_column(Name)
    from_commit: Mapped[str]
    to_commit: Mapped[str]
    found_at: Mapped[datetime]
    ratio: Mapped[float]  # after over before
    culprit: Mapped[str] = mapped_column(default="")  # the commit that a bisection named
    body: Mapped[Any] = mapped_column(AnyJson, nullable=False)  # measure.records.ChangePoint
    bisection: Mapped[Any | None] = mapped_column(AnyJson)  # measure.records.Bisection


def of_review(db: Session, review_id: UUID) -> Sequence[ComparisonRow]:
    return db.scalars(
        select(ComparisonRow).where(ComparisonRow.review_id == review_id).order_by(ComparisonRow.name)
    ).all()


def same_code_since(db: Session, when: datetime) -> Sequence[tuple[Verdict, int]]:
    """Verdicts on A/A pairs since then, with how many there were of each: the service's own false-alarm rate."""
    found = db.execute(
        select(ComparisonRow.verdict, func.count())
        .where(ComparisonRow.same_code, ComparisonRow.at >= when)
        .group_by(ComparisonRow.verdict)
    )
    return [(verdict, number) for verdict, number in found]


def same_code_ratios(db: Session, repo_id: UUID, name: str, machine_key: str, *, newest: int) -> Sequence[float]:
    """How far A/A pairs of that series lay apart; the noise that a change has to stand out of."""
    return [
        ratio
        for ratio in db.scalars(
            select(ComparisonRow.ratio)
            .where(
                ComparisonRow.repo_id == repo_id,
                ComparisonRow.name == name,
                ComparisonRow.machine_key == machine_key,
                ComparisonRow.same_code,
                ComparisonRow.ratio.is_not(None),
            )
            .order_by(ComparisonRow.at.desc())
            .limit(newest)
        )
        if ratio is not None
    ]


def change_points(db: Session, repo_id: UUID) -> Sequence[ChangePointRow]:
    """Newest first."""
    return db.scalars(
        select(ChangePointRow).where(ChangePointRow.repo_id == repo_id).order_by(ChangePointRow.found_at.desc())
    ).all()


# For pages and other tools -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Told:
    """A comparison by its columns alone: a body has sessions and stacks, and is read through for every part of it."""

    id: UUID
    review_id: UUID
    name: str
    kind: str
    unit: str
    machine_key: str
    base_commit: str
    head_commit: str
    same_code: bool
    at: datetime
    verdict: Verdict
    ratio: float | None
    low: float | None
    high: float | None
    void: int


@dataclass(frozen=True, slots=True)
class Explained:
    """What is shown of the body."""

    outcome: Any  # measure.records.Outcome
    grown: Any  # of its Why
    dependencies: Any
    no_profile: str | None  # why there is no profile; None: nobody asked for one
    shares: bool | None  # what `grown` counts in; None of rows by an older version


def told(db: Session, review_id: UUID) -> Sequence[Told]:
    """By name."""
    row = ComparisonRow
    return [Told(*found) for found in db.execute(telling().where(row.review_id == review_id).order_by(row.name))]


def told_of_name(db: Session, repo_id: UUID, name: str, *, newest: int) -> Sequence[Told]:
    """Newest first."""
    row = ComparisonRow
    wanted = telling().where(row.repo_id == repo_id, row.name == name).order_by(row.at.desc())
    return [Told(*found) for found in db.execute(wanted.limit(newest))]


def telling() -> Select[Any]:
    return select(*(getattr(ComparisonRow, one.name) for one in fields(Told)))


def explained(db: Session, ids: Collection[UUID]) -> dict[UUID, Explained]:
    row = ComparisonRow
    why = [row.body[("why", part)] for part in ("grown", "dependencies")]
    problem, shares = row.body[("why", "problem")].as_string(), row.body[("why", "shares")].as_boolean()
    found = db.execute(select(row.id, row.body["outcome"], *why, problem, shares).where(row.id.in_(ids)))
    return {id: Explained(*parts) for id, *parts in found}


def newest_review(db: Session, repo_id: UUID) -> UUID | None:
    """The last one in which anything was compared."""
    compared = select(ComparisonRow.id).where(ComparisonRow.review_id == Review.id).exists()
    return db.scalars(
        select(Review.id).where(Review.repo_id == repo_id, compared).order_by(Review.created_at.desc()).limit(1)
    ).first()


def body(db: Session, review_id: UUID, name: str) -> Any:
    """The whole comparison, a measure.records.Comparison in JSON; None where there is none."""
    return db.scalars(
        select(ComparisonRow.body).where(ComparisonRow.review_id == review_id, ComparisonRow.name == name)
    ).first()
