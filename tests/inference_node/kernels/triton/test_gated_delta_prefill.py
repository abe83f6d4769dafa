import pytest
import torch

from inference_node.kernels.plain import gated_delta_prefill as plain
from inference_node.kernels.plain.gated_delta_step import DeltaWeights
from inference_node.kernels.triton import gated_delta_prefill as fast
from tests.inference_node.kernels.triton.helpers import close, is_a_kernel, normal, same_bits, unwritten

HEADS, WIDTH, VALUE_WIDTH = 1, 16, 16
CHANNELS = 2 * WIDTH + HEADS * VALUE_WIDTH


def run(module, n, valid, dtype=torch.float32, slices=None):
    """State, tail and outputs after `valid` of n rows; fillers are NaN."""
    x, b, a = (normal(n, width, seed=width, dtype=dtype) for width in (CHANNELS, HEADS, HEADS))
    for rows in (x, b, a):
        rows[valid:] = float("nan")
    weights = DeltaWeights(
        normal(CHANNELS, 4, seed=1, dtype=dtype, scale=0.5), normal(HEADS, seed=2).abs() + 0.1, normal(HEADS, seed=3)
    )
    state, tail = normal(HEADS, WIDTH, VALUE_WIDTH, seed=4), normal(3, CHANNELS, seed=5, dtype=dtype)
    out = unwritten(n, HEADS, VALUE_WIDTH, dtype=dtype)
    for first, last in slices or [(0, n)]:
        piece = slice(first, last)
        module.prefill(x[piece], b[piece], a[piece], weights, min(valid, last) - first, state, tail, out[piece])
    return state, tail, out


@pytest.mark.parametrize(("n", "valid"), [(64, 1), (128, 70), (64, 64)])
def test_the_kernel_is_its_twin_with_fillers_of_nan(n, valid):
    assert is_a_kernel(fast._walk)
    found, expected = run(fast, n, valid), run(plain, n, valid)
    for part, twin in zip(found, expected, strict=True):
        assert close(part, twin, 1e-5)  # fp32 throughout here; sums in another order
    assert not found[2][valid:].any()


def test_half_floats_lose_what_matrix_products_in_that_type_lose():
    for part, twin in zip(run(fast, 64, 60, torch.float16), run(plain, 64, 60, torch.float16), strict=True):
        assert close(part, twin, 5e-3)  # keys, values and the state are rounded to fp16 before each product


def test_a_prompt_in_pieces_that_end_at_multiples_of_64_has_the_bits_of_one():
    for part, expected in zip(run(fast, 128, 100, slices=[(0, 64), (64, 128)]), run(fast, 128, 100), strict=True):
        assert same_bits(part, expected)


def test_rows_that_are_no_multiple_of_64_are_refused():
    with pytest.raises(ValueError, match="multiple of 64"):
        run(fast, 65, 65)
