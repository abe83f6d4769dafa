from types import SimpleNamespace

import pytest
import torch

from inference_node.kernels.plain import route as plain
from inference_node.kernels.plain.packed import Weight
from inference_node.kernels.triton import expert_mlp, tiles
from inference_node.kernels.triton import route as fast
from tests.inference_node.kernels.triton.helpers import (
    DEVICE,
    TYPES,
    close,
    is_a_kernel,
    normal,
    same_bits,
    unwritten,
    whole,
)

K, EXPERTS, TOP = 72, 11, 3


def routed(module, x, router, valid, *, shared=True, top=TOP, experts=EXPERTS, **options):
    """The plan, and h, after a route into room full of nonsense. The layout comes from the kernel that keeps it."""
    plan = plain.plan(experts, top, shared, DEVICE)
    plan.rank.fill_(99)
    plan.woken.fill_(99)
    factor = normal(x.shape[1], seed=90).abs() + 0.5
    h = unwritten(*x.shape, dtype=x.dtype)
    module.route(x, factor, router, whole(valid), h, plan, **options)
    if module is fast:
        up = Weight(torch.zeros(experts + shared, 32, x.shape[1], dtype=x.dtype, device=DEVICE))
        expert_mlp.expert_up(h, up, plan, unwritten(x.shape[0], top + 1, 16, dtype=x.dtype))
    count, rows = int(plan.count[0]), slice(valid)
    return SimpleNamespace(
        h=h,
        expert=plan.expert[rows],
        weight=plan.weight[rows, : top + shared],
        woken=plan.woken[:count].tolist(),
        rank=plan.rank[:count].tolist(),
        count=plan.count.tolist(),
    )


def same_plan(a, b) -> bool:
    return (
        torch.equal(a.expert, b.expert)
        and (a.woken, a.rank, a.count) == (b.woken, b.rank, b.count)
        and close(b.weight, a.weight, 1e-5)
    )


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "valid"), [(16, 16), (5, 2), (1, 1), (4, 0)])
@pytest.mark.parametrize("shared", [True, False])
def test_the_plan_is_the_twins(rows, valid, shared, dtype):
    """Random logits lie further apart than sums differ, so choices are equal, not only close."""
    x = normal(rows, K, seed=rows, dtype=dtype)
    router = normal(EXPERTS + shared, K, seed=2, dtype=dtype)
    expected, found = (routed(module, x, router, valid, shared=shared) for module in (plain, fast))
    assert same_plan(expected, found)
    assert close(found.h, expected.h, 1e-3)
    assert is_a_kernel(fast._route)


@pytest.mark.parametrize("valid", [16, 1, 0])
def test_all_products_are_counted_before_rows_choose_or_there_is_nothing_to_wait_for(valid):
    """A count that falls short would be a wait until it gives up, and a choice from half of the sums."""
    x, router, mark = normal(16, K, seed=20), normal(EXPERTS + 1, K, seed=21), whole(0)
    routed(fast, x, router, valid, mark=mark)
    tile = tiles.router().within(-(-K // plain.PARTS))
    assert int(mark) == (plain.PARTS * -(-(EXPERTS + 1) // tile.block_n) if valid else 0)


def test_without_renormalising_weights_are_shares_of_all_experts():
    x, router = normal(4, K, seed=5), normal(EXPERTS + 1, K, seed=6)
    expected, found = (routed(module, x, router, 4, renormalise=False) for module in (plain, fast))
    assert same_plan(expected, found)
    assert float(found.weight[:, :TOP].sum(-1).max()) < 1.0


def test_ties_go_to_the_lowest_experts():
    """Bug class: a top-k that breaks ties by its own order. A router of zeros ties all; some of one sign tie groups."""
    x = normal(3, K, seed=7)
    zeros = torch.zeros(EXPERTS + 1, K, device=DEVICE)
    assert routed(fast, x, zeros, 3).expert.tolist() == [[0, 1, 2]] * 3
    pairs = normal(6, K, seed=8).repeat_interleave(2, dim=0)  # experts 2i and 2i + 1 have equal logits
    found, expected = (routed(module, x, pairs, 3) for module in (fast, plain))
    assert torch.equal(found.expert, expected.expert)


def test_all_rows_to_one_group_wakes_nobody_else():
    x, router = normal(1, K, seed=9).expand(16, K).contiguous(), normal(EXPERTS + 1, K, seed=10)
    found = routed(fast, x, router, 16)
    assert found.count == [TOP + 1, TOP] and found.woken[-1] == EXPERTS
    assert all(rank >= 0 for ranks in found.rank for rank in ranks)


def test_experts_can_be_imposed():
    x, router = normal(3, K, seed=11), normal(EXPERTS + 1, K, seed=12)
    ids = torch.tensor([[10, 0, 4], [4, 10, 0], [7, 8, 9]], dtype=torch.int32, device=DEVICE)
    expected, found = (routed(module, x, router, 3, imposed=ids) for module in (plain, fast))
    assert same_plan(expected, found)
    assert found.woken == [0, 4, 7, 8, 9, 10, EXPERTS]


def test_a_row_is_routed_alike_alone_and_in_a_block():
    x, router = normal(16, K, seed=13), normal(EXPERTS + 1, K, seed=14)
    block = routed(fast, x, router, 16)
    for row in (0, 5, 15):
        alone = unwritten(16, K)
        alone[0] = x[row]
        found = routed(fast, alone, router, 1)
        assert torch.equal(found.expert[0], block.expert[row])
        assert same_bits(found.weight[0], block.weight[row]) and same_bits(found.h[0], block.h[row])


def test_the_real_number_of_experts():
    x, router = normal(2, K, seed=15), normal(257, K, seed=16)
    expected, found = (routed(module, x, router, 2, experts=256, top=8) for module in (plain, fast))
    assert same_plan(expected, found)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="router"):
        routed(fast, normal(4, K, seed=1), normal(EXPERTS, K, seed=2), 4)
    with pytest.raises(ValueError, match="16"):
        routed(fast, normal(17, K, seed=1), normal(EXPERTS + 1, K, seed=2), 4)
