"""When a schedule's next pass is: pure rules over a schedule row and the time.

A nightly pass has a local time of day in an IANA zone. A time that the clock skips in spring moves forward; one
that comes twice in autumn fires once. A loop's next pass is a pause after the end of the last one.
"""

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from sqlalchemy.orm import Session

from orchestrator.store import schedules
from orchestrator.store.reviews import Review, ReviewState
from orchestrator.store.schedules import Schedule, ScheduleKind

PAUSE_AFTER_FAILURE = timedelta(minutes=15)  # at least; a repo that cannot be reached is not asked each minute


def nightly(at: str, zone: str, after: datetime) -> datetime:
    """The first time after `after` when it is `at` ("HH:MM") in that zone."""
    place = ZoneInfo(zone)
    hour, minute = at.split(":")
    local_day = after.astimezone(place).date()
    for days in range(-1, 3):
        local = datetime.combine(local_day + timedelta(days=days), time(int(hour), int(minute)), tzinfo=place)
        if (moment := local.astimezone(UTC)) > after:
            return moment
    raise AssertionError(f"no {at} in {zone} within three days")


def following(schedule: Schedule, now: datetime) -> datetime | None:
    """The slot after the one that has just been used. A loop's is set when its review has ended."""
    if schedule.kind is ScheduleKind.LOOP or not schedule.enabled:
        return None
    return nightly(schedule.at, schedule.zone, now)


def after_pause(schedule: Schedule, now: datetime, *, failed: bool = False) -> datetime:
    pause = timedelta(minutes=schedule.pause_minutes)
    return now + (max(pause, PAUSE_AFTER_FAILURE) if failed else pause)


def after(db: Session, review: Review, now: datetime, *, state: ReviewState) -> None:
    """Set the next slot of the loop that the review came from. Call in the transaction that ends the review."""
    schedule = schedules.get(db, review.schedule_id) if review.schedule_id else None
    if schedule is not None and schedule.kind is ScheduleKind.LOOP and schedule.enabled and schedule.next_at is None:
        schedule.next_at = after_pause(schedule, now, failed=state is ReviewState.FAILED)
