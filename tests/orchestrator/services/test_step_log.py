"""Logs on their way into the database."""

from pathlib import Path

import pytest

from orchestrator.services import claiming, step_log
from orchestrator.services.claiming import Hold
from orchestrator.services.step_log import StepLog
from orchestrator.services.workshop import Workshop
from orchestrator.store import logs
from orchestrator.store.claims import LostClaim
from orchestrator.store.reviews import Review
from orchestrator.store.session import Sessions
from orchestrator.store.steps import Step, StepState
from tests.factories import make_review, make_shop, make_step


@pytest.fixture
def shop(sessions: Sessions, tmp_path: Path) -> Workshop:
    return make_shop(sessions, tmp_path)


@pytest.fixture
def step(shop: Workshop) -> Step:
    with shop.sessions.begin() as db:
        return make_step(db, make_review(db), "probe:x", state=StepState.RUNNING)


@pytest.fixture
def hold(shop: Workshop, step: Step) -> Hold:
    lease = claiming.take(shop, step.review_id)
    assert lease is not None
    return Hold(shop, lease)


def stored(shop: Workshop, step: Step) -> str:
    with shop.sessions.reading() as db:
        return logs.text_of(db, step.id)


def test_what_is_written_can_be_read_after_a_flush(shop: Workshop, step: Step, hold: Hold) -> None:
    log = StepLog(hold, step.id, 1)
    log.write("one\n")
    log.write("two\x00\udc80\n")
    assert stored(shop, step) == ""
    log.flush()
    assert stored(shop, step) == "one\ntwo␀�\n"
    log.flush()
    assert stored(shop, step) == "one\ntwo␀�\n"


def test_first_and_last_part_are_kept_and_the_gap_is_said(
    shop: Workshop, step: Step, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "HALF_BYTES", 10_000)
    monkeypatch.setattr(step_log, "SLACK_BYTES", 2_000)
    monkeypatch.setattr(step_log, "CHUNK_CHARS", 1_000)
    log = StepLog(hold, step.id, 1)
    for number in range(5_000):
        log.write(f"line {number:06}\n")
        if number % 100 == 0:
            log.flush()
    log.flush()
    with shop.sessions.reading() as db:
        assert len(logs.joined(db, step.id)) < 25_000  # while it runs, not only once it is packed
    with shop.sessions.begin() as db:
        logs.pack(db, step.id)
    text = stored(shop, step)
    assert text.startswith("line 000000\n") and text.endswith("line 004999\n")
    assert "bytes not kept" in text and len(text) < 21_000


def test_a_stale_runner_logs_nothing(shop: Workshop, step: Step, hold: Hold) -> None:
    log = StepLog(hold, step.id, 1)
    log.write("late\n")
    with shop.sessions.begin() as db:
        db.get_one(Review, step.review_id).fence += 1
    with pytest.raises(LostClaim):
        log.flush()
    assert stored(shop, step) == ""
