"""Who works on a review: claims, leases and fences.

A claim is one conditional UPDATE. It raises the row's fence, and every later write of the runner names that fence:
a runner that was thought dead, and whose review somebody else took over, changes no row and learns it by `LostClaim`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import ColumnElement, and_, func, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, aliased

from orchestrator.store.reviews import Review, ReviewState

ON_A_MACHINE = (ReviewState.RUNNING, ReviewState.CANCELLING)
WAITING = (ReviewState.QUEUED, ReviewState.WAITING_FOR_NODE)
FIRST_COMES_FIRST = (Review.priority.desc(), Review.created_at, Review.id)
NOBODY = {"lease_owner": None, "lease_until": None}
LONGEST_PAUSE = timedelta(minutes=15)  # that a review is ever put off for


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a review, as long as the fence in the row is this one."""

    review_id: UUID
    fence: int
    attempt: int  # counted from 1
    machine: str
    owner: str  # process, for messages
    lease_s: float
    last: bool = False  # no further attempt comes after this one


class LostClaim(Exception):
    """Somebody else has the review now, or it was ended: stop at once and write nothing."""


def next_due(db: Session, now: datetime) -> UUID | None:
    """The review that goes next: the most urgent, then the longest waiting."""
    return db.scalar(select(Review.id).where(is_due(now)).order_by(*FIRST_COMES_FIRST).limit(1))


def due(db: Session, now: datetime, *, limit: int = 100) -> Sequence[UUID]:
    """All that could be claimed now."""
    return db.scalars(select(Review.id).where(is_due(now)).order_by(*FIRST_COMES_FIRST).limit(limit)).all()


def is_due(now: datetime) -> ColumnElement[bool]:
    return and_(
        Review.state.in_(WAITING),
        or_(Review.not_before.is_(None), Review.not_before <= now),
        Review.attempt < Review.max_attempts,
        ~Review.cancel_requested,
    )


def claim(db: Session, review_id: UUID, *, machine: str, owner: str, now: datetime, lease_s: float) -> Lease | None:
    """Take a review that waits, or whose runner let its lease expire. None when somebody was faster,
    or when this machine has another review. The attempt is counted here, not at a failure, so that a review
    that kills its worker ends some day."""
    other = aliased(Review)
    machine_is_busy = select(other.id).where(
        other.machine == machine, other.state.in_(ON_A_MACHINE), other.id != review_id
    )
    expired = and_(
        Review.state == ReviewState.RUNNING,
        Review.lease_until < now,
        Review.attempt < Review.max_attempts,
        ~Review.cancel_requested,
    )
    taking = (
        update(Review)
        .where(Review.id == review_id, or_(is_due(now), expired), ~machine_is_busy.exists())
        .values(
            state=ReviewState.RUNNING,
            attempt=Review.attempt + 1,
            fence=Review.fence + 1,
            lease_owner=owner,
            lease_until=now + timedelta(seconds=lease_s),
            heartbeat=now,
            machine=machine,
            not_before=None,
            started_at=func.coalesce(Review.started_at, now),
            error="",
        )
        .returning(Review.fence, Review.attempt, Review.max_attempts)
        .execution_options(synchronize_session=False)
    )
    try:
        with db.begin_nested():
            taken = db.execute(taking).one_or_none()
    except IntegrityError:  # another process of this machine took another review in this instant
        return None
    if taken is None:
        return None
    last = taken.attempt >= taken.max_attempts
    return Lease(review_id, taken.fence, taken.attempt, machine, owner, lease_s, last)


def hold(db: Session, lease: Lease, now: datetime) -> bool:
    """Begin a fenced write: first statement of its transaction. Raises `LostClaim`.

    Extends the lease, and returns whether somebody asked to cancel.
    """
    held = db.execute(
        update(Review)
        .where(Review.id == lease.review_id, Review.fence == lease.fence, Review.state.in_(ON_A_MACHINE))
        .values(heartbeat=now, lease_until=now + timedelta(seconds=lease.lease_s))
        .returning(Review.cancel_requested)
        .execution_options(synchronize_session=False)
    ).one_or_none()
    if held is None:
        raise LostClaim(f"review {lease.review_id} is no longer held by {lease.owner} (fence {lease.fence})")
    return bool(held.cancel_requested)


def wants_cancel(db: Session, lease: Lease) -> bool:
    """Whether to stop, without writing: a cancel was asked for. Raises `LostClaim`."""
    row = db.execute(
        select(Review.cancel_requested).where(
            Review.id == lease.review_id, Review.fence == lease.fence, Review.state.in_(ON_A_MACHINE)
        )
    ).one_or_none()
    if row is None:
        raise LostClaim(f"review {lease.review_id} is no longer held by {lease.owner} (fence {lease.fence})")
    return bool(row.cancel_requested)


def park(
    db: Session, lease: Lease, *, state: ReviewState, not_before: datetime | None, note: str, count_attempt: bool
) -> None:
    """Give the review back to be gone on with later (None: at once). Call after `hold` in the same transaction."""
    db.execute(
        update(Review)
        .where(Review.id == lease.review_id, Review.fence == lease.fence)
        .values(
            state=state,
            not_before=not_before,
            outcome_note=note,
            attempt=Review.attempt if count_attempt else Review.attempt - 1,
            **NOBODY,
        )
        .execution_options(synchronize_session=False)
    )


def end(db: Session, lease: Lease, *, state: ReviewState, now: datetime, error: str = "", note: str = "") -> None:
    """The review is over. Call after `hold` in the same transaction."""
    db.execute(
        update(Review)
        .where(Review.id == lease.review_id, Review.fence == lease.fence)
        .values(state=state, finished_at=now, error=error, outcome_note=note, **NOBODY)
        .execution_options(synchronize_session=False)
    )


def held(db: Session) -> Sequence[Review]:
    """Reviews that are running on some machine, says the table."""
    return db.scalars(select(Review).where(Review.state.in_(ON_A_MACHINE))).all()


def held_on(db: Session, machine: str) -> Sequence[Review]:
    """Reviews that are running on that machine, says the table."""
    return db.scalars(select(Review).where(Review.state.in_(ON_A_MACHINE), Review.machine == machine)).all()


def shorten_waits(db: Session, now: datetime) -> None:
    """Nobody is put off for longer than LONGEST_PAUSE; a time further ahead is of a clock that was wrong."""
    db.execute(
        update(Review)
        .where(Review.state.in_(WAITING), Review.not_before > now + LONGEST_PAUSE)
        .values(not_before=None)
        .execution_options(synchronize_session=False)
    )


def give_up(db: Session, review: Review, now: datetime, *, where: str = "") -> ReviewState:
    """Take a review from its dead runner: back to the queue, or to its end when it has no attempt left or was to
    be cancelled. The raised fence stops the runner, should it live after all. `where` it was lost, for its readers.
    Returns the new state, or the old one when the runner was heard of in this very moment."""
    if review.cancel_requested:
        state, error = ReviewState.CANCELLED, ""
    elif review.attempt >= review.max_attempts:
        state = ReviewState.FAILED
        times = "once" if review.attempt == 1 else f"{review.attempt} times, the last time"
        error = (
            f"Set aside: its worker was lost {times} on {review.machine}{where and f' in step {where}'}. "
            "The steps' logs show how far it came; asking for it again begins anew."
        )
    else:
        state, error = ReviewState.QUEUED, ""
    taken = db.execute(
        update(Review)
        .where(Review.id == review.id, Review.fence == review.fence, Review.heartbeat == review.heartbeat)
        .values(
            state=state,
            fence=Review.fence + 1,
            error=error,
            finished_at=now if state.ended else None,
            **NOBODY,
        )
        .returning(Review.id)
        .execution_options(synchronize_session=False)
    ).one_or_none()
    return state if taken else review.state
