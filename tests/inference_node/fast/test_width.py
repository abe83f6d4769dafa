"""How many drafts a verify is given."""

import math

import pytest
import torch

from inference_node.fast.width import BINS, Costs, Width, survival, width

BLOCK = 8
CPU = torch.device("cpu")
PLENTY = torch.tensor(1000)


def number(value: int) -> torch.Tensor:
    return torch.tensor(value)


def adaptive(**costs: float) -> Width:
    chosen = Width(BLOCK, CPU, adaptive=True)
    chosen.measured(Costs.by_bytes(BLOCK, **costs))
    return chosen


def run(chosen: Width, confidence: list[float], accepted: int, cycles: int = 200) -> int:
    """Cycles that always accept `accepted` drafts, if so many are offered; the last offer."""
    told = torch.tensor(confidence)
    for _ in range(cycles):
        offered = chosen.offer(told, PLENTY)
        right = min(accepted, int(offered))
        chosen.learn(told, offered, number(right), number(right + 1))
    return int(offered)


def test_off_verifies_whole_blocks_and_a_number_that_many_rows():
    nothing = torch.zeros(BLOCK - 1)
    assert int(width("off", BLOCK, CPU).offer(nothing, PLENTY)) == BLOCK - 1
    assert int(width("3", BLOCK, CPU).offer(nothing, PLENTY)) == 2
    assert int(width("64", BLOCK, CPU).offer(nothing, PLENTY)) == BLOCK - 1
    assert width("adaptive", BLOCK, CPU).adaptive


@pytest.mark.parametrize("options", [{}, {"adaptive": True}])
@pytest.mark.parametrize("left", [0, 1, 2, 5])
def test_no_more_drafts_are_offered_than_the_budget_can_use(options, left):
    sure = torch.ones(BLOCK - 1)
    assert int(Width(BLOCK, CPU, **options).offer(sure, number(left))) == max(0, left - 1)


def test_sure_drafts_are_offered_and_hopeless_ones_are_not():
    chosen = adaptive(per_row=0.15)
    assert run(chosen, [0.97] * 7, accepted=7) == 7
    assert run(adaptive(per_row=0.15), [0.02] * 7, accepted=0) == 0


def test_rows_that_cost_nothing_are_all_offered_and_rows_that_cost_a_step_each_only_when_nearly_sure():
    middling = [0.5] * 7
    assert run(adaptive(per_row=0.0), middling, accepted=1) == 7
    assert run(adaptive(per_row=1.0), middling, accepted=1) <= 1


def test_a_boastful_drafter_is_found_out():
    """Confidence says 0.95; the drafts are wrong. The bin learns it and the width shrinks."""
    chosen = adaptive(per_row=0.2)
    assert int(chosen.offer(torch.full((7,), 0.95), PLENTY)) == 7
    assert run(chosen, [0.95] * 7, accepted=0) == 0
    bin_of_it = int(0.95 * BINS)
    assert float(chosen.right[bin_of_it] / chosen.seen[bin_of_it]) < 0.2


def test_only_drafts_whose_predecessors_were_right_are_judged():
    chosen = adaptive(per_row=0.0)
    confidence = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9, 0.9, 0.9])
    before = chosen.seen.clone()
    chosen.learn(confidence, number(5), number(2), number(3))
    judged = (chosen.seen - before).nonzero()[:, 0].tolist()
    assert judged == [int(0.1 * BINS), int(0.3 * BINS), int(0.5 * BINS)], "two right ones and the first wrong one"


def test_a_cycle_that_committed_nothing_teaches_nothing():
    chosen = adaptive(per_row=0.1)
    before = [part.clone() for part in (chosen.seen, chosen.right, chosen.tokens, chosen.spent)]
    chosen.learn(torch.ones(7), number(0), number(0), number(0))
    assert all(map(torch.equal, before, (chosen.seen, chosen.right, chosen.tokens, chosen.spent)))


def test_a_step_in_the_cost_curve_is_jumped_over_when_what_lies_behind_it_is_worth_it():
    """One row more costs too much, three more pay: the rule must not stop at the first dear row."""
    chosen = Width(BLOCK, CPU, adaptive=True)
    chosen.measured(Costs((1.0, 1.8, 1.8, 1.8, 1.8, 1.8, 1.8, 1.8), 0.1))
    assert int(chosen.offer(torch.full((7,), 0.7), PLENTY)) == 7


def test_confidences_that_are_not_numbers_are_no_confidence():
    chosen = adaptive(per_row=0.5)
    assert int(chosen.offer(torch.full((7,), math.nan), PLENTY)) == 0


def test_the_survival_curve_of_fixed_width_cycles():
    assert survival([0, 1, 3, 7], BLOCK) == [0.75, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25]
    assert survival([], 3) == [0.0, 0.0]
