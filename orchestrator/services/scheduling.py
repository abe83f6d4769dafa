"""A schedule's next slot, where it depends on how a review or a slot of it ended."""

from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from orchestrator.services import slots
from orchestrator.store import schedules
from orchestrator.store.reviews import Review, ReviewState
from orchestrator.store.schedules import Schedule, ScheduleKind

PAUSE_AFTER_FAILURE = timedelta(minutes=15)  # at least; a repo that cannot be reached is not asked each minute


def after_slot(schedule: Schedule, now: datetime) -> datetime | None:
    """The next slot when one has just become a review: a loop's is planned when that review ends."""
    return slots.nightly_after(schedule, now) if schedule.kind is ScheduleKind.NIGHTLY else None


def after_nothing(schedule: Schedule, now: datetime) -> datetime | None:
    """The next slot when one has just made no review of its own."""
    return after_slot(schedule, now) or slots.after_review(schedule, now)


def after(db: Session, review: Review, now: datetime, *, state: ReviewState) -> None:
    """Plan the next slot of the loop that the review came from. Call in the transaction that ends the review."""
    schedule = schedules.get(db, review.schedule_id) if review.schedule_id else None
    if schedule is None or schedule.kind is not ScheduleKind.LOOP or schedule.next_at is not None:
        return
    planned = slots.after_review(schedule, now)
    if planned is not None and state is ReviewState.FAILED:
        planned = max(planned, now + PAUSE_AFTER_FAILURE)
    schedule.next_at = planned
