"""What a slot's loss and weight are."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from inference_node.train import arm as arms
from inference_node.train.loss import slot_loss, slot_weight, weighted_mean

WANTED = torch.tensor([[False, True, True, True, False], [False, True, True, False, False]])
MASKED = torch.tensor([[False, True, True, True, True]] * 2)


def arm(**keys: object) -> arms.Arm:
    return arms.made({"block": 5, **keys})


def test_the_three_losses_are_what_their_names_say() -> None:
    generator = torch.Generator().manual_seed(1)
    logits, teacher = torch.randn(6, 9, generator=generator), torch.randn(6, 9, generator=generator)
    label = torch.tensor([0, 3, 8, 2, 2, 5])
    data, ce = slot_loss("data", logits, label, None)
    assert torch.equal(data, ce) and torch.allclose(ce, F.cross_entropy(logits, label, reduction="none"))
    hard, _ = slot_loss("teacher", logits, label, teacher)
    assert torch.allclose(hard, F.cross_entropy(logits, teacher.argmax(-1), reduction="none"))
    kl, _ = slot_loss("kl", logits, label, teacher)
    expected = F.kl_div(logits.log_softmax(-1), teacher.softmax(-1), reduction="none").sum(-1)
    assert torch.allclose(kl, expected, atol=1e-6)
    assert float(slot_loss("kl", teacher, label, teacher)[0].abs().max()) < 1e-6


def test_a_loss_that_needs_the_target_says_so() -> None:
    with pytest.raises(ValueError, match="kl"):
        slot_loss("kl", torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64), None)


def test_exponential_weights_fall_by_slot_and_begin_at_the_first_masked_one() -> None:
    weight = slot_weight(arm(weighting="exp", block=8), WANTED, MASKED, torch.zeros(2, 5))
    assert torch.allclose(weight[0], torch.tensor([0, 1, math.exp(-1 / 4), math.exp(-2 / 4), 0]))
    shown = torch.tensor([[False, False, True, True, True]])
    later = slot_weight(arm(weighting="exp", block=8), shown, shown, torch.zeros(1, 5))
    assert torch.allclose(later, torch.tensor([[0, 0, 1, math.exp(-1 / 4), math.exp(-2 / 4)]]))


def test_dpace_weighs_a_slot_by_how_much_hangs_on_it() -> None:
    """Written out for alpha 1/2: s = 1/2 q + 1/2, P_m = product of s up to m, weight of j = sum of P_m for m >= j."""
    q = torch.tensor([[1.0, 0.5, 0.25, 0.8, 0.9]])
    wanted = torch.tensor([[False, True, True, True, False]])
    s = [0.75, 0.625, 0.9]
    reach = [s[0], s[0] * s[1], s[0] * s[1] * s[2]]
    expected = torch.tensor([[0.0, sum(reach), sum(reach[1:]), reach[2], 0.0]])
    assert torch.allclose(slot_weight(arm(weighting="dpace"), wanted, MASKED[:1], -q.log()), expected)


def test_a_slot_that_the_drafter_cannot_say_keeps_its_place_and_counts_for_nothing() -> None:
    """Known trap: left out of the block, it was certain for D-PACE and moved the later slots forward in exp."""
    q = torch.tensor([[1.0, 0.5, 0.25, 0.8, 0.9]])
    wanted = torch.tensor([[False, True, True, True, False]])
    sayable = torch.tensor([[True, True, False, True, True]])
    s = [0.75, 0.5, 0.9]  # the second: nothing of its own, smoothing alone
    reach = [s[0], s[0] * s[1], s[0] * s[1] * s[2]]
    dpace = slot_weight(arm(weighting="dpace"), wanted, MASKED[:1], -q.log(), sayable)
    assert torch.allclose(dpace, torch.tensor([[0.0, sum(reach), 0.0, reach[2], 0.0]]))
    exp = slot_weight(arm(weighting="exp", block=8), wanted, MASKED[:1], -q.log(), sayable)
    assert torch.allclose(exp, torch.tensor([[0, 1, 0, math.exp(-2 / 4), 0]]))
    assert slot_weight(arm(weighting="none"), wanted, MASKED[:1], -q.log(), sayable).tolist() == [[0, 1, 0, 1, 0]]


def test_weight_slides_to_later_slots_as_early_ones_become_sure() -> None:
    def share_of_last(first: float) -> float:
        q = torch.tensor([[1.0, first, first, 0.5, 0.5]])
        weight = slot_weight(arm(weighting="dpace"), WANTED[:1], MASKED[:1], -q.log())
        return float(weight[0, 3] / weight.sum())

    assert share_of_last(0.99) > share_of_last(0.05) * 1.1


@pytest.mark.parametrize("weighting", ["exp", "dpace", "none"])
def test_no_weighting_changes_the_size_of_a_loss_that_is_everywhere_the_same(weighting: str) -> None:
    """Known trap: another normaliser is another learning rate."""
    ce = torch.rand(2, 5, generator=torch.Generator().manual_seed(3)) + 0.1
    weight = slot_weight(arm(weighting=weighting), WANTED, MASKED, ce)
    assert float(weighted_mean(torch.full((2, 5), 2.5), weight)) == pytest.approx(2.5)
    assert not weight[~WANTED].any()


def test_a_batch_in_which_nothing_counts_has_no_loss() -> None:
    assert float(weighted_mean(torch.ones(2, 5), torch.zeros(2, 5))) == 0.0
