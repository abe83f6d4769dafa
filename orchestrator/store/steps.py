"""Steps of a review, and what agents claimed in them. One row per (review, name)."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, UniqueConstraint, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from orchestrator.store.base import AnyJson, Base, Counter, Key, Name, choice


class StepState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


class Step(Base):
    __tablename__ = "steps"
    __table_args__ = (UniqueConstraint("review_id", "name"),)

    id: Mapped[Key]
    review_id: Mapped[UUID] = mapped_column(ForeignKey("reviews.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(
        Name
    )  # checkout, prepare, probe:NAME, focus:NAME, verify:FINGERPRINT, measure:NAME, merge, record
    position: Mapped[int]
    state: Mapped[StepState] = mapped_column(choice(StepState), default=StepState.PENDING)
    attempt: Mapped[int] = mapped_column(default=0)
    box: Mapped[str] = mapped_column(default="")  # the container's name, written before it starts
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    summary: Mapped[str] = mapped_column(default="")  # one line for the page
    reason: Mapped[str] = mapped_column(default="")  # why it failed or was skipped
    # What it produced; loaded only when asked for, because it can be large. For a probe: ProbeResult.
    result: Mapped[Any | None] = mapped_column(AnyJson, deferred=True)


class CandidateRow(Base):
    """A claim as it streams in; keyed by attempt, so that a replayed turn files nothing twice."""

    __tablename__ = "candidates"
    __table_args__ = (UniqueConstraint("step_id", "attempt", "seq"),)

    id: Mapped[Counter]
    step_id: Mapped[UUID] = mapped_column(ForeignKey("steps.id", ondelete="CASCADE"))
    attempt: Mapped[int]
    seq: Mapped[int]
    body: Mapped[Any] = mapped_column(AnyJson, nullable=False)  # records.Candidate


def of_review(db: Session, review_id: UUID) -> Sequence[Step]:
    """The review's steps in order, without their results."""
    return db.scalars(select(Step).where(Step.review_id == review_id).order_by(Step.position, Step.name)).all()


def get(db: Session, step_id: UUID) -> Step | None:
    return db.get(Step, step_id)
