import pytest
import torch

from inference_node.kernels.plain import mixture as plain
from inference_node.kernels.plain.linear import feed
from inference_node.kernels.plain.packed import Weight, pack_int8, pack_mxfp4
from inference_node.kernels.triton import mixture as fast
from inference_node.kernels.triton.tiles import MixtureTile
from tests.inference_node.kernels.triton.helpers import (
    DEVICE,
    TYPES,
    WITHIN,
    close,
    is_a_kernel,
    normal,
    same_bits,
    unwritten,
    whole,
)

K, WIDTH, EXPERTS, TOP = 64, 48, 7, 2
TILE = MixtureTile(32, 32, 32, 32, 1, 1, per_core=1, score_k=32)


def weights(pack, dtype=torch.float32, *, shared=True):
    width = 64 if pack is pack_mxfp4 else WIDTH
    up = normal(EXPERTS + shared, 2 * width, K, seed=1, scale=0.2, dtype=dtype)
    return pack(up), pack(normal(EXPERTS + shared, K, width, seed=2, scale=0.2, dtype=dtype))


def mixed(module, x, experts, up, down, *, router=None, shared=True, fed=None, valid=None, **more):
    """(out, room) with everything unwritten before; experts: imposed per row, or None for the router's own choice."""
    n = up.shape[0] - shared
    room = plain.room(
        n, TOP, shared, hidden=x.shape[1], width=down.shape[2], dtype=x.dtype, device=DEVICE
    )  # fmt: skip
    for part in (room.normed, room.hidden, room.partial, room.plan.weight, room.plan.parts):
        part.fill_(float("nan"))
    room.mask.fill_(-1)
    room.plan.expert.fill_(99)
    room.marks.fill_(7)
    valid = len(experts) if valid is None else valid
    imposed = None
    if experts is not None:
        imposed = torch.zeros(16, TOP, dtype=torch.int32, device=DEVICE)
        imposed[:valid] = torch.tensor(experts, dtype=torch.int32, device=DEVICE).view(-1, TOP)
    router = normal(n + shared, x.shape[1], seed=3, dtype=x.dtype) if router is None else router
    factor = normal(x.shape[1], seed=90).abs() + 0.5
    if module is fast:
        more.setdefault("tile", TILE)
    out = unwritten(*x.shape, dtype=x.dtype)
    module.mixture(x, factor, router, up, down, whole(valid), room, out, imposed=imposed, feed=fed, **more)
    return out, room


CASES = {
    "a full block, all experts": [[row % 7, (row + 3) % 7] for row in range(16)],
    "all rows to one pair": [[2, 5]] * 16,
    "one row": [[6, 0]],
    "no rows": [],
    "some of the rows": [[0, 1], [1, 2], [0, 6]],
}


@pytest.mark.parametrize("experts", CASES.values(), ids=CASES.keys())
def test_the_mixture_is_the_twins(experts):
    x = normal(max(4, len(experts)), K, seed=4)
    up, down = weights(Weight)
    (found, room), (expected, theirs) = (mixed(module, x, experts, up, down) for module in (fast, plain))
    assert close(found, expected, WITHIN[torch.float32])
    assert room.plan.count.tolist() == theirs.plan.count.tolist()
    assert bool(found[len(experts) :].isnan().all())
    assert is_a_kernel(fast._mixture)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("pack", [pack_int8, pack_mxfp4])
def test_packed_experts_are_unpacked_inside(pack, dtype):
    x = normal(2, K, seed=5, dtype=dtype)
    up, down = weights(pack, dtype)
    found, expected = (mixed(module, x, [[0, 1]], up, down)[0] for module in (fast, plain))
    assert close(found, expected, WITHIN[dtype])


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("valid", [16, 3, 0])
def test_the_routers_own_choice_is_the_twins(valid, shared):
    """Random logits lie further apart than sums differ, so choices are equal, not only close."""
    x = normal(16, K, seed=6)
    up, down = weights(Weight, shared=shared)
    (found, room), (expected, theirs) = (
        mixed(module, x, None, up, down, shared=shared, valid=valid) for module in (fast, plain)
    )
    assert close(found, expected, WITHIN[torch.float32])
    assert torch.equal(room.plan.expert[:valid], theirs.plan.expert[:valid])
    assert close(room.plan.weight[:valid, : TOP + shared], theirs.plan.weight[:valid, : TOP + shared], 1e-5)
    assert close(room.normed[:valid], theirs.normed[:valid], 1e-5)
    assert room.plan.count.tolist() == theirs.plan.count.tolist()


def test_without_renormalising_weights_are_shares_of_all_experts():
    x = normal(4, K, seed=5)
    up, down = weights(Weight)
    (found, room), (expected, _) = (
        mixed(module, x, None, up, down, valid=4, renormalise=False) for module in (fast, plain)
    )
    assert close(found, expected, WITHIN[torch.float32])
    assert float(room.plan.weight[:4, :TOP].sum(-1).max()) < 1.0


def test_ties_go_to_the_lowest_experts():
    """Bug class: a top-k that breaks ties by its own order. A router of zeros ties all; some of one sign tie groups."""
    x = normal(3, K, seed=7)
    up, down = weights(Weight)
    zeros = torch.zeros(EXPERTS + 1, K, device=DEVICE)
    assert mixed(fast, x, None, up, down, router=zeros, valid=3)[1].plan.expert[:3].tolist() == [[0, 1]] * 3
    pairs = normal(4, K, seed=8).repeat_interleave(2, dim=0)  # experts 2i and 2i + 1 have equal logits
    found, expected = (
        mixed(module, x, None, up, down, router=pairs, valid=3)[1].plan.expert[:3] for module in (fast, plain)
    )
    assert torch.equal(found, expected)


def test_a_row_alone_has_the_bits_of_the_row_in_a_block():
    """Bug class: experts gather rows, so a row's sum changes with its company. Here the neighbours are NaN, too."""
    x = normal(16, K, seed=7)
    up, down = weights(Weight)
    block, room = mixed(fast, x, None, up, down, valid=16)
    for row in (0, 13):
        alone = unwritten(16, K)
        alone[0] = x[row]
        found, own = mixed(fast, alone, None, up, down, valid=1)
        assert same_bits(found[0], block[row])
        assert same_bits(own.plan.weight[0], room.plan.weight[row])


def test_an_expert_that_a_row_did_not_choose_cannot_touch_it():
    """An expert whose weights are NaN, woken by another row: zero times NaN would be NaN."""
    x = normal(2, K, seed=8)
    up, down = weights(Weight)
    up.data[5], down.data[5] = float("nan"), float("nan")
    out, _ = mixed(fast, x, [[0, 1], [0, 5]], up, down)
    assert not bool(out[0].isnan().any()) and bool(out[1].isnan().all())


def test_the_next_norm_is_fed():
    x = normal(3, K, seed=9)
    up, down = weights(Weight)
    factor = normal(K, seed=10)
    feeds = []
    for module in (plain, fast):
        room = feed(3, factor, torch.float32)
        out, _ = mixed(module, x, [[0, 1], [1, 2]], up, down, fed=room)
        feeds.append(room)
    assert close(feeds[1].scaled, feeds[0].scaled, 1e-5) and close(feeds[1].squares, feeds[0].squares, 1e-5)
    assert close(feeds[1].scaled[:2], out[:2] * factor, 1e-6)


def test_the_real_number_of_experts():
    """More than one word of bits, and words that no row sets."""
    experts, top = 256, 8
    x, router = normal(2, K, seed=15), normal(257, K, seed=16)
    up, down = Weight(normal(257, 32, K, seed=17, scale=0.2)), Weight(normal(257, K, 16, seed=18, scale=0.2))
    results = []
    for module, more in ((fast, {"tile": TILE}), (plain, {})):
        room = plain.room(experts, top, True, hidden=K, width=16, dtype=x.dtype, device=DEVICE)
        out = unwritten(2, K)
        module.mixture(x, torch.ones(K, device=DEVICE), router, up, down, whole(2), room, out, **more)
        results.append((out, room.plan))
    (found, plan), (expected, theirs) = results
    assert close(found, expected, WITHIN[torch.float32])
    assert torch.equal(plan.expert[:2], theirs.expert[:2]) and torch.equal(plan.count, theirs.count)


def test_what_does_not_fit_is_refused():
    x = normal(3, K, seed=11)
    up, down = weights(Weight)
    with pytest.raises(ValueError, match="experts"):
        mixed(fast, x, [[0, 1]], up, down[:EXPERTS])
    with pytest.raises(ValueError, match="router"):
        mixed(fast, x, [[0, 1]], up, down, router=normal(EXPERTS, K, seed=2))
    with pytest.raises(ValueError, match="16"):
        mixed(fast, normal(17, K, seed=1), [[0, 1]], up, down)
