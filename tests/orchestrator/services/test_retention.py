"""What is forgotten of old reviews, on both databases: by age, by size, and never the newest of a repo."""

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from orchestrator.services import retention
from orchestrator.services.workshop import Workshop
from orchestrator.store import logs
from orchestrator.store.findings import FindingRow
from orchestrator.store.repos import Repo
from orchestrator.store.reviews import ReviewState
from orchestrator.store.session import Sessions
from orchestrator.store.transcripts import Turn
from tests.factories import NOON, Clock, make_chunk, make_finding, make_repo, make_review, make_shop, make_step

SAID = "".join(f"line {number} of what the step said\n" for number in range(400))


def ended(db: Any, repo: Repo, *, days_ago: float) -> UUID:
    """A review with a packed log, a turn and a finding."""
    at = NOON - timedelta(days=days_ago)
    review = make_review(db, repo, state=ReviewState.DONE, created_at=at, finished_at=at)
    step = make_step(db, review)
    make_chunk(db, step, SAID)
    logs.pack(db, step.id)
    make_finding(db, review)
    db.add(Turn(step_id=step.id, attempt=1, seq=0, at=at, body={"role": "user", "text": "x"}))
    return step.id


@pytest.fixture
def shop(each_sessions: Sessions, tmp_path: Path) -> Workshop:
    return make_shop(each_sessions, tmp_path, clock=Clock(), settings={"keep_log_days": 30, "keep_log_bytes": 0})


def kept(shop: Workshop, steps: list[UUID]) -> list[bool]:
    """Of each step, whether log and turns are there; both or neither."""
    found = []
    with shop.sessions.reading() as db:
        for step in steps:
            whole = logs.text_of(db, step) == SAID
            assert whole is (db.query(Turn).filter_by(step_id=step).count() == 1)
            assert whole or logs.text_of(db, step) == retention.GONE
            found.append(whole)
    return found


def test_what_is_too_old_goes_but_each_repos_newest_stays(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        one, other = make_repo(db), make_repo(db)
        steps = [ended(db, one, days_ago=days) for days in (400, 31, 29)] + [ended(db, other, days_ago=900)]
    assert retention.forget(shop) == 2
    assert kept(shop, steps) == [False, False, True, True]
    assert retention.forget(shop) == 0  # and not again
    with shop.sessions.reading() as db:
        assert db.query(FindingRow).count() == 4


def test_beyond_the_bytes_the_oldest_go_first(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        repo = make_repo(db)
        steps = [ended(db, repo, days_ago=days) for days in (5, 4, 3, 2, 1)]
        each = logs.kept_bytes(db) // 5
    limited = make_shop(
        shop.sessions, shop.settings.data, settings={"keep_log_days": 0, "keep_log_bytes": 3 * each + each // 2}
    )
    assert retention.forget(limited) == 2
    assert kept(shop, steps) == [False, False, True, True, True]


def test_nothing_goes_when_everything_is_kept_for_ever(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        repo = make_repo(db)
        steps = [ended(db, repo, days_ago=days) for days in (4000, 1)]
    forever = make_shop(shop.sessions, shop.settings.data, settings={"keep_log_days": 0, "keep_log_bytes": 0})
    assert retention.forget(forever) == 0
    assert kept(shop, steps) == [True, True]
