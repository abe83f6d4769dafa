import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from orchestrator.measure import statistics

SECONDS = st.floats(1e-6, 1e4, allow_nan=False)
SESSIONS = st.lists(SECONDS, min_size=2, max_size=12, unique=True)


def distinct(base: list[float], head: list[float]) -> bool:
    """Also as logarithms and their differences, where rounding can make ties."""
    differences = statistics.log_ratios(base, head)
    return len(set(base) | set(head)) == len(base) + len(head) and float(np.min(np.diff(differences))) > 1e-9


@pytest.mark.parametrize(("base", "head"), [(1, 1), (1, 7), (3, 5), (6, 6), (10, 10), (10, 7)])
def test_rank_sums_count_every_order_of_the_two_groups_once(base: int, head: int) -> None:
    counts = statistics.rank_sums(base, head)
    assert counts.sum() == math.comb(base + head, base)
    assert list(counts) == list(counts[::-1])
    assert counts[0] == 1


@given(SESSIONS, SESSIONS)
def test_swapping_the_sides_turns_the_ratio_over(base: list[float], head: list[float]) -> None:
    there = statistics.estimate(base, head, confidence=0.9)
    back = statistics.estimate(head, base, confidence=0.9)
    assert there.ratio * back.ratio == pytest.approx(1)
    assert there.low * back.high == pytest.approx(1)
    assert there.p == pytest.approx(back.p)


@given(SESSIONS, SESSIONS, st.floats(0.01, 100), st.floats(0.01, 100))
def test_another_unit_changes_nothing_and_a_slower_head_scales_the_ratio(
    base: list[float], head: list[float], unit: float, slower: float
) -> None:
    plain = statistics.estimate(base, head, confidence=0.9)
    scaled = statistics.estimate(
        [value * unit for value in base], [value * unit * slower for value in head], confidence=0.9
    )
    assert scaled.ratio == pytest.approx(plain.ratio * slower)
    assert scaled.low == pytest.approx(plain.low * slower)
    assert scaled.high == pytest.approx(plain.high * slower)


@given(SESSIONS, SESSIONS)
def test_the_ratio_lies_in_its_interval_and_the_interval_in_the_extremes(base: list[float], head: list[float]) -> None:
    found = statistics.estimate(base, head, confidence=0.95)
    assert found.low <= found.ratio * (1 + 1e-12) and found.ratio <= found.high * (1 + 1e-12)
    assert found.low >= min(head) / max(base) * (1 - 1e-9)
    assert found.high <= max(head) / min(base) * (1 + 1e-9)


@given(st.lists(SECONDS, min_size=4, max_size=10, unique=True), st.lists(SECONDS, min_size=4, max_size=10, unique=True))
def test_the_interval_leaves_one_out_exactly_where_the_test_says_different(
    base: list[float], head: list[float]
) -> None:
    assume(distinct(base, head))
    confidence = 0.94321  # no exact p value is equal to 1 - this
    found = statistics.estimate(base, head, confidence=confidence)
    assume(statistics.cut_off(len(base), len(head), (1 - confidence) / 2) > 0)
    outside = found.low > 1 or found.high < 1
    assert outside == (found.p <= 1 - confidence)


def test_the_interval_covers_the_true_ratio_as_often_as_it_says() -> None:
    random = np.random.default_rng(7)
    missed = 0
    for _ in range(2000):
        base, head = list(np.exp(random.normal(0, 0.02, 6))), list(1.05 * np.exp(random.normal(0, 0.02, 6)))
        found = statistics.estimate(base, head, confidence=0.95)
        missed += not found.low <= 1.05 <= found.high
    assert 0.02 < missed / 2000 < 0.055  # exact below 5 %: only whole numbers of differences can be cut off


def test_p_values_are_exact_for_small_groups_and_know_ties() -> None:
    assert statistics.p_value([1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]) == pytest.approx(2 / 924)
    assert statistics.p_value([1, 1, 1], [1, 1, 1]) == 1
    tied = statistics.p_value([1, 2, 2, 3], [2, 3, 3, 4])
    assert tied == pytest.approx(stats.mannwhitneyu([1, 2, 2, 3], [2, 3, 3, 4], method="asymptotic").pvalue)


def test_one_wild_session_hardly_moves_ratio_or_scatter() -> None:
    base, head = [1.0, 1.01, 0.99, 1.005, 0.995, 1.002], [1.1, 1.11, 1.09, 1.105, 1.095, 1.102]
    wild = [*head[:-1], 9.0]
    calm, odd = (statistics.estimate(base, side, confidence=0.99) for side in (head, wild))
    assert odd.ratio == pytest.approx(calm.ratio, rel=0.005)
    assert statistics.session_sd(base, wild) < 2 * statistics.session_sd(base, head)


def test_session_sd_finds_the_scatter_that_was_put_in() -> None:
    random = np.random.default_rng(3)
    found = [
        statistics.session_sd(list(np.exp(random.normal(0, 0.02, 6))), list(3 * np.exp(random.normal(0, 0.02, 6))))
        for _ in range(500)
    ]
    assert np.median(found) == pytest.approx(0.02, rel=0.15)


def test_a_restless_history_of_equal_code_raises_the_scatter_and_a_quiet_one_does_not_lower_it() -> None:
    base, head = [1.0, 1.01, 0.99, 1.005, 0.995, 1.002], [1.1, 1.11, 1.09, 1.105, 1.095, 1.102]
    tonight = statistics.ratio_sd(base, head)
    restless = [1.05, 0.96, 1.04, 0.95, 1.06, 0.97, 1.03, 0.94]
    assert statistics.ratio_sd(base, head, restless) > 0.04
    assert statistics.ratio_sd(base, head, [1.0] * 20) == tonight
    assert statistics.ratio_sd(base, head, restless[:3]) == tonight  # too few to be believed


def test_discoveries_are_those_of_benjamini_and_hochberg() -> None:
    assert statistics.discoveries([], 0.05) == []
    assert statistics.discoveries([0.012, 0.011, 0.9, 0.04], 0.05) == [True, True, False, False]
    assert statistics.discoveries([0.04], 0.05) == [True]
