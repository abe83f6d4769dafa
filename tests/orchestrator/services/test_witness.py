"""Dead runners are told from living ones although the time of day jumps."""

from datetime import timedelta

import pytest

from orchestrator.services.views import ReviewState
from orchestrator.services.witness import Witness
from orchestrator.store.reviews import Review
from orchestrator.store.session import Sessions
from tests.factories import Clock, make_review


class Two:
    """A time of day, and a clock that nobody sets."""

    def __init__(self) -> None:
        self.day, self.ticks = Clock(), 0.0
        self.witness = Witness(lambda: self.ticks)

    def passes(self, seconds: float) -> None:
        self.day.forward(seconds=seconds)
        self.ticks += seconds

    def lost(self, sessions: Sessions) -> list[Review]:
        with sessions.reading() as db:
            return list(self.witness.lost(db, self.day()))


@pytest.fixture
def clocks() -> Two:
    return Two()


def running(sessions: Sessions, clocks: Two) -> Review:
    """A review that has just been claimed for a minute's lease."""
    now = clocks.day()
    with sessions.begin() as db:
        return make_review(
            db,
            state=ReviewState.RUNNING,
            machine="m",
            fence=1,
            heartbeat=now,
            lease_until=now + timedelta(seconds=60),
        )


def renew(sessions: Sessions, review: Review, clocks: Two) -> None:
    with sessions.begin() as db:
        row = db.get_one(Review, review.id)
        row.heartbeat, row.lease_until = clocks.day(), clocks.day() + timedelta(seconds=60)


def test_a_lease_that_ran_out_is_lost_also_for_a_process_that_has_just_begun(sessions: Sessions, clocks: Two) -> None:
    review = running(sessions, clocks)
    clocks.passes(59)
    assert Two().lost(sessions) == []
    clocks.passes(2)
    assert [one.id for one in clocks.lost(sessions)] == [review.id]


def test_a_clock_that_was_put_forward_takes_no_review_from_a_living_runner(sessions: Sessions, clocks: Two) -> None:
    """As after a night in which the machine slept: the monotonic clock stood still, too."""
    review = running(sessions, clocks)
    assert clocks.lost(sessions) == []
    clocks.day.forward(hours=8)
    assert clocks.lost(sessions) == []
    clocks.passes(20)
    renew(sessions, review, clocks)  # a runner renews within a quarter of its lease
    clocks.passes(40)
    assert clocks.lost(sessions) == []


def test_a_dead_runner_is_found_one_look_after_the_clock_was_put_forward(sessions: Sessions, clocks: Two) -> None:
    review = running(sessions, clocks)
    clocks.lost(sessions)
    clocks.day.forward(hours=8)
    clocks.passes(60)
    assert clocks.lost(sessions) == []
    clocks.passes(60)
    assert [one.id for one in clocks.lost(sessions)] == [review.id]


def test_a_clock_that_was_set_back_keeps_no_dead_runner_alive(sessions: Sessions, clocks: Two) -> None:
    review = running(sessions, clocks)
    clocks.day.forward(hours=-3)
    for _ in range(3):
        assert clocks.lost(sessions) == []
        clocks.passes(60)
    assert [one.id for one in clocks.lost(sessions)] == [review.id]


def test_a_living_runner_beside_a_clock_that_was_set_back_is_left_alone(sessions: Sessions, clocks: Two) -> None:
    review = running(sessions, clocks)
    clocks.day.forward(hours=-3)
    for _ in range(8):
        assert clocks.lost(sessions) == []
        clocks.passes(30)
        renew(sessions, review, clocks)


def test_another_runner_of_the_same_review_gets_its_own_time(sessions: Sessions, clocks: Two) -> None:
    """The heartbeat may happen to be the same; the fence is not."""
    review = running(sessions, clocks)
    clocks.day.forward(hours=-3)
    clocks.lost(sessions)
    clocks.passes(119)
    with sessions.begin() as db:
        db.get_one(Review, review.id).fence += 1
    assert clocks.lost(sessions) == []
    clocks.passes(119)
    assert clocks.lost(sessions) == []


def test_a_running_review_without_a_lease_is_nobodys(sessions: Sessions, clocks: Two) -> None:
    with sessions.begin() as db:
        review = make_review(db, state=ReviewState.RUNNING, machine="m")
    assert [one.id for one in clocks.lost(sessions)] == [review.id]
