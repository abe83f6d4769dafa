"""Conversations of agents as they happen: an entry a row, whole and in order; what they claim comes in beside them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, UniqueConstraint, delete, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from orchestrator.store.base import AnyJson, Base, Counter
from orchestrator.store.steps import CandidateRow, Step


class Turn(Base):
    """One entry of a transcript. An attempt that went on where an earlier one was cut off adds its own."""

    __tablename__ = "turns"
    __table_args__ = (UniqueConstraint("step_id", "attempt", "seq"),)

    id: Mapped[Counter]
    step_id: Mapped[UUID] = mapped_column(ForeignKey("steps.id", ondelete="CASCADE"))
    attempt: Mapped[int]
    seq: Mapped[int]
    at: Mapped[datetime]
    body: Mapped[Any] = mapped_column(AnyJson, nullable=False)  # records.Entry


def of_step(db: Session, step_id: UUID) -> Sequence[Turn]:
    """The whole transcript, in the order in which it happened."""
    return db.scalars(select(Turn).where(Turn.step_id == step_id).order_by(Turn.attempt, Turn.seq)).all()


def candidates_of(db: Session, step_id: UUID) -> Sequence[Any]:
    """What the step's agent has claimed in all its attempts, as JSON."""
    found = select(CandidateRow.body).where(CandidateRow.step_id == step_id)
    return db.scalars(found.order_by(CandidateRow.attempt, CandidateRow.seq)).all()


def steps_with(db: Session, review_id: UUID) -> Sequence[tuple[UUID, str, int]]:
    """Id and name of the review's steps that have a transcript, with the number of its entries."""
    found = db.execute(
        select(Step.id, Step.name, func.count())
        .join(Turn, Turn.step_id == Step.id)
        .where(Step.review_id == review_id)
        .group_by(Step.id, Step.name, Step.position)
        .order_by(Step.position, Step.name)
    )
    return [(row[0], row[1], row[2]) for row in found]


def add(
    db: Session, step_id: UUID, attempt: int, seq: int, at: datetime, body: Any, candidate: Any | None = None
) -> None:
    """One entry, and the candidate that came with it. Belongs into a transaction that began with claims.hold."""
    db.add(Turn(step_id=step_id, attempt=attempt, seq=seq, at=at, body=body))
    if candidate is not None:
        db.add(CandidateRow(step_id=step_id, attempt=attempt, seq=seq, body=candidate))


def forget(db: Session, review_id: UUID) -> None:
    """The conversations of the review; what they found has been filed."""
    its_steps = select(Step.id).where(Step.review_id == review_id)
    db.execute(delete(Turn).where(Turn.step_id.in_(its_steps)), execution_options={"synchronize_session": False})
