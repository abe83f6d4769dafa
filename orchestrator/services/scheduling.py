"""What the end of a review means for the schedule that it came from."""

from datetime import datetime

from sqlalchemy.orm import Session

from orchestrator.services import slots
from orchestrator.store import schedules
from orchestrator.store.reviews import Review, ReviewState
from orchestrator.store.schedules import ScheduleKind


def after(db: Session, review: Review, now: datetime, *, state: ReviewState) -> None:
    """Set the next slot of the loop that the review came from. Call in the transaction that ends the review."""
    schedule = schedules.get(db, review.schedule_id) if review.schedule_id else None
    if schedule is not None and schedule.kind is ScheduleKind.LOOP and schedule.enabled and schedule.next_at is None:
        schedule.next_at = slots.after_pause(schedule, now, failed=state is ReviewState.FAILED)
