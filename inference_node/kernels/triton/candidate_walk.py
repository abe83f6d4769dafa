"""DFlash 2's choice of drafts, in one program: a row's choice is what the next row's candidates are weighed against.

Tensors and rules: `plain/candidate_walk.py`. Candidates' codes do not wait for the choice before them, the one code of
the predecessor does: that chain, not bytes, is what it costs.
Exactness: fp32 sums over the rank in one order. Against the twin: the order of those sums.
Checked by: tests/inference_node/kernels/triton/test_candidate_walk.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference_node.kernels.triton.philox import philox_noise


def candidate_walk(
    candidates: torch.Tensor,
    logits: torch.Tensor,
    projected: torch.Tensor,
    predecessor: torch.Tensor,
    successor: torch.Tensor,
    valid: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
    block: torch.Tensor,
    confidence: torch.Tensor,
    *,
    known: torch.Tensor | None = None,
) -> None:
    """See the twin."""
    n, top = candidates.shape
    ids, rank = successor.shape
    if predecessor.shape != successor.shape or not (predecessor.is_contiguous() and successor.is_contiguous()):
        raise ValueError(f"codes are {tuple(predecessor.shape)} and {tuple(successor.shape)}; expected the same")
    for name, tensor, shape, kind in (
        ("candidates", candidates, (n, top), torch.int32),
        ("logits", logits, (n, top), torch.float32),
        ("projected", projected, (n, rank), projected.dtype),
        ("position", position, (n,), torch.int32),
        ("block", block, (n + 1,), torch.int32),
        ("confidence", confidence, (n,), torch.float32),
    ):
        if tuple(tensor.shape) != shape or tensor.dtype != kind or not tensor.is_contiguous():
            raise ValueError(
                f"{name} is {tuple(tensor.shape)} of {tensor.dtype}; expected contiguous {shape} of {kind}"
            )
    _walk[(1,)](
        candidates,
        logits,
        projected,
        predecessor,
        successor,
        valid,
        temperature,
        seed,
        position,
        known if known is not None else candidates,
        block,
        confidence,
        ids,
        KNOWN=known is not None,
        LIBRARY=not triton.knobs.runtime.interpret,
        TOP=top,
        ROOM=triton.next_power_of_2(top),
        RANK=rank,
        CODE=triton.next_power_of_2(rank),
        num_warps=4,
        num_stages=1,
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=["ids"])
def _walk(
    p_candidates,
    p_logits,
    p_projected,
    p_predecessor,
    p_successor,
    p_valid,
    p_temperature,
    p_seed,
    p_position,
    p_known,
    p_block,
    p_confidence,
    ids,
    KNOWN: tl.constexpr,
    LIBRARY: tl.constexpr,
    TOP: tl.constexpr,
    ROOM: tl.constexpr,
    RANK: tl.constexpr,
    CODE: tl.constexpr,
):
    temperature, low, high = tl.load(p_temperature), tl.load(p_seed), tl.load(p_seed + 1)
    heat = tl.where(temperature == 0.0, 1.0, temperature)
    o_place, o_code = tl.arange(0, ROOM), tl.arange(0, CODE)
    is_place, is_code = o_place < TOP, o_code < RANK
    previous = tl.load(p_block)
    for row in range(0, tl.load(p_valid)):
        b_id = tl.load(p_candidates + row * TOP + o_place, mask=is_place, other=-1)
        may = (b_id >= 0) & (b_id < ids)
        b_id = tl.where(may, b_id, 0)
        if KNOWN:
            may = may & (((tl.load(p_known + b_id // 32) >> (b_id % 32)) & 1) == 1)
        p_codes = p_successor + b_id.to(tl.int64)[:, None] * RANK + o_code[None, :]
        b_codes = tl.load(p_codes, mask=may[:, None] & is_code[None, :], other=0.0).to(tl.float32)
        b_own = tl.load(p_projected + row * RANK + o_code, mask=is_code, other=0.0).to(tl.float32)
        p_before = p_predecessor + previous.to(tl.int64) * RANK + o_code
        b_own = b_own * tl.load(p_before, mask=is_code, other=0.0).to(tl.float32)
        b_pull = tl.sum(b_codes * b_own[None, :], 1)
        b_score = tl.load(p_logits + row * TOP + o_place, mask=is_place, other=0.0) + b_pull
        b_score = tl.where(may, tl.div_rn(b_score, tl.zeros([ROOM], tl.float32) + heat), float("-inf"))
        b_heard = b_score
        if temperature != 0.0:
            b_noise = philox_noise(tl.load(p_position + row), b_id, low, high, LIBRARY=LIBRARY)
            b_heard = b_score + b_noise
        at = tl.argmax(b_heard, 0, tie_break_left=True)
        found = tl.max(b_heard, 0) > float("-inf")
        previous = tl.where(found, tl.sum(tl.where(o_place == at, b_id, 0), 0), 0)
        chosen = tl.sum(tl.where(o_place == at, b_score, 0.0), 0)
        peak = tl.max(b_score, 0)
        peak = tl.where(found, peak, 0.0)
        mass = tl.sum(tl.exp(b_score - peak), 0)
        tl.store(p_block + 1 + row, previous)
        tl.store(p_confidence + row, tl.where(found, tl.exp(chosen - peak) / mass, 0.0))
