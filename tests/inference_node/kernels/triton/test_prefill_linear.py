import pytest
import torch

from inference_node.kernels.plain import prefill_linear as plain
from inference_node.kernels.plain.packed import Weight, pack_int8
from inference_node.kernels.triton import prefill_linear as fast
from inference_node.kernels.triton.tiles import PrefillTile
from tests.inference_node.kernels.triton.helpers import (
    TYPES,
    WITHIN,
    close,
    is_a_kernel,
    normal,
    same_bits,
    unwritten,
)

TILE = PrefillTile(32, 32, 32, 4, 1)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("pack", [Weight, pack_int8])
@pytest.mark.parametrize(("rows", "n", "k", "swiglu"), [(64, 64, 64, False), (70, 42, 40, True), (1, 33, 72, False)])
def test_products_are_the_twins(rows, n, k, swiglu, pack, dtype):
    x, weight = normal(rows, k, seed=1, dtype=dtype), pack(normal(n, k, seed=2, dtype=dtype, scale=0.3))
    width = n // 2 if swiglu else n
    residual = normal(rows, width, seed=3, dtype=dtype)
    results = []
    for function, more in ((plain.prefill_linear, {}), (fast.prefill_linear, {"tile": TILE})):
        out = unwritten(rows, width, dtype=dtype)
        results.append(function(x, weight, out, residual=residual, swiglu=swiglu, **more))
    assert close(results[1], results[0], WITHIN[dtype])
    assert is_a_kernel(fast._prefill_linear)


def test_a_row_does_not_depend_on_how_many_there_are():
    x, weight = normal(130, 64, seed=4), Weight(normal(40, 64, seed=5))
    many = fast.prefill_linear(x, weight, unwritten(130, 40), tile=TILE)
    few = fast.prefill_linear(x[:64], weight, unwritten(64, 40), tile=TILE)
    assert same_bits(few, many[:64])


def test_no_rows_is_no_work():
    x = torch.zeros(0, 64, device=unwritten(0).device)
    assert fast.prefill_linear(x, Weight(normal(40, 64, seed=5)), unwritten(0, 40)).shape == (0, 40)
