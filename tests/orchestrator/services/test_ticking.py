"""Slots become reviews once each, on both databases."""

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from orchestrator.services import reviews, scheduling, ticking
from orchestrator.services.views import ReviewState, ScheduleKind
from orchestrator.services.workshop import Workshop
from orchestrator.store.reviews import Review
from orchestrator.store.schedules import Schedule
from orchestrator.store.session import Sessions
from review_agents.ports import UnreachableRepo
from review_agents.records import ProbeState
from tests.factories import (
    COMMIT,
    NOON,
    KnownRemotes,
    make_probe_result,
    make_repo,
    make_review,
    make_schedule,
    make_shop,
    make_step,
)


@pytest.fixture
def shop(each_sessions: Sessions, tmp_path: Path) -> Workshop:
    return make_shop(each_sessions, tmp_path)


def planned(shop: Workshop, **changed: Any) -> UUID:
    with shop.sessions.begin() as db:
        return make_schedule(db, **{"next_at": NOON, **changed}).id


def schedule_of(shop: Workshop, schedule_id: UUID) -> Schedule:
    with shop.sessions.reading() as db:
        return db.get_one(Schedule, schedule_id)


def queued(shop: Workshop) -> list[Review]:
    with shop.sessions.reading() as db:
        return list(db.scalars(select(Review).where(Review.requested_by == "schedule")))


def test_a_slot_that_has_come_becomes_a_review_and_the_next_one_is_planned(shop: Workshop) -> None:
    schedule_id = planned(shop, budget_minutes=7)
    (review_id,) = ticking.tick(shop)
    (review,) = queued(shop)
    assert (review.id, review.slot, review.ref, review.budget_minutes) == (review_id, NOON, "main", 7)
    schedule = schedule_of(shop, schedule_id)
    assert schedule.last_slot == NOON and schedule.next_at is not None and schedule.next_at > NOON
    assert shop.nudge.woken == [review_id]  # type: ignore[attr-defined]
    assert ticking.tick(shop) == ()


def test_a_slot_that_was_planned_while_the_clock_was_ahead_is_planned_anew(shop: Workshop) -> None:
    nightly = planned(shop, next_at=NOON + timedelta(days=300))
    loop = planned(shop, kind=ScheduleKind.LOOP, at="", pause_minutes=30, next_at=NOON + timedelta(days=300))
    rare = planned(shop, kind=ScheduleKind.LOOP, at="", pause_minutes=20_000, next_at=NOON + timedelta(days=13))
    assert ticking.tick(shop) == ()
    tomorrow = schedule_of(shop, nightly).next_at
    assert tomorrow is not None and NOON < tomorrow <= NOON + timedelta(days=1)
    assert schedule_of(shop, loop).next_at == NOON + timedelta(minutes=30)
    assert schedule_of(shop, rare).next_at == NOON + timedelta(days=13)


def test_a_slot_waits_for_the_next_one_while_too_many_reviews_wait(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.store.reviews.MOST_WAITING", 1)
    with shop.sessions.begin() as db:
        make_review(db)
    schedule_id = planned(shop)
    assert ticking.tick(shop) == ()
    schedule = schedule_of(shop, schedule_id)
    assert "1 reviews wait already" in schedule.last_note
    assert schedule.next_at is not None and schedule.next_at > NOON


def test_a_round_says_who_judges_and_as_what_else_the_repo_does(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        repo = make_repo(db, profile="adoption", flavour="research")
        make_schedule(db, repo, next_at=NOON, profile="student", focuses=["security"])
    ticking.tick(shop)
    (review,) = queued(shop)
    assert (review.profile, review.flavour, review.focuses) == ("student", "research", ["security"])


def test_slots_to_come_and_disabled_schedules_are_left_alone(shop: Workshop) -> None:
    planned(shop, next_at=NOON + timedelta(minutes=1))
    planned(shop, enabled=False)
    assert ticking.tick(shop) == ()


def test_two_beats_at_once_make_one_review(shop: Workshop) -> None:
    planned(shop)
    together = threading.Barrier(4)

    def tick() -> None:
        together.wait()
        ticking.tick(shop)

    threads = [threading.Thread(target=tick) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(queued(shop)) == 1


def test_after_a_long_downtime_one_slot_is_caught_up(shop: Workshop) -> None:
    planned(shop, next_at=NOON - timedelta(days=9))
    assert len(ticking.tick(shop)) == 1
    assert ticking.tick(shop) == ()


def test_a_commit_that_was_reviewed_is_skipped_and_the_schedule_says_so(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        repo = make_repo(db)
        make_review(db, repo, state=ReviewState.DONE, commit=COMMIT)
        schedule_id = make_schedule(db, repo, next_at=NOON).id
    assert ticking.tick(shop) == ()
    assert "still at commit" in schedule_of(shop, schedule_id).last_note


def test_a_commit_of_which_nothing_could_be_checked_comes_round_again(shop: Workshop) -> None:
    unable = make_probe_result("install", state=ProbeState.COULD_NOT_RUN, reason="no network").model_dump(mode="json")
    with shop.sessions.begin() as db:
        repo = make_repo(db)
        make_step(db, make_review(db, repo, state=ReviewState.DONE, commit=COMMIT), "probe:install", result=unable)
        make_schedule(db, repo, next_at=NOON)
    assert len(ticking.tick(shop)) == 1


def test_an_unchanged_commit_is_reviewed_where_that_is_asked(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        repo = make_repo(db)
        make_review(db, repo, state=ReviewState.DONE, commit=COMMIT)
        make_schedule(db, repo, next_at=NOON, skip_unchanged=False)
    assert len(ticking.tick(shop)) == 1


def test_a_review_that_failed_does_not_make_its_commit_reviewed(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        repo = make_repo(db)
        make_review(db, repo, state=ReviewState.FAILED, commit=COMMIT)
        make_schedule(db, repo, next_at=NOON)
    assert len(ticking.tick(shop)) == 1


def test_a_repo_that_cannot_be_asked_is_queued_so_that_the_review_says_why(
    each_sessions: Sessions, tmp_path: Path
) -> None:
    shop = make_shop(each_sessions, tmp_path, git=KnownRemotes(problem=UnreachableRepo("away", retry=True)))
    planned(shop)
    assert len(ticking.tick(shop)) == 1


def test_a_review_that_waits_already_is_not_doubled(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        repo = make_repo(db)
        make_review(db, repo)
        schedule_id = make_schedule(db, repo, next_at=NOON).id
    assert ticking.tick(shop) == ()
    assert "waiting already" in schedule_of(shop, schedule_id).last_note


def test_a_loop_goes_on_a_pause_after_its_review_ended(shop: Workshop) -> None:
    schedule_id = planned(shop, kind=ScheduleKind.LOOP, pause_minutes=30)
    (review_id,) = ticking.tick(shop)
    assert schedule_of(shop, schedule_id).next_at is None
    ticking.tick(shop)  # nothing heals what is under way
    assert schedule_of(shop, schedule_id).next_at is None
    shop.clock.forward(hours=1)  # type: ignore[attr-defined]
    with shop.sessions.begin() as db:
        scheduling.after(db, db.get_one(Review, review_id), shop.clock(), state=ReviewState.DONE)
    assert schedule_of(shop, schedule_id).next_at == NOON + timedelta(minutes=90)


def test_a_loop_rests_longer_after_a_failure(shop: Workshop) -> None:
    schedule_id = planned(shop, kind=ScheduleKind.LOOP, pause_minutes=0)
    (review_id,) = ticking.tick(shop)
    with shop.sessions.begin() as db:
        scheduling.after(db, db.get_one(Review, review_id), NOON, state=ReviewState.FAILED)
    assert schedule_of(shop, schedule_id).next_at == NOON + timedelta(minutes=15)


def test_a_loop_whose_waiting_review_was_cancelled_goes_on(shop: Workshop) -> None:
    schedule_id = planned(shop, kind=ScheduleKind.LOOP, pause_minutes=30)
    (review_id,) = ticking.tick(shop)
    reviews.cancel(shop, review_id)
    assert schedule_of(shop, schedule_id).next_at == NOON + timedelta(minutes=30)


def test_a_loop_whose_review_is_gone_goes_on(shop: Workshop) -> None:
    schedule_id = planned(shop, kind=ScheduleKind.LOOP, pause_minutes=30, next_at=None)
    ticking.tick(shop)
    assert schedule_of(shop, schedule_id).next_at == NOON + timedelta(minutes=30)
