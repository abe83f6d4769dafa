"""Steps of a review, and what agents claimed in them. One row per (review, name)."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import JSON, ForeignKey, Text, UniqueConstraint, case, cast, select, type_coerce, update
from sqlalchemy.orm import Mapped, Session, mapped_column, undefer

from orchestrator.store.base import AnyJson, Base, Counter, Key, Name, choice

PROBE = "probe:"  # how the names of their steps begin


class StepState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    WAITING_FOR_NODE = "waiting_for_node"  # begun; goes on when the node answers again
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

    @property
    def settled(self) -> bool:
        """Whether nothing more is to be done: it is done, or failed in a way that is itself a result."""
        return self.state is StepState.DONE or (self.state is StepState.FAILED and self.result is not None)


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


def results(
    db: Session, review_id: UUID, prefix: str, *, states: Sequence[StepState] = (StepState.DONE,)
) -> Sequence[tuple[UUID, str]]:
    """Of the steps that are done and whose name begins so, in order: the id and the result as JSON text."""
    found = db.execute(
        select(Step.id, cast(Step.result, Text))
        .where(
            Step.review_id == review_id,
            Step.state.in_(states),
            Step.result.is_not(None),
            Step.name.startswith(prefix, autoescape=True),
        )
        .order_by(Step.position, Step.name)
    )
    return [(row[0], row[1]) for row in found]


class ProbeStep(NamedTuple):
    review_id: UUID
    probe: str
    reason: str
    state: str  # records.ProbeState; empty for one without a reason, which can then be any but could_not_run


def probes_of_reviews(db: Session, review_ids: Sequence[UUID]) -> Sequence[ProbeStep]:
    """The probes of these reviews that came to their end, in order. Opens only the results that give a reason: those
    of a list of reviews may be megabytes."""
    state = case((Step.reason != "", type_coerce(Step.result, JSON)["state"].as_string()), else_="")
    found = db.execute(
        select(Step.review_id, Step.name, Step.reason, state)
        .where(
            Step.review_id.in_(review_ids),
            Step.state == StepState.DONE,
            Step.result.is_not(None),
            Step.name.startswith(PROBE, autoescape=True),
        )
        .order_by(Step.review_id, Step.position, Step.name)
    )
    return [ProbeStep(row[0], row[1].removeprefix(PROBE), row[2], row[3] or "") for row in found]


def get(db: Session, step_id: UUID) -> Step | None:
    return db.get(Step, step_id)


def named(db: Session, review_id: UUID, name: str) -> Step | None:
    """The step with its result."""
    return db.scalar(select(Step).where(Step.review_id == review_id, Step.name == name).options(undefer(Step.result)))


# The runner's side: each call belongs into a transaction that began with claims.hold -----------


def plan(db: Session, review_id: UUID, names: Sequence[tuple[str, int]]) -> None:
    """Add pending steps (name, position) that are not there yet."""
    there = set(db.scalars(select(Step.name).where(Step.review_id == review_id)))
    db.add_all(Step(review_id=review_id, name=name, position=position) for name, position in names if name not in there)
    db.flush()


def start(db: Session, review_id: UUID, name: str, now: datetime) -> Step:
    """The step runs from now on, as its next attempt. It must have been planned."""
    step = db.scalars(select(Step).where(Step.review_id == review_id, Step.name == name)).one()
    step.state = StepState.RUNNING
    step.attempt += 1
    step.started_at = now
    step.ended_at = None
    step.summary = step.reason = step.box = ""
    step.result = None
    db.flush()
    return step


def name_box(db: Session, step_id: UUID, box: str) -> None:
    """Write down what is about to be started, so that a successor can find it."""
    db.execute(update(Step).where(Step.id == step_id).values(box=box).execution_options(synchronize_session=False))


def end(
    db: Session,
    step_id: UUID,
    now: datetime,
    *,
    state: StepState,
    summary: str = "",
    reason: str = "",
    result: Any = None,
) -> None:
    db.execute(
        update(Step)
        .where(Step.id == step_id)
        .values(state=state, ended_at=now, summary=summary, reason=reason, result=result)
        .execution_options(synchronize_session=False)
    )


def wait(db: Session, step_id: UUID, reason: str) -> None:
    """It was begun and cannot go on now; `start` takes it up again."""
    db.execute(
        update(Step)
        .where(Step.id == step_id)
        .values(state=StepState.WAITING_FOR_NODE, reason=reason)
        .execution_options(synchronize_session=False)
    )


def skip_unfinished(db: Session, review_id: UUID, now: datetime, reason: str) -> None:
    """No step of an ended review may look as if it were still to come."""
    for was, becomes in (
        (StepState.RUNNING, StepState.FAILED),
        (StepState.WAITING_FOR_NODE, StepState.FAILED),
        (StepState.PENDING, StepState.SKIPPED),
    ):
        db.execute(
            update(Step)
            .where(Step.review_id == review_id, Step.state == was)
            .values(state=becomes, reason=reason, ended_at=now)
            .execution_options(synchronize_session=False)
        )
