"""The tick: due schedules become waiting reviews, each slot once, however many beats there are."""

from datetime import datetime
from uuid import UUID

import structlog
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from orchestrator.services import scheduling
from orchestrator.services.workshop import Workshop
from orchestrator.store import repos, reviews, schedules
from orchestrator.store.reviews import PRIORITY_SCHEDULED, Review, ReviewState
from orchestrator.store.schedules import Schedule, ScheduleKind
from review_agents.ports import RepoProblem

log = structlog.get_logger(__name__)


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
    return queued


def use_slot(shop: Workshop, schedule_id: UUID, slot: datetime) -> UUID | None:
    """The review that was queued for the slot, if one was; the schedule says why when none was."""
    unchanged = unchanged_commit(shop, schedule_id)
    try:
        with shop.sessions.begin() as db:
            schedule = schedules.get(db, schedule_id)
            if schedule is None or schedule.next_at != slot or not schedule.enabled:
                return None  # another tick was faster, or it was changed meanwhile
            now = shop.clock()
            schedule.last_slot = slot
            note, review = queue(shop, db, schedule, slot, now, unchanged)
            schedule.last_note = note
            schedule.next_at = (scheduling.after_slot if review else scheduling.after_nothing)(schedule, now)
            return review
    except IntegrityError:  # another tick made the row in this instant
        return None


def queue(
    shop: Workshop, db: Session, schedule: Schedule, slot: datetime, now: datetime, unchanged: str
) -> tuple[str, UUID | None]:
    """A note for the schedule, and the new review, if there is one."""
    if unchanged:
        return f"skipped: still at commit {unchanged[:12]}, which was reviewed", None
    waiting = reviews.waiting_for(db, schedule.repo_id, schedule.ref)
    if waiting is not None:
        return "a review of this repo and ref was waiting already", None
    review = Review(
        repo_id=schedule.repo_id,
        ref=schedule.ref,
        focuses=schedule.focuses,
        budget_minutes=schedule.budget_minutes or shop.settings.budget_minutes,
        force=not schedule.skip_unchanged,
        max_attempts=shop.settings.max_attempts,
        requested_by="schedule",
        priority=PRIORITY_SCHEDULED,
        schedule_id=schedule.id,
        slot=slot,
        created_at=now,
    )
    db.add(review)
    db.flush()
    return "", review.id


def unchanged_commit(shop: Workshop, schedule_id: UUID) -> str:
    """The commit, when the schedule's ref still names the one that its last whole review saw.

    Where the remote cannot be asked the answer is "": the review itself will say what is wrong.
    """
    with shop.sessions.reading() as db:
        schedule = schedules.get(db, schedule_id)
        if schedule is None or not schedule.skip_unchanged:
            return ""
        repo = repos.get(db, schedule.repo_id)
        last = db.scalar(
            select(Review.commit)
            .where(Review.repo_id == schedule.repo_id, Review.ref == schedule.ref, Review.state == ReviewState.DONE)
            .order_by(Review.finished_at.desc())
            .limit(1)
        )
    if repo is None or not last:
        return ""
    try:
        return last if shop.git.probe(repo.url, schedule.ref).commit == last else ""
    except RepoProblem as problem:
        log.info("a scheduled repo could not be asked", repo=repo.name, problem=str(problem))
        return ""


def heal_loops(shop: Workshop, now: datetime) -> None:
    """A loop whose review was cancelled while it waited, or was deleted, would stand still."""
    with shop.sessions.begin() as db:
        under_way = select(Review.id).where(Review.schedule_id == Schedule.id, Review.finished_at.is_(None))
        still = select(Schedule).where(
            Schedule.kind == ScheduleKind.LOOP, Schedule.enabled, Schedule.next_at.is_(None), ~under_way.exists()
        )
        for schedule in db.scalars(still):
            schedule.next_at = scheduling.after_nothing(schedule, now)
