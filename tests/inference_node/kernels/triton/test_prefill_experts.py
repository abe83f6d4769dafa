import pytest
import torch

from inference_node.kernels.plain import prefill_experts as plain
from inference_node.kernels.plain.packed import Weight, pack_int8, pack_mxfp4
from inference_node.kernels.triton import prefill_experts as fast
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

K, WIDTH, EXPERTS, TOP = 64, 32, 7, 2
TILE = PrefillTile(16, 32, 32, 4, 1)


def weights(pack, dtype=torch.float32, shared=1):
    up = normal(EXPERTS + shared, 2 * WIDTH, K, seed=1, scale=0.2, dtype=dtype)
    return pack(up), pack(normal(EXPERTS + shared, K, WIDTH, seed=2, scale=0.2, dtype=dtype))


def run(module, h, logits, up, down, valid):
    more = {"tile": TILE} if module is fast else {}
    out = unwritten(*h.shape, dtype=h.dtype)
    return module.prefill_experts(h, logits, up, down, valid, h, out, experts=EXPERTS, top=TOP, **more)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("pack", [Weight, pack_int8, pack_mxfp4])
def test_the_mixture_is_the_twins(pack, dtype):
    h, logits = normal(70, K, seed=3, dtype=dtype), normal(70, EXPERTS + 1, seed=4, scale=2.0)
    up, down = weights(pack, dtype)
    expected, found = (run(module, h, logits, up, down, 66) for module in (plain, fast))
    assert close(found, expected, WITHIN[dtype]) and bool(found[66:].isnan().all())
    assert is_a_kernel(fast._grouped) and is_a_kernel(fast._combine)


def test_all_tokens_to_one_pair_of_experts_and_none_to_others():
    h, logits = normal(40, K, seed=5), torch.zeros(40, EXPERTS + 1).to(normal(1, seed=1).device)
    logits[:, [3, 6]] = 9.0
    up, down = weights(Weight)
    expected, found = (run(module, h, logits, up, down, 40) for module in (plain, fast))
    assert close(found, expected, 1e-5)


@pytest.mark.parametrize("valid", [0, 1])
def test_no_row_and_one_row(valid):
    h, logits = normal(3, K, seed=6), normal(3, EXPERTS, seed=7)
    up, down = weights(Weight, shared=0)
    expected, found = (run(module, h, logits, up, down, valid) for module in (plain, fast))
    assert close(found, expected, 1e-5)


def test_a_row_does_not_depend_on_how_many_there_are():
    h, logits = normal(90, K, seed=8), normal(90, EXPERTS + 1, seed=9)
    up, down = weights(Weight)
    many, few = (run(fast, h[:rows], logits[:rows], up, down, rows) for rows in (90, 64))
    assert same_bits(few, many[:64])
