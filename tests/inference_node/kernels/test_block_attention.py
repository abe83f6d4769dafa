import math

import pytest
import torch

from inference_node.kernels.plain.block_attention import SPLIT, Split, Visibility, attend


def keys(
    count: int, kv_heads: int = 2, dim: int = 16, fill: float = math.nan
) -> tuple[list[Split], torch.Tensor, torch.Tensor]:
    """Splits holding `count` keys, everything past them filled; and the same keys in one piece."""
    k, v = torch.randn(kv_heads, count, dim), torch.randn(kv_heads, count, dim)
    splits = []
    for first in range(0, count, SPLIT):
        valid = min(SPLIT, count - first)
        page = torch.full((2, kv_heads, SPLIT, dim), fill)
        page[0, :, :valid], page[1, :, :valid] = k[:, first : first + valid], v[:, first : first + valid]
        splits.append(Split(page[0], page[1], first, valid))
    return splits, k, v


def plain(q: torch.Tensor, position: torch.Tensor, k: torch.Tensor, v: torch.Tensor, how: Visibility) -> torch.Tensor:
    group = q.shape[1] // k.shape[0]
    k, v = k.repeat_interleave(group, 0).double(), v.repeat_interleave(group, 0).double()
    score = torch.einsum("rhd,hkd->hrk", q.double(), k) * q.shape[-1] ** -0.5
    distance = position[:, None] - torch.arange(k.shape[1])[None]
    seen = torch.ones_like(distance, dtype=torch.bool)
    if how.causal:
        seen &= distance >= 0
    if how.window is not None:
        seen &= distance.abs() < how.window
    weight = torch.softmax(score.masked_fill(~seen, -torch.inf), -1).nan_to_num()
    return torch.einsum("hrk,hkd->rhd", weight, v)


@pytest.mark.parametrize("how", [Visibility(), Visibility(window=40), Visibility(causal=False), Visibility(False, 40)])
@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 700])
def test_it_is_softmax_attention_whatever_lies_past_the_valid_keys(count, how):
    splits, k, v = keys(count)
    rows = min(8, count)
    position = torch.arange(count - rows, count)
    q = torch.randn(rows, 4, 16)
    got = attend(q, position, splits, how, 16**-0.5)
    # 1e-5: fp32 sums of up to 700 terms against fp64
    assert float((got - plain(q, position, k, v, how)).abs().max()) < 1e-5


@pytest.mark.parametrize("start", [3, 250, 255, 256, 500])
def test_a_row_has_the_same_bits_alone_and_in_a_block_across_a_split_boundary(start):
    """Bug class: key splits derived from the row count (lightseekorg/tokenspeed#904), other code for more rows
    (llama.cpp#28108, #28243)."""
    splits, _, _ = keys(start + 8)
    q, position = torch.randn(8, 4, 16), torch.arange(start, start + 8)
    block = attend(q, position, splits, Visibility(), 0.25)
    for row in range(8):
        padded = torch.cat([q[row : row + 1], torch.randn(7, 4, 16)])
        own = attend(padded, torch.arange(start + row, start + row + 8), splits, Visibility(), 0.25)
        assert torch.equal(own[0], block[row]), row


def test_later_keys_and_splits_change_no_bit_of_an_earlier_row():
    splits, _, _ = keys(600)
    q, position = torch.randn(8, 4, 16), torch.arange(100, 108)
    short = [Split(splits[0].k, splits[0].v, 0, 108)]
    assert torch.equal(attend(q, position, splits, Visibility(), 0.25), attend(q, position, short, Visibility(), 0.25))


@pytest.mark.parametrize("poison", [math.nan, math.inf, -0.0, 1e30])
def test_stale_rows_change_no_bit(poison):
    """Bug class: stale keys and values in freed cache slots (0 x NaN is NaN)."""
    torch.manual_seed(1)
    clean, _, _ = keys(300, fill=0.0)
    torch.manual_seed(1)
    dirty, _, _ = keys(300, fill=poison)
    q, position = torch.randn(8, 4, 16), torch.arange(292, 300)
    assert torch.equal(attend(q, position, clean, Visibility(), 0.25), attend(q, position, dirty, Visibility(), 0.25))


def test_a_row_that_sees_nothing_gets_zeros():
    splits, _, _ = keys(10)
    got = attend(torch.randn(1, 4, 16), torch.tensor([500]), splits, Visibility(window=16), 0.25)
    assert torch.equal(got, torch.zeros(1, 4, 16))


def test_a_window_counts_the_query_itself():
    """Bug class: a window that is off by one (z-lab's counts the query: at most window - 1 earlier rows)."""
    how = Visibility(window=4)
    splits, _, _ = keys(20)
    mask = how.mask(torch.tensor([10]), 10, 10, splits[0])
    assert mask is not None and mask[0].nonzero()[:, 0].tolist() == [7, 8, 9, 10]
    assert how.first_seen(10) == 7
