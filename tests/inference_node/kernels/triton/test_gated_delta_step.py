"""The delta step against its twin, and bits: however rows come and go, they are those of one row at a time."""

import pytest
import torch

from inference_node.kernels.plain import gated_delta_step as plain
from inference_node.kernels.plain.gated_delta_step import DeltaWeights, Keep
from inference_node.kernels.triton import gated_delta_step as fast
from tests.inference_node.kernels.triton.helpers import DEVICE, close, is_a_kernel, normal, same_bits, unwritten, whole

BLOCK, TOKENS, KEY_HEADS, HEADS, WIDTH, VALUE_WIDTH = 5, 13, 1, 2, 16, 8
CHANNELS = 2 * KEY_HEADS * WIDTH + HEADS * VALUE_WIDTH
SINGLY = [(1, 1)] * TOKENS
BLOCKS = [(3, 2), (5, 1), (5, 5), (4, 0), (5, 3), (2, 2)]  # (rows verified, rows that stayed)


def walk(module, plan, keep=Keep.FOLD, dtype=torch.float32):
    """Outputs of all tokens, the state after them and the conv inputs before the next. Whatever is not valid is NaN."""
    rows = [normal(TOKENS, width, seed=width, dtype=dtype) for width in (CHANNELS, HEADS, HEADS + 1)]
    rows[2] = rows[2][:, :HEADS]
    conv = normal(CHANNELS, 4, seed=1, dtype=dtype, scale=0.5)
    weights = DeltaWeights(conv, normal(HEADS, seed=2).abs() + 0.1, normal(HEADS, seed=3))
    memory = plain.memory(
        block=BLOCK, key_heads=KEY_HEADS, heads=HEADS, width=WIDTH, value_width=VALUE_WIDTH, dtype=dtype, device=DEVICE
    )
    for ring in (memory.k, memory.v, memory.gates, memory.line[:, 3:], memory.line[1], memory.state[1]):
        ring.fill_(float("nan"))
    snapshots = unwritten(2, BLOCK, HEADS, WIDTH, VALUE_WIDTH)
    read, at, fold, slot = unwritten(TOKENS, HEADS, VALUE_WIDTH, dtype=dtype), 0, 0, 0

    def run(valid, keep, out):
        given = [unwritten(BLOCK, y.shape[1], dtype=dtype) for y in rows]
        for padded, y in zip(given, rows, strict=True):
            padded[:valid] = y[at : at + valid]
        side = (whole(slot), whole(fold), whole(valid))
        module.step(*given, weights, memory, *side, out, keep=keep, snapshots=snapshots)

    for valid, kept in plan:
        out = unwritten(BLOCK, HEADS, VALUE_WIDTH, dtype=dtype)
        run(valid, Keep.NOTHING if keep is Keep.LAST else keep, out)
        assert not out[valid:].any(), "fillers are zero"
        if keep is Keep.LAST:
            untouched = unwritten(BLOCK, HEADS, VALUE_WIDTH, dtype=dtype)
            run(kept, keep, untouched)
            assert untouched.isnan().all()
        read[at : at + kept] = out[:kept]
        at, fold, slot = at + kept, kept, 1 - slot
    if keep is not Keep.LAST:
        run(0, keep, unwritten(BLOCK, HEADS, VALUE_WIDTH, dtype=dtype))
        slot = 1 - slot
    return read[:at], memory.state[slot].clone(), memory.line[slot, :3].clone()


@pytest.fixture(scope="module")
def singly():
    return walk(fast, SINGLY)


def test_the_kernel_is_its_twin(singly):
    assert is_a_kernel(fast._step) and is_a_kernel(fast._enter)
    for found, expected in zip(singly, walk(plain, SINGLY), strict=True):
        assert close(found, expected, 1e-5)  # fp32 sums over K in another order


def test_half_floats_are_rounded_where_the_twin_rounds():
    plan = [(5, 4), (5, 5)]
    for found, expected in zip(
        walk(fast, plan, dtype=torch.float16), walk(plain, plan, dtype=torch.float16), strict=True
    ):
        assert close(found, expected, 2e-3)  # one rounding of fp16, twice where a sum falls on the other side


@pytest.mark.parametrize("keep", [Keep.FOLD, Keep.SNAPSHOTS, Keep.LAST])
def test_blocks_taken_back_in_part_leave_the_bits_of_single_rows(singly, keep):
    """Bug class: a fold or replay that rounds otherwise than the step did (LightLLM's is not bitwise equal)."""
    for found, expected in zip(walk(fast, BLOCKS, keep), singly, strict=True):
        assert same_bits(found, expected[: found.shape[0]])


def test_a_pass_without_rows_changes_no_bit_of_what_follows(singly):
    found = walk(fast, [(5, 3), (0, 0), (0, 0), (5, 5), (5, 5)])
    for part, expected in zip(found, singly, strict=True):
        assert same_bits(part, expected)


def test_rows_of_another_width_are_refused():
    memory = plain.memory(
        block=BLOCK, key_heads=1, heads=2, width=16, value_width=8, dtype=torch.float32, device=DEVICE
    )
    weights = DeltaWeights(normal(CHANNELS, 4, seed=1), normal(2, seed=2), normal(2, seed=3))
    rows = (normal(BLOCK, CHANNELS + 1, seed=1), normal(BLOCK, 2, seed=1), normal(BLOCK, 2, seed=1))
    with pytest.raises(ValueError, match=r"x is .*expected"):
        fast.step(*rows, weights, memory, whole(0), whole(0), whole(1), unwritten(BLOCK, 2, 8))
