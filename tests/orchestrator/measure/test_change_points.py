import time
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from orchestrator.measure.change_points import change_points
from orchestrator.measure.records import Point, Series

START = datetime(2026, 1, 1, tzinfo=UTC)


def series(values: list[float | None], commits: list[str] | None = None) -> Series:
    points = tuple(
        Point(START + timedelta(days=at), commits[at] if commits else f"c{at}", value, 0.003, 6)
        for at, value in enumerate(values)
    )
    return Series("bench", "s", "key", points)


def nights(random: np.random.Generator, count: int, level: float, sd: float) -> list[float | None]:
    return [float(value) for value in level * np.exp(random.normal(0, sd, count))]


@pytest.mark.parametrize("change", [1.1, 1.5, 0.8])
def test_a_step_is_found_between_its_two_commits(change: float) -> None:
    random = np.random.default_rng(3)
    (found,) = change_points(series(nights(random, 20, 1.0, 0.01) + nights(random, 15, change, 0.01)))
    assert (found.from_commit, found.to_commit) == ("c19", "c20")
    assert found.ratio == pytest.approx(change, rel=0.02)
    assert found.points_after == 15


def test_two_steps_have_the_levels_of_their_own_stretches() -> None:
    random = np.random.default_rng(4)
    values = nights(random, 12, 1.0, 0.01) + nights(random, 12, 2.0, 0.01) + nights(random, 12, 1.5, 0.01)
    first, second = change_points(series(values))
    assert (first.to_commit, second.to_commit) == ("c12", "c24")
    assert second.before == pytest.approx(2.0, rel=0.02)
    assert second.ratio == pytest.approx(0.75, rel=0.02)


@pytest.mark.parametrize("sd", [0.002, 0.01, 0.05])
def test_steady_series_have_no_steps(sd: float) -> None:
    random = np.random.default_rng(9)
    assert [change_points(series(nights(random, 60, 1.0, sd))) for _ in range(40)] == [()] * 40


def test_one_wild_night_is_no_step() -> None:
    random = np.random.default_rng(6)
    values = nights(random, 30, 1.0, 0.01)
    values[14] = 1.8
    assert change_points(series(values)) == ()


def test_two_nights_on_the_new_level_are_enough_for_a_large_step_and_one_is_not() -> None:
    assert [one.to_commit for one in change_points(series([1.0, 1.01, 2.0, 2.02]))] == ["c2"]
    assert change_points(series([1.0, 1.01, 1.0, 2.02])) == ()


def test_nights_without_a_good_session_are_passed_over() -> None:
    (found,) = change_points(series([1.0, 1.01, 0.99, None, 1.3, 1.31, 1.29]))
    assert (found.from_commit, found.to_commit) == ("c2", "c4")


def test_a_step_between_two_nights_of_one_commit_names_that_commit_twice() -> None:
    (found,) = change_points(series([1.0, 1.01, 0.99, 1.3, 1.31, 1.29], ["a"] * 6))
    assert found.from_commit == found.to_commit == "a"


def test_a_thousand_nights_take_well_under_a_second() -> None:
    random = np.random.default_rng(8)
    long = series(nights(random, 700, 1.0, 0.01) + nights(random, 300, 1.1, 0.01))
    started = time.process_time()
    assert len(change_points(long)) == 1
    assert time.process_time() - started < 1.0
