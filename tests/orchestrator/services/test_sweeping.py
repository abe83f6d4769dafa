"""What a lost worker, message or loop leaves is put right from the tables alone."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from orchestrator.sandbox.contract import SandboxError
from orchestrator.sandbox.fake import FakeSandbox
from orchestrator.services import claiming, reviews, sweeping
from orchestrator.services.views import ReviewState
from orchestrator.services.workshop import Workshop
from orchestrator.store import machines
from orchestrator.store.machines import Machine
from orchestrator.store.reviews import Review
from orchestrator.store.session import Sessions
from orchestrator.store.steps import StepState
from tests.factories import NOON, make_review, make_shop, make_step


@pytest.fixture
def shop(sessions: Sessions, tmp_path: Path) -> Workshop:
    return make_shop(sessions, tmp_path)


def test_a_review_of_a_lost_worker_waits_again_and_is_announced(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        review_id = make_review(db).id
    claiming.take(shop, review_id)
    sweeping.sweep(shop)
    assert reviews.get(shop, review_id).row.state is ReviewState.RUNNING
    shop.clock.forward(minutes=2)  # type: ignore[attr-defined]
    sweeping.sweep(shop)
    assert reviews.get(shop, review_id).row.state is ReviewState.QUEUED
    assert shop.nudge.woken == [review_id]  # type: ignore[attr-defined]


def test_a_waiting_review_whose_message_was_lost_is_announced_again(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        review_id = make_review(db).id
        make_review(db, not_before=NOON + timedelta(minutes=10))
    sweeping.sweep(shop)
    assert shop.nudge.woken == [review_id]  # type: ignore[attr-defined]


def test_nothing_is_announced_when_nothing_waits(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        make_review(db, state=ReviewState.DONE)
    sweeping.sweep(shop)
    assert shop.nudge.woken == []  # type: ignore[attr-defined]


def test_a_review_whose_attempts_are_used_up_ends_with_all_its_steps(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        review = make_review(db, max_attempts=1)
        make_step(db, review, "prepare", state=StepState.RUNNING)
        make_step(db, review, "merge", state=StepState.PENDING)
    claiming.take(shop, review.id)
    shop.clock.forward(minutes=2)  # type: ignore[attr-defined]
    sweeping.sweep(shop)
    page = reviews.get(shop, review.id)
    assert page.row.state is ReviewState.FAILED
    assert "worker was lost once on machine in step prepare" in page.row.error
    assert [step.state for step in page.steps] == [StepState.FAILED, StepState.SKIPPED]


def test_a_review_that_was_put_off_by_a_clock_that_was_ahead_is_due_again(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        far = make_review(db, not_before=NOON + timedelta(days=1)).id
        near = make_review(db, not_before=NOON + timedelta(minutes=10)).id
    sweeping.sweep(shop)
    assert shop.nudge.woken == [far]  # type: ignore[attr-defined]
    with shop.sessions.reading() as db:
        assert db.get_one(Review, near).not_before == NOON + timedelta(minutes=10)


def test_this_machines_dead_review_waits_again_whatever_its_lease(shop: Workshop) -> None:
    other = replace(shop, machine="other")
    with shop.sessions.begin() as db:
        mine, theirs = make_review(db).id, make_review(db).id
    claiming.take(shop, mine)
    claiming.take(other, theirs)
    sweeping.sweep_machine(shop)
    assert reviews.get(shop, mine).row.state is ReviewState.QUEUED
    assert reviews.get(shop, theirs).row.state is ReviewState.RUNNING


def test_boxes_of_reviews_that_may_go_on_stay(shop: Workshop, tmp_path: Path) -> None:
    sandbox = FakeSandbox()
    shop = replace(shop, sandbox=sandbox)
    with shop.sessions.begin() as db:
        begun = make_review(db, started_at=NOON).id
        waiting = make_review(db).id
        over = make_review(db, state=ReviewState.DONE).id
        running = make_review(db, state=ReviewState.RUNNING, machine="other").id
    for review_id in (begun, waiting, over, running):
        sandbox.prepare(str(review_id), tmp_path, "c")
    sweeping.sweep_machine(shop)
    assert sandbox.volumes == {str(begun), str(running)}


def test_a_sandbox_that_cannot_be_swept_stops_nobody(shop: Workshop) -> None:
    sandbox = FakeSandbox()
    sandbox.fail["sweep"] = SandboxError("away")
    sweeping.sweep_machine(replace(shop, sandbox=sandbox))


def test_a_machine_that_fell_silent_has_no_worker(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        machines.report(db, "silent", NOON, worker_pid=7)
        machines.report(db, "alive", NOON + timedelta(minutes=9), worker_pid=8)
    shop.clock.forward(minutes=10)  # type: ignore[attr-defined]
    sweeping.sweep(shop)
    with shop.sessions.reading() as db:
        assert db.get_one(Machine, "silent").worker_pid is None
        assert db.get_one(Machine, "alive").worker_pid == 8
