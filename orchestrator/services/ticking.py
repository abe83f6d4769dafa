"""The tick: due schedules become waiting reviews, each slot once, however many beats there are."""

from datetime import datetime, timedelta
from uuid import UUID

import structlog
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from orchestrator.services import scheduling
from orchestrator.services.rows import looked_at
from orchestrator.services.workshop import Workshop
from orchestrator.store import repos, reviews, schedules
from orchestrator.store.reviews import PRIORITY_SCHEDULED, Review
from orchestrator.store.schedules import Schedule, ScheduleKind
from review_agents.ports import RemoteHead, RepoProblem

log = structlog.get_logger(__name__)

LONGEST_WAIT = timedelta(days=2)  # nightly slots are a day apart, loops their pause after a review


def tick(shop: Workshop) -> tuple[UUID, ...]:
    """Queue a review for every schedule whose slot has come, and return them. Safe to run at the same time twice."""
    now = shop.clock()
    with shop.sessions.reading() as db:
        slots = [(one.id, one.next_at) for one in schedules.due(db, now)]
    queued = tuple(
        review_id for schedule_id, slot in slots if slot and (review_id := use_slot(shop, schedule_id, slot))
    )
    for review_id in queued:
        shop.nudge(review_id)
    heal_loops(shop, now)
    heal_times(shop, now)
    return queued


def use_slot(shop: Workshop, schedule_id: UUID, slot: datetime) -> UUID | None:
    """The review that was queued for the slot, if one was; the schedule says why when none was."""
    head = head_of(shop, schedule_id)
    try:
        with shop.sessions.begin() as db:
            schedule = schedules.get(db, schedule_id)
            if schedule is None or schedule.next_at != slot or not schedule.enabled:
                return None  # another tick was faster, or it was changed meanwhile
            now = shop.clock()
            schedule.last_slot = slot
            note, review = queue(shop, db, schedule, slot, now, head)
            schedule.last_note = note
            schedule.next_at = (scheduling.after_slot if review else scheduling.after_nothing)(schedule, now)
            return review
    except IntegrityError:  # another tick made the row in this instant
        return None


def queue(
    shop: Workshop, db: Session, schedule: Schedule, slot: datetime, now: datetime, head: RemoteHead | None
) -> tuple[str, UUID | None]:
    """A note for the schedule, and the new review, if there is one."""
    if head and schedule.skip_unchanged and looked_at(db, schedule.repo_id, head.commit):
        return f"skipped: still at commit {head.commit[:12]}, which was reviewed", None
    if reviews.queue_is_full(db):
        return f"skipped: {reviews.MOST_WAITING} reviews wait already", None
    repo = repos.get_one(db, schedule.repo_id)
    review = Review(
        repo_id=schedule.repo_id,
        ref=(head.ref or head.commit) if head else schedule.ref,
        commit=head.commit if head else "",
        focuses=schedule.focuses,
        profile=schedule.profile or repo.profile,
        flavour=schedule.flavour or repo.flavour,
        budget_minutes=schedule.budget_minutes or shop.settings.budget_minutes,
        force=not schedule.skip_unchanged,
        max_attempts=shop.settings.max_attempts,
        requested_by="schedule",
        priority=PRIORITY_SCHEDULED,
        schedule_id=schedule.id,
        slot=slot,
        created_at=now,
    )
    if reviews.add_or_find_waiting(db, review) is not review:
        return "a review of this repo and ref was waiting already", None
    db.flush()
    return "", review.id


def head_of(shop: Workshop, schedule_id: UUID) -> RemoteHead | None:
    """What the schedule's ref names now; None where the remote cannot be asked: the review will say what is wrong."""
    with shop.sessions.reading() as db:
        schedule = schedules.get(db, schedule_id)
        repo = repos.get(db, schedule.repo_id) if schedule else None
    if schedule is None or repo is None:
        return None
    try:
        return shop.git.probe(repo.url, schedule.ref)
    except RepoProblem as problem:
        log.info("a scheduled repo could not be asked", repo=repo.name, problem=str(problem))
        return None


def heal_loops(shop: Workshop, now: datetime) -> None:
    """A loop whose review was cancelled while it waited, or was deleted, would stand still."""
    with shop.sessions.begin() as db:
        under_way = select(Review.id).where(Review.schedule_id == Schedule.id, Review.finished_at.is_(None))
        still = select(Schedule).where(
            Schedule.kind == ScheduleKind.LOOP, Schedule.enabled, Schedule.next_at.is_(None), ~under_way.exists()
        )
        for schedule in db.scalars(still):
            schedule.next_at = scheduling.after_nothing(schedule, now)


def heal_times(shop: Workshop, now: datetime) -> None:
    """A slot that was planned while the clock was ahead would leave its schedule asleep until then."""
    with shop.sessions.begin() as db:
        for schedule in db.scalars(select(Schedule).where(Schedule.enabled, Schedule.next_at > now + LONGEST_WAIT)):
            pause = timedelta(minutes=schedule.pause_minutes or 0)
            if schedule.next_at is not None and schedule.next_at > now + LONGEST_WAIT + pause:
                schedule.next_at = scheduling.after_nothing(schedule, now)
