"""Claims, leases and fences, on both databases: never two runners, and a stale one changes nothing."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from orchestrator.store import claims
from orchestrator.store.claims import Lease, LostClaim
from orchestrator.store.reviews import Review, ReviewState
from orchestrator.store.session import Sessions
from tests.factories import NOON, make_repo, make_review

MINUTE = timedelta(minutes=1)


@pytest.fixture
def waiting(each_sessions: Sessions) -> Callable[..., UUID]:
    """Makes a waiting review."""

    def make(**changed: Any) -> UUID:
        with each_sessions.begin() as db:
            return make_review(db, **changed).id

    return make


def take(
    sessions: Sessions, review_id: UUID, *, machine: str = "one", now: object = NOON, lease_s: float = 60
) -> Lease | None:
    with sessions.begin() as db:
        return claims.claim(db, review_id, machine=machine, owner=f"{machine} 1", now=now, lease_s=lease_s)  # type: ignore[arg-type]


def row(sessions: Sessions, review_id: UUID) -> Review:
    with sessions.reading() as db:
        return db.get_one(Review, review_id)


def test_a_claim_makes_the_review_run_and_counts_the_attempt(
    each_sessions: Sessions, waiting: Callable[..., UUID]
) -> None:
    review_id = waiting()
    lease = take(each_sessions, review_id)
    assert lease is not None and (lease.fence, lease.attempt) == (1, 1)
    review = row(each_sessions, review_id)
    assert (review.state, review.machine, review.lease_owner) == (ReviewState.RUNNING, "one", "one 1")
    assert (review.started_at, review.lease_until) == (NOON, NOON + MINUTE)


def test_a_claimed_review_cannot_be_claimed_again(each_sessions: Sessions, waiting: Callable[..., UUID]) -> None:
    review_id = waiting()
    take(each_sessions, review_id)
    assert take(each_sessions, review_id, machine="two") is None


def test_a_machine_has_one_review_at_a_time(each_sessions: Sessions, waiting: Callable[..., UUID]) -> None:
    first, second = waiting(), waiting()
    assert take(each_sessions, first)
    assert take(each_sessions, second) is None
    assert take(each_sessions, second, machine="two")


def test_of_many_who_claim_at_once_one_wins(each_sessions: Sessions, waiting: Callable[..., UUID]) -> None:
    review_id = waiting()
    together = threading.Barrier(6)
    won: list[Lease] = []

    def claim(number: int) -> None:
        together.wait()
        if lease := take(each_sessions, review_id, machine=f"machine {number}"):
            won.append(lease)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and row(each_sessions, review_id).attempt == 1


def test_of_two_reviews_claimed_at_once_for_one_machine_one_runs(
    each_sessions: Sessions, waiting: Callable[..., UUID]
) -> None:
    ids = [waiting() for _ in range(4)]
    together = threading.Barrier(4)
    won: list[Lease] = []

    def claim(review_id: UUID) -> None:
        together.wait()
        if lease := take(each_sessions, review_id):
            won.append(lease)

    threads = [threading.Thread(target=claim, args=(one,)) for one in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_an_expired_lease_is_taken_over_and_the_old_runner_is_shut_out(
    each_sessions: Sessions, waiting: Callable[..., UUID]
) -> None:
    review_id = waiting()
    old = take(each_sessions, review_id)
    assert old is not None
    assert take(each_sessions, review_id, machine="two", now=NOON + MINUTE / 2) is None
    new = take(each_sessions, review_id, machine="two", now=NOON + 2 * MINUTE)
    assert new is not None and (new.fence, new.attempt) == (old.fence + 1, 2)
    for attempt in (claims.hold, lambda db, lease, now: claims.wants_cancel(db, lease)):
        with each_sessions.begin() as db, pytest.raises(LostClaim):
            attempt(db, old, NOON + 2 * MINUTE)
    with each_sessions.begin() as db:
        assert claims.hold(db, new, NOON + 2 * MINUTE) is False


def test_a_heartbeat_extends_the_lease(each_sessions: Sessions, waiting: Callable[..., UUID]) -> None:
    review_id = waiting()
    lease = take(each_sessions, review_id)
    assert lease is not None
    with each_sessions.begin() as db:
        claims.hold(db, lease, NOON + MINUTE / 2)
    assert row(each_sessions, review_id).lease_until == NOON + MINUTE * 1.5


def test_a_review_that_kills_its_workers_ends(each_sessions: Sessions, waiting: Callable[..., UUID]) -> None:
    review_id = waiting(max_attempts=2)
    for number in range(2):
        assert take(each_sessions, review_id, now=NOON + number * 5 * MINUTE)
    assert take(each_sessions, review_id, now=NOON + 50 * MINUTE) is None
    with each_sessions.begin() as db:
        (lost,) = claims.held(db)
        assert claims.give_up(db, lost, NOON + 50 * MINUTE) is ReviewState.FAILED
    assert "lost 2 times" in row(each_sessions, review_id).error


def test_a_review_given_up_waits_again_and_its_runner_is_shut_out(
    each_sessions: Sessions, waiting: Callable[..., UUID]
) -> None:
    review_id = waiting()
    lease = take(each_sessions, review_id)
    assert lease is not None
    with each_sessions.begin() as db:
        (lost,) = claims.held_on(db, "one")
        assert claims.give_up(db, lost, NOON) is ReviewState.QUEUED
    with each_sessions.begin() as db, pytest.raises(LostClaim):
        claims.hold(db, lease, NOON)
    again = take(each_sessions, review_id)
    assert again is not None and again.attempt == 2


def test_who_was_heard_of_in_this_moment_is_not_given_up(each_sessions: Sessions, waiting: Callable[..., UUID]) -> None:
    review_id = waiting()
    lease = take(each_sessions, review_id)
    assert lease is not None
    seen = row(each_sessions, review_id)
    with each_sessions.begin() as db:
        claims.hold(db, lease, NOON + MINUTE / 2)
    with each_sessions.begin() as db:
        claims.give_up(db, seen, NOON + MINUTE)
    assert row(each_sessions, review_id).state is ReviewState.RUNNING


def test_a_cancelled_review_of_a_dead_worker_is_cancelled(
    each_sessions: Sessions, waiting: Callable[..., UUID]
) -> None:
    review_id = waiting()
    take(each_sessions, review_id)
    with each_sessions.begin() as db:
        review = db.get_one(Review, review_id)
        review.state, review.cancel_requested = ReviewState.CANCELLING, True
    assert take(each_sessions, review_id, machine="two", now=NOON + 5 * MINUTE) is None
    with each_sessions.begin() as db:
        (lost,) = claims.held(db)
        assert claims.give_up(db, lost, NOON) is ReviewState.CANCELLED


def test_parking_for_the_node_is_no_attempt_and_frees_the_machine(
    each_sessions: Sessions, waiting: Callable[..., UUID]
) -> None:
    review_id, other = waiting(), waiting()
    lease = take(each_sessions, review_id)
    assert lease is not None
    with each_sessions.begin() as db:
        claims.hold(db, lease, NOON)
        claims.park(
            db, lease, state=ReviewState.WAITING_FOR_NODE, not_before=NOON + MINUTE, note="node", count_attempt=False
        )
    assert row(each_sessions, review_id).attempt == 0
    assert take(each_sessions, other)
    assert take(each_sessions, review_id, machine="two") is None  # not before its time
    assert take(each_sessions, review_id, machine="two", now=NOON + MINUTE)


def test_the_most_urgent_and_then_the_longest_waiting_goes_first(
    each_sessions: Sessions, waiting: Callable[..., UUID]
) -> None:
    late = waiting(priority=10, created_at=NOON)
    scheduled = waiting(priority=0, created_at=NOON - 3 * MINUTE)
    early = waiting(priority=10, created_at=NOON - MINUTE)
    waiting(priority=99, not_before=NOON + MINUTE)
    waiting(priority=99, cancel_requested=True)
    with each_sessions.reading() as db:
        assert list(claims.due(db, NOON)) == [early, late, scheduled]
        assert claims.next_due(db, NOON) == early


def test_a_review_that_is_not_there_cannot_be_claimed(each_sessions: Sessions) -> None:
    with each_sessions.begin() as db:
        make_repo(db)
    assert take(each_sessions, uuid4()) is None
