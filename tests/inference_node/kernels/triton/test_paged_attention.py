"""Block attention against its twin; and a row's bits alone, in a block, and with poison where nothing is valid."""

from itertools import pairwise

import pytest
import torch

from inference_node.kernels.plain import paged_attention as plain
from inference_node.kernels.triton import paged_attention as fast
from inference_node.kernels.triton.paged_attention import Tiles
from tests.inference_node.kernels.triton.helpers import DEVICE, close, is_a_kernel, normal, same_bits, unwritten, whole

CONTEXT, DIM = 400, 16
TABLE = (2, 0)
WAYS = {
    "causal": {},
    "window": {"window": 100},
    "both ways": {"causal": False},
    "both ways in a window": {"causal": False, "window": 6},
}


class Case:
    """Queries, keys, values and gates of every position; a block of them at a time."""

    def __init__(self, heads=4, kv_heads=2, dtype=torch.float32):
        self.heads, self.kv_heads, self.dtype = heads, kv_heads, dtype
        self.q = normal(CONTEXT, heads, DIM, seed=1, dtype=dtype)
        self.kv = normal(2, kv_heads, CONTEXT, DIM, seed=2, dtype=dtype)
        self.gate = normal(CONTEXT, heads, 2 * DIM, seed=3, dtype=dtype)[:, :, DIM:]
        self.bounds = plain.split_bounds(CONTEXT, DEVICE)

    def pages(self, held, poison):
        pages = torch.full((3, 2, self.kv_heads, 256, DIM), poison, dtype=self.dtype, device=DEVICE)
        for index, page in enumerate(TABLE):
            first, last = index * 256, min(held, index * 256 + 256)
            if last > first:
                pages[page, :, :, : last - first] = self.kv[:, :, first:last]
        return pages

    def run(self, module, start, valid, rows=5, poison=float("nan"), gated=True, **how):
        pages = self.pages(start + valid, poison)
        q, gate = (torch.full((rows, self.heads, DIM), poison, dtype=self.dtype, device=DEVICE) for _ in range(2))
        q[:valid], gate[:valid] = self.q[start : start + valid], self.gate[start : start + valid]
        room = plain.parts(self.bounds, rows, self.heads, DIM)
        for part in (room.total, room.top, room.mass):
            part.fill_(float("nan"))
        out = unwritten(rows, self.heads, DIM, dtype=self.dtype)
        module.attend(
            q, pages[:, 0], pages[:, 1], whole(*TABLE), whole(start), whole(valid), self.bounds, room, out,
            scale=DIM**-0.5, gate=gate if gated else None, **how,
        )  # fmt: skip
        return out


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("start", "valid"), [(0, 5), (126, 5), (254, 4)])
def test_every_way_of_seeing_is_the_twins(way, start, valid):
    case = Case()
    assert is_a_kernel(fast._attend) and is_a_kernel(fast._add)
    found = case.run(fast, start, valid, **WAYS[way])
    assert close(found, case.run(plain, start, valid, **WAYS[way]), 1e-5)  # fp32 sums in another order


def test_half_floats_three_heads_to_a_key_head_and_no_gate():
    case = Case(heads=3, kv_heads=1, dtype=torch.float16)
    found = case.run(fast, 300, 5, gated=False)
    assert close(found, case.run(plain, 300, 5, gated=False), 5e-3)  # probabilities are rounded to fp16


def test_no_rows_give_zeros():
    assert not Case().run(fast, 9, 0).any()


@pytest.mark.parametrize("way", ["causal", "window"])
def test_a_row_alone_has_the_bits_it_has_in_a_block(way):
    """Bug class: a split count from the row count (tokenspeed#904), tiles that differ by rows (llama.cpp#28108)."""
    case = Case()
    for start in (125, 252):
        block = case.run(fast, start, 5, **WAYS[way])
        for row in (0, 3, 4):
            assert same_bits(case.run(fast, start + row, 1, **WAYS[way])[0], block[row])


def test_rows_in_two_tiles_have_the_bits_of_rows_in_one():
    """The grid's third axis: rows past a tile's own see the same keys."""
    case, cut = Case(), Tiles(queries=4, keys=32, warps=4, stages=1)
    block = case.run(fast, 254, 5, cut=cut)
    assert close(block, case.run(plain, 254, 5), 1e-5)
    assert same_bits(case.run(fast, 258, 1, cut=cut)[0], block[4])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:overflow:RuntimeWarning")  # of the poison
@pytest.mark.parametrize("poison", [float("inf"), -0.0, 3e38])
def test_what_lies_past_the_block_changes_no_bit(poison):
    case = Case()
    assert same_bits(case.run(fast, 200, 3, poison=poison), case.run(fast, 200, 3))


def test_page_numbers_read_ahead_and_step_by_step_give_the_same_bits():
    case = Case()
    ahead, stepwise = (Tiles(queries=64, keys=32, warps=4, stages=stages) for stages in (2, 1))
    assert same_bits(case.run(fast, 254, 5, cut=ahead), case.run(fast, 254, 5, cut=stepwise))


def test_splits_are_cut_at_multiples_of_their_length_and_cover_the_context():
    bounds = plain.split_bounds(131072, torch.device("cpu")).tolist()
    lengths = [after - before for before, after in pairwise(bounds)]
    assert bounds[0] == 0 and bounds[-1] == 131072
    assert all(before % length == 0 for before, length in zip(bounds, lengths, strict=False))
    assert (
        bounds[: len(plain.split_bounds(9000, torch.device("cpu")))]
        == plain.split_bounds(9000, torch.device("cpu")).tolist()
    )
