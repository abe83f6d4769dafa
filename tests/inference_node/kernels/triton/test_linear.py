from itertools import product

import pytest
import torch

from inference_node.kernels.plain import linear as plain
from inference_node.kernels.plain.packed import Weight, pack_int8, pack_mxfp4
from inference_node.kernels.triton import linear as fast
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

NARROW, PARTS = Tile(16, 32, 1, 1), Tile(32, 64, 2, 1, wk=2)
"""Small tiles, so that small shapes have several of them; one with K shared out among warps."""


def both(x, weight, valid, width, tile, **options):
    """The twin's and the kernel's result, each on outputs of its own."""
    results = []
    for function, more in ((plain.linear, {}), (fast.linear, {"tile": tile})):
        out = unwritten(x.shape[0], width, dtype=x.dtype)
        results.append(function(x, weight, whole(valid), out, **options, **more))
    return results


@pytest.mark.parametrize("tile", [NARROW, PARTS, None])
@pytest.mark.parametrize(("rows", "valid"), [(16, 16), (5, 3), (1, 1), (4, 0)])
@pytest.mark.parametrize(("n", "k"), [(48, 64), (41, 72)])  # whole tiles; and odd sizes that need every mask
def test_products_are_the_twins(rows, valid, n, k, tile):
    x, weight = normal(rows, k, seed=1), Weight(normal(n, k, seed=2))
    expected, found = both(x, weight, valid, n, tile)
    assert close(found, expected, WITHIN[torch.float32])
    assert bool(found[valid:].isnan().all()), "rows from `valid` on are left alone"
    assert is_a_kernel(fast._linear)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("pack", [Weight, pack_int8])
@pytest.mark.parametrize("options", ["norm", "gated", "residual", "swiglu", "swiglu residual norm"])
def test_norms_sums_and_gates_are_the_twins(options, pack, dtype):
    rows, n, k = 3, 34, 48
    x = normal(rows, k, seed=3, dtype=dtype)
    weight = normal(n, k, seed=4, dtype=dtype, scale=0.3)
    width = n // 2 if "swiglu" in options else n
    given = {}
    if "norm" in options:
        given["norm"] = normal(k, seed=5).abs() + 0.5
    if options == "gated":
        given["norm"], given["gate"] = normal(16, seed=6).abs() + 0.5, normal(rows, k, seed=7, dtype=dtype)
    if "residual" in options:
        given["residual"] = normal(rows, width, seed=8, dtype=dtype)
    if "swiglu" in options:
        given["swiglu"] = True
    expected, found = both(x, pack(weight), 2, width, NARROW, **given)
    assert close(found, expected, WITHIN[dtype])


def test_what_is_fed_is_the_norm_done_ahead():
    """out, its scaled rows and its squares from one layer; the next multiplies them without a norm of its own."""
    rows, valid, k = 5, 4, 48
    x, residual, factor = normal(rows, k, seed=9), normal(rows, 80, seed=10), normal(80, seed=11).abs() + 0.5
    first, second = Weight(normal(80, k, seed=12)), Weight(normal(33, 80, seed=13))
    feeds, results = [], []
    for function, more in ((plain.linear, {}), (fast.linear, {"tile": PARTS})):
        feed = plain.feed(rows, factor, torch.float32)
        out = function(x, first, whole(valid), unwritten(rows, 80), residual=residual, feed=feed, **more)
        fed = function(feed.scaled, second, whole(valid), unwritten(rows, 33), squares=feed.squares, **more)
        feeds.append(feed)
        results.append((out, fed))
    assert close(feeds[1].scaled, feeds[0].scaled, 1e-5) and close(feeds[1].squares, feeds[0].squares, 1e-5)
    for expected, found in zip(*results, strict=True):
        assert close(found, expected, 1e-5)
    plainly = plain.linear(results[0][0], second, whole(valid), unwritten(rows, 33), norm=factor)
    assert close(results[1][1], plainly, 1e-5)


@pytest.mark.parametrize("tile", [NARROW, PARTS])
def test_a_row_alone_has_the_bits_of_the_row_in_a_block(tile):
    """Neighbours full of NaN and infinities included."""
    x, weight, factor = normal(16, 72, seed=14), Weight(normal(41, 72, seed=15)), normal(72, seed=16).abs()
    block = fast.linear(x, weight, whole(16), unwritten(16, 41), norm=factor, tile=tile)
    for row, count in product((0, 7, 15), (1, 16)):
        alone = unwritten(count, 72)
        alone[0] = x[row]
        found = fast.linear(alone, weight, whole(1), unwritten(count, 41), norm=factor, tile=tile)
        assert same_bits(found[0], block[row])


def test_rows_may_lie_apart_and_the_residual_may_be_the_output():
    wide = normal(4, 200, seed=17)
    x, weight = wide[:, 100:164], Weight(normal(48, 64, seed=18))
    room = normal(4, 90, seed=19)
    expected = plain.linear(x, weight, whole(4), unwritten(4, 48), residual=room[:, :48].clone())
    target = room[:, :48]
    fast.linear(x, weight, whole(4), target, residual=target)
    assert close(target, expected, 1e-5)


def test_what_does_not_fit_is_refused_by_name():
    x, weight, valid, out = normal(4, 64, seed=1), Weight(normal(48, 64, seed=2)), whole(4), unwritten(4, 48)
    with pytest.raises(ValueError, match="at most 16"):
        fast.linear(normal(17, 64, seed=1), weight, valid, unwritten(17, 48))
    with pytest.raises(ValueError, match="out is"):
        fast.linear(x, weight, valid, unwritten(4, 40))
    with pytest.raises(ValueError, match="factors"):
        fast.linear(x, weight, valid, out, norm=torch.ones(32, device=DEVICE))
    with pytest.raises(ValueError, match="mxfp4"):
        fast.linear(x, pack_mxfp4(normal(48, 64, seed=2)), valid, out)
