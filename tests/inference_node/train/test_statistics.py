"""What figures are made of: ratios of sums over prompts, pairs, seeds, and the speed that follows."""

from __future__ import annotations

import numpy as np
import pytest

from inference_node.models.errors import NodeError
from inference_node.train import statistics
from inference_node.train.evaluate import Decoded
from inference_node.train.statistics import Cost, Counts


def prompts(n: int, mean: float, seed: int) -> list[Counts]:
    """Prompts that differ by a quarter, as they do."""
    draw = np.random.default_rng(seed)
    cycles = draw.integers(10, 60, n)
    return [Counts(int(c * mean * draw.normal(1, 0.25)), int(c)) for c in cycles]


def test_tau_is_a_ratio_of_sums_and_not_a_mean_of_ratios() -> None:
    assert statistics.tau([Counts(40, 10), Counts(2, 2)]) == 3.5
    assert statistics.tau([]) == 1.0


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(100):
        found = statistics.interval(prompts(60, 3.0, seed), draws=400, seed=seed)
        held += found.low <= 3.0 <= found.high
    assert 85 <= held <= 100


def test_pairs_see_what_two_intervals_do_not() -> None:
    base = prompts(128, 3.0, 1)
    other = [Counts(one.committed + round(0.1 * one.cycles), one.cycles) for one in base]
    told = statistics.difference(base, other)
    assert 0.05 < told.low < told.value < told.high < 0.15
    assert statistics.interval(base).high > statistics.interval(other).low


def test_two_equal_drafters_are_not_told_apart() -> None:
    base = prompts(64, 3.0, 1)
    assert statistics.difference(base, base) == statistics.Estimate(0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="no pairs"):
        statistics.difference(base, base[1:])


def test_two_seeds_say_little_and_three_say_more() -> None:
    assert statistics.over_seeds([0.1]) is None
    two, three = statistics.over_seeds([0.1, 0.2]), statistics.over_seeds([0.1, 0.2, 0.15])
    assert two is not None and three is not None
    assert two.low < 0 < two.high and (three.high - three.low) < 0.4 * (two.high - two.low)
    assert two.value + 12.706 * 0.05 == pytest.approx(two.high, abs=1e-3)


def test_what_comes_after_a_text_begins_to_loop_does_not_count() -> None:
    fresh, loop = list(range(40)), list(range(100, 120))
    answer = Decoded((*fresh, *loop, *loop, *loop), (3,) * 10 + (7,) * 10)
    assert answer.counts == Counts(40 + 80, 20)
    assert answer.loop_free == Counts(40 + 16, 12)  # 60 tokens until it says a run of 16 again


def test_survival_says_tau() -> None:
    accepted = [0, 1, 3, 7, 7]
    assert 1 + sum(statistics.survival(accepted, 8)) == pytest.approx(sum(a + 1 for a in accepted) / 5)


def test_eta_counts_the_draft_and_reads_between_measured_rows() -> None:
    cost = Cost.of({"machine": "m", "plain": 1.0, "draft": 0.2, "verify": {"1": 1.0, "8": 2.4}})
    assert cost.at(3) == pytest.approx(1.4)
    found = statistics.eta([0.7, 0.32, 0.1], cost)
    assert found[2] == pytest.approx(1.7 / (0.2 + 1.2)) and found[3] == pytest.approx(2.02 / 1.6)
    assert sorted(found) == [2, 3, 4]


@pytest.mark.parametrize(
    "body", [{}, {"plain": 0, "draft": 1, "verify": {"1": 1}}, {"plain": 1, "draft": 1, "verify": {}}]
)
def test_a_cost_curve_that_is_none_is_refused(body) -> None:
    with pytest.raises(NodeError, match="cost curve"):
        Cost.of(body)
