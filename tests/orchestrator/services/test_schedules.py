from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from orchestrator.services import schedules
from orchestrator.services.errors import BadInput, UnknownRepo, UnknownSchedule
from orchestrator.services.schedules import Plan
from orchestrator.services.views import ScheduleKind
from orchestrator.services.workshop import Workshop
from orchestrator.store.reviews import Review, ReviewState
from orchestrator.store.session import Sessions
from tests.factories import NOON, make_repo, make_review, make_schedule, make_shop

LOOP = Plan(kind=ScheduleKind.LOOP, pause_minutes=30)


@pytest.fixture
def shop(sessions: Sessions, tmp_path: Path) -> Workshop:
    return make_shop(sessions, tmp_path)


@pytest.fixture
def repo_id(shop: Workshop) -> UUID:
    with shop.sessions.begin() as db:
        return make_repo(db, name="tool", default_ref="trunk").id


def test_a_nightly_plan_comes_next_at_its_local_time(shop: Workshop, repo_id: UUID) -> None:
    row = schedules.get(shop, schedules.create(shop, repo_id, Plan(at="03:15", zone="America/New_York")))
    assert (row.next_at, row.next_local) == (datetime(2026, 12, 1, 8, 15, tzinfo=UTC), "2026-12-01 03:15 EST")
    assert (row.ref, row.repo_name, row.pause_minutes) == ("trunk", "tool", 0)


def test_a_loop_begins_at_once(shop: Workshop, repo_id: UUID) -> None:
    row = schedules.get(shop, schedules.create(shop, repo_id, LOOP))
    assert (row.next_at, row.at, row.pause_minutes) == (NOON, "", 30)


def test_a_changed_plan_has_its_next_slot_from_now(shop: Workshop, repo_id: UUID) -> None:
    schedule_id = schedules.create(shop, repo_id, Plan(at="02:00"))
    schedules.update(shop, schedule_id, Plan(at="13:00", ref="v1", focuses=("docs",), budget_minutes=5))
    row = schedules.get(shop, schedule_id)
    assert (row.next_at, row.ref, row.focuses) == (NOON + timedelta(hours=1), "v1", ("docs",))
    schedules.update(shop, schedule_id, Plan(enabled=False))
    assert schedules.get(shop, schedule_id).next_at is None


def test_a_changed_loop_waits_for_its_review_that_is_under_way(shop: Workshop, repo_id: UUID) -> None:
    schedule_id = schedules.create(shop, repo_id, LOOP)
    with shop.sessions.begin() as db:
        make_review(db, repo_id=repo_id, schedule_id=schedule_id, slot=NOON, state=ReviewState.RUNNING)
    schedules.update(shop, schedule_id, LOOP)
    assert schedules.get(shop, schedule_id).next_at is None


def test_a_deleted_schedule_leaves_its_reviews(shop: Workshop, repo_id: UUID) -> None:
    schedule_id = schedules.create(shop, repo_id, LOOP)
    with shop.sessions.begin() as db:
        review_id = make_review(db, repo_id=repo_id, schedule_id=schedule_id, slot=NOON, state=ReviewState.DONE).id
    schedules.delete(shop, schedule_id)
    with shop.sessions.reading() as db:
        assert db.get_one(Review, review_id).schedule_id is None
    with pytest.raises(UnknownSchedule):
        schedules.get(shop, schedule_id)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("at", {"at": "24:00"}),
        ("at", {"at": ""}),
        ("zone", {"zone": "Mars/Olympus"}),
        ("zone", {"zone": ""}),
        ("zone", {"zone": "../../etc/passwd"}),
        ("zone", {"zone": "/etc/localtime"}),
        ("zone", {"zone": "Europe"}),
        ("zone", {"zone": "a\x00b"}),
        ("pause_minutes", {"kind": ScheduleKind.LOOP, "pause_minutes": -1}),
        ("pause_minutes", {"kind": ScheduleKind.LOOP, "pause_minutes": 10**9}),
        ("budget_minutes", {"budget_minutes": 0}),
        ("ref", {"ref": "-x"}),
        ("focuses", {"focuses": ("A B",)}),
    ],
)
def test_a_plan_that_cannot_be_names_its_field(
    shop: Workshop, repo_id: UUID, field: str, wrong: dict[str, Any]
) -> None:
    with pytest.raises(BadInput) as refused:
        schedules.create(shop, repo_id, Plan(**wrong))
    assert refused.value.field == field
    assert schedules.listed(shop) == ()


def test_things_that_are_not_there_are_said_so(shop: Workshop) -> None:
    with pytest.raises(UnknownRepo):
        schedules.create(shop, uuid4(), Plan())
    for ask in (schedules.get, schedules.delete):
        with pytest.raises(UnknownSchedule):
            ask(shop, uuid4())
    with pytest.raises(UnknownSchedule):
        schedules.update(shop, uuid4(), Plan())


def test_tonight_shows_what_comes_what_waits_and_what_came(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        late = make_schedule(db, next_at=NOON + timedelta(hours=20))
        soon = make_schedule(db, next_at=NOON + timedelta(hours=2))
        overdue = make_schedule(db, next_at=NOON - timedelta(minutes=1))
        make_schedule(db, next_at=NOON + timedelta(hours=24))
        make_schedule(db, next_at=NOON + timedelta(hours=1), enabled=False)
        make_schedule(db, next_at=None)
        asked = make_review(db, created_at=NOON)
        nightly = make_review(db, priority=0, created_at=NOON - timedelta(hours=1), slot=NOON, schedule_id=soon.id)
        running = make_review(db, state=ReviewState.RUNNING, priority=0)
        early = make_review(db, state=ReviewState.DONE, slot=NOON - timedelta(hours=9), schedule_id=late.id)
        make_review(db, state=ReviewState.DONE, slot=NOON - timedelta(hours=25), schedule_id=late.id)
        make_review(db, state=ReviewState.DONE)
    found = schedules.tonight(shop)
    assert [one.schedule.id for one in found.coming] == [overdue.id, soon.id, late.id]
    assert found.coming[1].local == "2026-11-30 15:00 CET"
    assert [row.id for row in found.waiting] == [running.id, asked.id, nightly.id]
    assert [row.id for row in found.last_night] == [early.id, nightly.id]
