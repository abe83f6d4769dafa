"""Planning when repos come round by themselves, and what came and comes."""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sqlalchemy.orm import Session

from orchestrator.services import judging, rows, slots
from orchestrator.services.errors import BadInput, UnknownRepo, UnknownSchedule
from orchestrator.services.submitting import MOST_MINUTES, check_focuses, check_range
from orchestrator.services.targets import parse_ref
from orchestrator.services.views import Coming, ScheduleKind, ScheduleRow, Tonight
from orchestrator.services.workshop import Workshop
from orchestrator.store import repos, reviews
from orchestrator.store import schedules as table
from orchestrator.store.schedules import Schedule

LONGEST_PAUSE_MINUTES = 366 * 24 * 60
SHOWN_LAST_NIGHT = 200
NIGHT = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Plan:
    """When a repo comes round. `at` and `zone` are of nightly plans, `pause_minutes` of loops."""

    kind: ScheduleKind = ScheduleKind.NIGHTLY
    at: str = "02:00"  # HH:MM
    zone: str = "UTC"  # IANA name
    pause_minutes: int = 60  # from the end of one review to the next
    ref: str = ""  # empty: the branch that is the default one now
    focuses: tuple[str, ...] = ()
    profile: str = ""  # empty: as the repo is
    flavour: str = ""
    budget_minutes: int | None = None
    skip_unchanged: bool = True
    enabled: bool = True


def listed(shop: Workshop) -> tuple[ScheduleRow, ...]:
    """All schedules, the next one first."""
    with shop.sessions.reading() as db:
        return tuple(rows.schedule_row(*one) for one in table.listed(db))


def get(shop: Workshop, schedule_id: UUID) -> ScheduleRow:
    with shop.sessions.reading() as db:
        schedule = known(db, schedule_id)
        return rows.schedule_row(schedule, repos.names(db, {schedule.repo_id})[schedule.repo_id])


def create(shop: Workshop, repo_id: UUID, plan: Plan) -> UUID:
    """Raises `BadInput` naming the field."""
    values = checked(shop, plan)
    with shop.sessions.begin() as db:
        repo = repos.get(db, repo_id)
        if repo is None:
            raise UnknownRepo(repo_id)
        now = shop.clock()
        schedule = Schedule(repo_id=repo_id, created_at=now, **values)
        schedule.ref = schedule.ref or repo.default_ref
        schedule.next_at = slots.first(schedule, now)
        db.add(schedule)
        db.flush()
        return schedule.id


def update(shop: Workshop, schedule_id: UUID, plan: Plan) -> None:
    """Replace the plan; the next slot follows from it. A loop whose review is under way waits for its end."""
    values = checked(shop, plan)
    with shop.sessions.begin() as db:
        schedule = known(db, schedule_id)
        for name, value in values.items():
            setattr(schedule, name, value)
        schedule.ref = schedule.ref or repos.get_one(db, schedule.repo_id).default_ref
        waits = schedule.kind is ScheduleKind.LOOP and table.has_review_under_way(db, schedule_id)
        schedule.next_at = None if waits else slots.first(schedule, shop.clock())


def delete(shop: Workshop, schedule_id: UUID) -> None:
    """The reviews that it made stay."""
    with shop.sessions.begin() as db:
        db.delete(known(db, schedule_id))


def tonight(shop: Workshop) -> Tonight:
    """What comes in the next 24 hours, what waits now, and what came in the last 24."""
    now = shop.clock()
    with shop.sessions.reading() as db:
        planned = [rows.schedule_row(*one) for one in table.listed(db)]
        waiting = rows.review_rows(db, reviews.unfinished(db))
        last_night = rows.review_rows(db, reviews.scheduled_since(db, now - NIGHT, limit=SHOWN_LAST_NIGHT))
    coming = [
        Coming(schedule=one, at=one.next_at, local=one.next_local)
        for one in planned
        if one.enabled and one.next_at is not None and one.next_at < now + NIGHT
    ]
    return Tonight(now=now, coming=tuple(coming), waiting=waiting, last_night=last_night)


def checked(shop: Workshop, plan: Plan) -> dict[str, object]:
    """The plan's columns. Raises `BadInput`."""
    if plan.kind is ScheduleKind.NIGHTLY:
        try:
            slots.parse_clock(plan.at)
        except ValueError as problem:
            raise BadInput("at", f"{problem}; hours and minutes from 00:00 to 23:59 are expected.") from None
    elif not 0 <= plan.pause_minutes <= LONGEST_PAUSE_MINUTES:
        raise BadInput(
            "pause_minutes", f"A pause of {plan.pause_minutes} minutes is not between 0 and {LONGEST_PAUSE_MINUTES}."
        )
    judging.check(plan.profile, plan.flavour)
    check_range("budget_minutes", plan.budget_minutes, MOST_MINUTES, "minutes")
    return {
        "kind": plan.kind,
        "at": plan.at if plan.kind is ScheduleKind.NIGHTLY else "",
        "zone": check_zone(plan.zone),
        "pause_minutes": plan.pause_minutes if plan.kind is ScheduleKind.LOOP else 0,
        "ref": parse_ref(plan.ref),
        "focuses": check_focuses(plan.focuses, shop.focuses),
        "profile": plan.profile,
        "flavour": plan.flavour,
        "budget_minutes": plan.budget_minutes,
        "skip_unchanged": plan.skip_unchanged,
        "enabled": plan.enabled,
    }


def check_zone(zone: str) -> str:
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # unknown, a path, a folder of zones
        raise BadInput("zone", f"{zone[:60]!a} is no time zone; a name like Europe/Berlin was expected.") from None
    return zone


def known(db: Session, schedule_id: UUID) -> Schedule:
    schedule = table.get(db, schedule_id)
    if schedule is None:
        raise UnknownSchedule(schedule_id)
    return schedule
