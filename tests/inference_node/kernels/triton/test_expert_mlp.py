import pytest
import torch

from inference_node.kernels.plain import expert_mlp as plain
from inference_node.kernels.plain.linear import feed
from inference_node.kernels.plain.packed import Weight, pack_int8, pack_mxfp4
from inference_node.kernels.plain.route import plan as room_for
from inference_node.kernels.triton import expert_mlp as fast
from inference_node.kernels.triton import route
from inference_node.kernels.triton.tiles import Tile
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
UP, DOWN, DOWN_PARTS = Tile(32, 32, 1, 1, per_core=1), Tile(16, 32, 1, 1), Tile(32, 32, 2, 1, wk=2)


def weights(pack, dtype=torch.float32, *, shared=1):
    width = 64 if pack is pack_mxfp4 else WIDTH
    up = normal(EXPERTS + shared, 2 * width, K, seed=1, scale=0.2, dtype=dtype)
    return pack(up), pack(normal(EXPERTS + shared, K, width, seed=2, scale=0.2, dtype=dtype))


def chosen(x, experts, *, shared=True):
    """A plan by which each row goes to the experts given for it, and normalised rows; the twin's layout is checked
    against the kernel's by the route's own tests."""
    plan = room_for(EXPERTS, TOP, shared, DEVICE)
    ids = torch.tensor(experts, dtype=torch.int32, device=DEVICE).view(-1, TOP)
    valid, h = whole(len(experts)), unwritten(*x.shape, dtype=x.dtype)
    padded = torch.zeros(x.shape[0], TOP, dtype=torch.int32, device=DEVICE)
    padded[: len(experts)] = ids
    router = normal(EXPERTS + shared, K, seed=3, dtype=x.dtype)
    route.route(x, torch.ones(K, device=DEVICE), router, valid, h, plan, imposed=padded)
    return plan, h, valid


def mixed(x, experts, up, down, down_tile=DOWN, *, shared=True, twin=True):
    """(hidden, out) of the kernels, and of the twins over the same plan."""
    plan, h, valid = chosen(x, experts, shared=shared)
    width, results = down.shape[2], []
    for module, up_tile, tile in ((fast, {"tile": UP}, {"tile": down_tile}), (plain, {}, {}))[: 1 + twin]:
        hidden = unwritten(x.shape[0], TOP + 1, width, dtype=x.dtype)
        module.expert_up(h, up, plan, hidden, **up_tile)
        source = results[0][0] if results else hidden  # the same numbers go into both second products
        out = module.expert_down(source, down, plan, valid, x, unwritten(*x.shape, dtype=x.dtype), **tile)
        results.append((hidden, out))
    return results


CASES = {
    "a full block, all experts": [[row % 7, (row + 3) % 7] for row in range(16)],
    "all rows to one pair": [[2, 5]] * 16,
    "one row": [[6, 0]],
    "no rows": [],
    "some of the rows": [[0, 1], [1, 2], [0, 6]],
}


@pytest.mark.parametrize("experts", CASES.values(), ids=CASES.keys())
def test_the_mixture_is_the_twins(experts, tile=DOWN_PARTS):
    x = normal(max(4, len(experts)), K, seed=4)
    up, down = weights(Weight)
    found, expected = mixed(x, experts, up, down, tile)
    for a, b in zip(found, expected, strict=True):
        assert close(a, b, WITHIN[torch.float32])
    assert bool(found[1][len(experts) :].isnan().all())
    assert is_a_kernel(fast._up) and is_a_kernel(fast._down)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("pack", [pack_int8, pack_mxfp4])
def test_packed_experts_are_unpacked_inside(pack, dtype):
    x = normal(2, K, seed=5, dtype=dtype)
    up, down = weights(pack, dtype)
    tile = DOWN if pack is pack_mxfp4 else DOWN_PARTS
    found, expected = mixed(x, [[0, 1]], up, down, tile)
    for a, b in zip(found, expected, strict=True):
        assert close(a, b, WITHIN[dtype])


def test_without_a_shared_expert():
    x = normal(3, K, seed=6)
    up, down = weights(Weight, shared=0)
    found, expected = mixed(x, [[0, 1], [1, 2], [3, 4]], up, down, DOWN, shared=False)
    assert close(found[1], expected[1], 1e-5) and bool(found[0][:, TOP].isnan().all())


def test_a_row_alone_has_the_bits_of_the_row_in_a_block():
    """Bug class: experts gather rows, so a row's sum changes with its company. Here the neighbours are NaN, too."""
    x = normal(16, K, seed=7)
    up, down = weights(Weight)
    experts = CASES["a full block, all experts"]
    block = mixed(x, experts, up, down, DOWN_PARTS, twin=False)[0][1]
    for row in (0, 13):
        alone = unwritten(2, K)
        alone[0] = x[row]
        assert same_bits(mixed(alone, [experts[row]], up, down, DOWN_PARTS, twin=False)[0][1][0], block[row])


@pytest.mark.parametrize("experts", CASES.values(), ids=CASES.keys())
def test_in_two_halves_the_mixture_is_the_twins_and_a_row_alone_has_its_bits(experts, monkeypatch):
    """Bug class: halves that follow from how many experts are woken, so that a neighbour moves one to the other sum."""
    monkeypatch.setattr(fast, "HALVES", True)
    x = normal(max(4, len(experts)), K, seed=12)
    up, down = weights(Weight)
    found, expected = mixed(x, experts, up, down, DOWN_PARTS)
    assert close(found[1], expected[1], WITHIN[torch.float32])
    for row in range(0, len(experts), 5):
        alone = unwritten(2, K)
        alone[0] = x[row]
        assert same_bits(mixed(alone, [experts[row]], up, down, DOWN_PARTS, twin=False)[0][1][0], found[1][row])


def test_tickets_of_halves_are_zeros_again(monkeypatch):
    """A graph is replayed without anyone who clears them."""
    monkeypatch.setattr(fast, "HALVES", True)
    x = normal(3, K, seed=13)
    up, down = weights(Weight)
    plan, h, valid = chosen(x, [[0, 1], [1, 6]])
    hidden = fast.expert_up(h, up, plan, unwritten(3, TOP + 1, WIDTH), tile=UP)
    first, second = (fast.expert_down(hidden, down, plan, valid, x, unwritten(3, K), tile=DOWN_PARTS) for _ in range(2))
    assert not bool(plan.tickets.any()) and int(plan.low) == 2
    assert same_bits(first[:2], second[:2])


def test_an_expert_that_a_row_did_not_choose_cannot_touch_it():
    """An expert whose weights are NaN, woken by another row: zero times NaN would be NaN."""
    x = normal(2, K, seed=8)
    up, down = weights(Weight)
    up.data[5], down.data[5] = float("nan"), float("nan")
    out = mixed(x, [[0, 1], [0, 5]], up, down, twin=False)[0][1]
    assert not bool(out[0].isnan().any()) and bool(out[1].isnan().all())


def test_the_next_norm_is_fed():
    x = normal(3, K, seed=9)
    up, down = weights(Weight)
    plan, h, valid = chosen(x, [[0, 1], [1, 2]])
    hidden = fast.expert_up(h, up, plan, unwritten(3, TOP + 1, WIDTH), tile=UP)
    factor = normal(K, seed=10)
    feeds = []
    for module, tile in ((plain, {}), (fast, {"tile": DOWN_PARTS})):
        room = feed(3, factor, torch.float32)
        out = module.expert_down(hidden, down, plan, valid, x, unwritten(3, K), feed=room, **tile)
        feeds.append(room)
    assert close(feeds[1].scaled, feeds[0].scaled, 1e-5) and close(feeds[1].squares, feeds[0].squares, 1e-5)
    assert close(feeds[1].scaled[:2], out[:2] * factor, 1e-6)


def test_what_does_not_fit_is_refused():
    x = normal(3, K, seed=11)
    up, down = weights(Weight)
    plan, h, valid = chosen(x, [[0, 1]])
    with pytest.raises(ValueError, match="hidden"):
        fast.expert_up(h, up, plan, unwritten(3, TOP, WIDTH))
    with pytest.raises(ValueError, match="experts"):
        fast.expert_up(h, up[:EXPERTS], plan, unwritten(3, TOP + 1, WIDTH))
    with pytest.raises(ValueError, match="out is"):
        fast.expert_down(unwritten(3, TOP + 1, WIDTH), down, plan, valid, x, unwritten(3, 32))
