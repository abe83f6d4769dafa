"""What a woken worker does."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.services import host_lock, reviews, working
from orchestrator.services.errors import OutsideError
from orchestrator.services.views import ReviewState
from orchestrator.services.workshop import Workshop
from orchestrator.store.machines import Machine
from orchestrator.store.session import Sessions
from tests.factories import NOON, make_review
from tests.support.tiny import tiny_shop


@pytest.fixture
def shop(sessions: Sessions, tmp_path: Path) -> Workshop:
    return tiny_shop(sessions, tmp_path)


def test_all_that_is_due_is_done_one_after_another(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        ids = [make_review(db).id for _ in range(3)]
    assert working.work(shop) == 3
    assert all(reviews.get(shop, one).row.state is ReviewState.DONE for one in ids)
    with shop.sessions.reading() as db:
        machine = db.get_one(Machine, shop.machine)
    assert machine.current_review is None and machine.heartbeat == NOON


def test_nothing_is_begun_while_somebody_else_reviews_on_this_host(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        review_id = make_review(db).id
    waited_for: list[str] = []
    with host_lock.held(shop.settings.host_lock, "another data folder"):
        thread = threading.Thread(target=working.do_one, args=(shop, review_id), kwargs={"waiting": waited_for.append})
        thread.start()
        thread.join(timeout=1)
        assert thread.is_alive() and waited_for == ["another data folder"]
        assert reviews.get(shop, review_id).row.state is ReviewState.QUEUED
    thread.join(timeout=20)
    assert reviews.get(shop, review_id).row.state is ReviewState.DONE


def test_no_review_starts_below_the_free_disk_floor(shop: Workshop) -> None:
    full = replace(shop, settings=shop.settings.model_copy(update={"free_disk_bytes": 1 << 60}))
    with shop.sessions.begin() as db:
        review_id = make_review(db).id
    assert working.work(full) == 0
    row = reviews.get(shop, review_id).row
    assert row.state is ReviewState.QUEUED and "LAMPLIGHTER_FREE_DISK_BYTES" in row.outcome_note
    assert working.work(shop) == 1
    assert "free" not in reviews.get(shop, review_id).row.outcome_note


def test_a_full_disk_is_no_reason_to_think_that_messages_do_not_arrive(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        make_review(db)
    assert working.may_start(shop)
    assert not working.may_start(replace(shop, settings=shop.settings.model_copy(update={"free_disk_bytes": 1 << 60})))
    with host_lock.held(shop.settings.host_lock, "somebody"):
        assert not working.may_start(shop)


def test_a_worker_that_is_told_to_end_begins_nothing(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        make_review(db)
    assert working.work(replace(shop, stopping=lambda: True)) == 0


def test_a_machine_has_one_worker(shop: Workshop) -> None:
    kept = working.one_worker_only(shop.settings, "m")
    assert working.worker_alive(shop.settings, "m") and not working.worker_alive(shop.settings, "n")
    with pytest.raises(OutsideError, match="already runs: process"):
        working.one_worker_only(shop.settings, "m")
    assert working.one_worker_only(shop.settings, "n") != kept
