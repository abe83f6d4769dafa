"""The norm before a mixture, its router and the plan of its experts, in two launches.

Tensors and rules: `plain/route.py`. The first launch is wide: some programs multiply 16 router rows with a quarter of K
(the quarters are added later in one order), one program per row normalises it for the experts. The second is a single
program, because choosing needs a row's logits whole and the plan needs every row's choice: it adds the quarters, picks
the best experts one after another, and lays the plan out by running sums over experts, without atomics.

Exactness: a row's choice and weights depend on no other row. Against the twin: order of sums only; in the choice no
difference but where two logits lie closer than those sums are wide.
Checked by: tests/inference_node/kernels/triton/test_route.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference_node.kernels.plain.linear import ROWS
from inference_node.kernels.plain.route import PARTS, Plan
from inference_node.kernels.triton import tiles


def route(
    x: torch.Tensor,
    factor: torch.Tensor,
    router: torch.Tensor,
    valid: torch.Tensor,
    h: torch.Tensor,
    plan: Plan,
    *,
    eps: float = 1e-6,
    renormalise: bool = True,
    imposed: torch.Tensor | None = None,
    warps: int = 8,
) -> None:
    """Fills `h` and `plan`. `warps` is for measuring only."""
    rows, k = x.shape
    n = plan.experts + plan.shared
    if rows > ROWS or x.stride(1) != 1 or tuple(h.shape) != (rows, k) or h.stride(1) != 1:
        raise ValueError(f"x {tuple(x.shape)} and h {tuple(h.shape)} must be at most {ROWS} contiguous rows alike")
    if tuple(router.shape) != (n, k) or not router.is_contiguous() or router.dtype != x.dtype:
        raise ValueError(f"router is {router.dtype} {tuple(router.shape)}; expected contiguous {x.dtype} {(n, k)}")
    if tuple(factor.shape) != (k,):
        raise ValueError(f"norm has {tuple(factor.shape)} factors; expected {k}")
    if imposed is not None and (tuple(imposed.shape) != (rows, plan.top) or not imposed.is_contiguous()):
        raise ValueError(f"imposed experts are {tuple(imposed.shape)}; expected {(rows, plan.top)}")
    part = triton.cdiv(k, PARTS)
    tile = tiles.ROUTER.within(part)
    n_tiles = triton.cdiv(n, tile.block_n)
    _score[(n_tiles * PARTS + rows,)](
        x,
        factor,
        router,
        valid,
        h,
        plan.parts,
        n,
        k,
        plan.experts + 2,
        part,
        n_tiles,
        x.stride(0),
        h.stride(0),
        eps,
        ROWS=ROWS,
        PARTS=PARTS,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        ROW_BLOCK=triton.next_power_of_2(k),
        num_warps=tile.warps,
        num_stages=tile.stages,
        enable_fp_fusion=False,
    )
    _route[(1,)](
        plan.parts,
        imposed if imposed is not None else plan.expert,
        valid,
        plan.expert,
        plan.weight,
        plan.woken,
        plan.rank,
        plan.count,
        k,
        eps,
        E=plan.experts,
        TOP=plan.top,
        SHARED=plan.shared,
        RENORMALISE=renormalise,
        IMPOSED=imposed is not None,
        ROWS=ROWS,
        PARTS=PARTS,
        BLOCK_E=triton.next_power_of_2(plan.experts),
        num_warps=warps,
        num_stages=1,
        enable_fp_fusion=False,
    )


@triton.jit
def _score(
    p_x,
    p_factor,
    p_router,
    p_valid,
    p_h,
    p_parts,
    N,
    K,
    part_stride,
    part,
    n_tiles,
    x_stride,
    h_stride,
    eps,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
):
    valid = tl.load(p_valid)
    i = tl.program_id(0)
    if i >= n_tiles * PARTS:  # a row, for the experts
        i_row = i - n_tiles * PARTS
        if i_row < valid:
            o_d = tl.arange(0, ROW_BLOCK)
            b_row = tl.load(p_x + i_row * x_stride + o_d, mask=o_d < K, other=0.0).to(tl.float32)
            b_row = b_row * tl.rsqrt(tl.sum(b_row * b_row, 0) / K + eps)
            b_row = b_row * tl.load(p_factor + o_d, mask=o_d < K, other=0.0)
            tl.store(p_h + i_row * h_stride + o_d, b_row.to(p_h.dtype.element_ty), mask=o_d < K)
    elif valid > 0:
        i_part = i // n_tiles
        i_tile = i % n_tiles
        o_n = i_tile * BLOCK_N + tl.arange(0, BLOCK_N)
        o_row = tl.arange(0, ROWS)
        is_row = o_row < valid
        type: tl.constexpr = p_x.dtype.element_ty
        b_sum = tl.zeros([ROWS, BLOCK_N], tl.float32)
        b_square = tl.zeros([ROWS, BLOCK_K], tl.float32)
        end = tl.minimum((i_part + 1) * part, K)
        for k in range(i_part * part, end, BLOCK_K):
            o_k = k + tl.arange(0, BLOCK_K)
            is_k = o_k < end
            b_w = tl.load(
                p_router + o_n[None, :] * K + o_k[:, None], mask=(o_n < N)[None, :] & is_k[:, None], other=0.0
            )
            b_x = tl.load(
                p_x + o_row[:, None] * x_stride + o_k[None, :], mask=is_row[:, None] & is_k[None, :], other=0.0
            ).to(tl.float32)
            b_square += b_x * b_x
            b_factor = tl.load(p_factor + o_k, mask=is_k, other=0.0)
            b_sum = tl.dot((b_x * b_factor[None, :]).to(type), b_w, b_sum, input_precision="ieee")
        p_rows = p_parts + (i_part * ROWS + o_row) * part_stride
        tl.store(p_rows[:, None] + o_n[None, :], b_sum, mask=is_row[:, None] & (o_n < N)[None, :])
        if i_tile == 0:
            tl.store(p_rows + part_stride - 1, tl.sum(b_square, 1), mask=is_row)


@triton.jit
def _route(
    p_parts,
    p_imposed,
    p_valid,
    p_expert,
    p_weight,
    p_woken,
    p_rank,
    p_count,
    K,
    eps,
    E: tl.constexpr,
    TOP: tl.constexpr,
    SHARED: tl.constexpr,
    RENORMALISE: tl.constexpr,
    IMPOSED: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    valid = tl.load(p_valid)
    o_row = tl.arange(0, ROWS)
    o_e = tl.arange(0, BLOCK_E)
    is_row = o_row < valid
    is_pair = is_row[:, None] & (o_e < E)[None, :]
    b_logit = tl.zeros([ROWS, BLOCK_E], tl.float32)
    b_square = tl.zeros([ROWS], tl.float32)
    b_gate = tl.zeros([ROWS], tl.float32)
    for part in tl.static_range(PARTS):
        p_rows = p_parts + (part * ROWS + o_row) * (E + 2)
        b_logit += tl.load(p_rows[:, None] + o_e[None, :], mask=is_pair, other=0.0)
        b_square += tl.load(p_rows + E + 1, mask=is_row, other=0.0)
        if SHARED:
            b_gate += tl.load(p_rows + E, mask=is_row, other=0.0)
    b_unit = tl.rsqrt(b_square / K + eps)
    b_logit = tl.where(is_pair, b_logit * b_unit[:, None], float("-inf"))

    b_chosen = tl.zeros([ROWS, BLOCK_E], tl.int32)
    if IMPOSED:
        for rank in tl.static_range(TOP):
            b_id = tl.load(p_imposed + o_row * TOP + rank, mask=is_row, other=-1)
            b_chosen = tl.where(o_e[None, :] == b_id[:, None], 1, b_chosen)
    else:
        b_left = b_logit
        for _ in tl.static_range(TOP):
            b_best = tl.argmax(b_left, 1, tie_break_left=True)
            is_best = o_e[None, :] == b_best[:, None]
            b_chosen = tl.where(is_best, 1, b_chosen)
            b_left = tl.where(is_best, float("-inf"), b_left)
    b_chosen = tl.where(is_pair, b_chosen, 0)
    is_chosen = b_chosen == 1

    b_peak = tl.where(is_row, tl.max(b_logit, 1), 0.0)
    b_power = tl.exp(b_logit - b_peak[:, None])
    b_mass = tl.sum(tl.where(is_chosen, b_power, 0.0), 1) if RENORMALISE else tl.sum(b_power, 1)
    b_rank = tl.cumsum(b_chosen, 1) - 1
    tl.store(p_weight + o_row[:, None] * (TOP + 1) + b_rank, b_power / b_mass[:, None], mask=is_chosen)
    tl.store(p_expert + o_row[:, None] * TOP + b_rank, tl.broadcast_to(o_e[None, :], [ROWS, BLOCK_E]), mask=is_chosen)

    b_woken = tl.max(b_chosen, 0)
    is_woken = b_woken == 1
    b_slot = tl.cumsum(b_woken, 0) - 1
    count = tl.sum(b_woken, 0)
    tl.store(p_woken + b_slot, o_e, mask=is_woken)
    tl.store(
        p_rank + b_slot[None, :] * ROWS + o_row[:, None],
        tl.where(is_chosen, b_rank, -1),
        mask=tl.broadcast_to(is_woken[None, :], [ROWS, BLOCK_E]),
    )
    slots = count
    if SHARED:
        tl.store(p_weight + o_row * (TOP + 1) + TOP, 1.0 / (1.0 + tl.exp(-b_gate * b_unit)), mask=is_row)
        tl.store(p_woken + count, E)
        tl.store(p_rank + count * ROWS + o_row, tl.where(is_row, TOP, -1))
        slots = count + tl.where(valid > 0, 1, 0)
    tl.store(p_count, slots)
    tl.store(p_count + 1, count)
