"""The norm before a mixture and its router in one launch; `expert_up` finishes the plan of the experts.

Tensors and rules: `plain/route.py`. The first programs of the grid multiply 16 router rows with a part of K each. The
last 16 have a row each: they normalise it for the experts, wait for all products (marks.py), add the parts in one order
and pick the best experts one after another. Which experts are woken by all rows together is left to the programs of
`expert_up`: each finds it from 4 KB, sooner than one program could tell the others.

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
from inference_node.kernels.triton.marks import finish, wait


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
    mark: torch.Tensor | None = None,
) -> None:
    """Fills `h` and `plan`."""
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
    tile = tiles.router().within(part)
    n_tiles = triton.cdiv(n, tile.block_n)
    if mark is None:
        mark = torch.zeros(1, dtype=torch.int32, device=x.device)
    _route[(n_tiles * PARTS + ROWS,)](
        x, factor, router, valid, h, plan.parts, mark, imposed if imposed is not None else plan.expert, plan.expert,
        plan.weight, plan.place, n, k, plan.experts + 2, part, n_tiles, x.stride(0), h.stride(0), eps,
        ROWS=ROWS, PARTS=PARTS, BLOCK_N=tile.block_n, BLOCK_K=tile.block_k, ROW_BLOCK=triton.next_power_of_2(k),
        E=plan.experts, PLACES=plan.place.shape[1], TOP=plan.top, SHARED=plan.shared, RENORMALISE=renormalise,
        IMPOSED=imposed is not None, BLOCK_E=triton.next_power_of_2(plan.experts),
        num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit
def _route(
    p_x,
    p_factor,
    p_router,
    p_valid,
    p_h,
    p_parts,
    p_mark,
    p_imposed,
    p_expert,
    p_weight,
    p_place,
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
    E: tl.constexpr,
    PLACES: tl.constexpr,
    TOP: tl.constexpr,
    SHARED: tl.constexpr,
    RENORMALISE: tl.constexpr,
    IMPOSED: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    valid = tl.load(p_valid)
    i_row = tl.program_id(0) - n_tiles * PARTS
    if i_row >= valid:
        _nobody(p_place + i_row * PLACES, E, BLOCK_E)
    elif i_row >= 0:
        _normalise(p_x, p_factor, p_h, i_row, K, x_stride, h_stride, eps, ROW_BLOCK)
        wait(p_mark, n_tiles * PARTS)
        _pick(
            p_parts, p_imposed, p_expert, p_weight, p_place, i_row, K, eps,
            E, PLACES, TOP, SHARED, RENORMALISE, IMPOSED, ROWS, PARTS, BLOCK_E,
        )  # fmt: skip
    elif valid > 0:
        _multiply(
            p_x, p_factor, p_router, p_parts, tl.program_id(0), valid, N, K, part_stride, part, n_tiles, x_stride,
            ROWS, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        finish(p_mark)


@triton.jit
def _nobody(p_row, E: tl.constexpr, BLOCK_E: tl.constexpr):
    """A row that does not count is nobody's."""
    o_e = tl.arange(0, BLOCK_E)
    tl.store(p_row + o_e, tl.full([BLOCK_E], -1, tl.int8), mask=o_e < E)
    tl.store(p_row + E, -1)


@triton.jit
def _normalise(p_x, p_factor, p_h, i_row, K, x_stride, h_stride, eps, ROW_BLOCK: tl.constexpr):
    o_d = tl.arange(0, ROW_BLOCK)
    b_row = tl.load(p_x + i_row * x_stride + o_d, mask=o_d < K, other=0.0).to(tl.float32)
    b_row = b_row * tl.rsqrt(tl.sum(b_row * b_row, 0) / K + eps)
    b_row = b_row * tl.load(p_factor + o_d, mask=o_d < K, other=0.0)
    tl.store(p_h + i_row * h_stride + o_d, b_row.to(p_h.dtype.element_ty), mask=o_d < K)


@triton.jit
def _pick(
    p_parts,
    p_imposed,
    p_expert,
    p_weight,
    p_place,
    i_row,
    K,
    eps,
    E: tl.constexpr,
    PLACES: tl.constexpr,
    TOP: tl.constexpr,
    SHARED: tl.constexpr,
    RENORMALISE: tl.constexpr,
    IMPOSED: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """One row's best experts, from the sums of its parts."""
    o_e = tl.arange(0, BLOCK_E)
    is_e = o_e < E
    p_row = p_parts + i_row * (E + 2)
    b_logit = tl.zeros([BLOCK_E], tl.float32)
    square = 0.0
    gate = 0.0
    for part in tl.static_range(PARTS):
        b_logit += tl.load(p_row + part * ROWS * (E + 2) + o_e, mask=is_e, other=0.0)
        square += tl.load(p_row + part * ROWS * (E + 2) + E + 1)
        if SHARED:
            gate += tl.load(p_row + part * ROWS * (E + 2) + E)
    unit = tl.rsqrt(square / K + eps)
    b_logit = tl.where(is_e, b_logit * unit, float("-inf"))

    b_chosen = tl.zeros([BLOCK_E], tl.int32)
    if IMPOSED:
        for rank in tl.static_range(TOP):
            b_chosen = tl.where(o_e == tl.load(p_imposed + i_row * TOP + rank), 1, b_chosen)
    else:
        # One integer that orders as the logit does, and among equal ones (0.0 and -0.0 too) by the lowest id.
        b_bits = tl.where(b_logit == 0.0, 0.0, b_logit).to(tl.int32, bitcast=True)
        b_order = b_bits ^ ((b_bits >> 31) & 0x7FFFFFFF)
        b_key = b_order.to(tl.int64) * 4096 + (4095 - o_e)
        for _ in tl.static_range(TOP):
            best = tl.max(b_key, 0)
            is_best = b_key == best
            b_chosen = tl.where(is_best, 1, b_chosen)
            b_key = tl.where(is_best, -0x7FFFFFFFFFFFFFFF, b_key)
    is_chosen = (b_chosen == 1) & is_e
    b_power = tl.exp(b_logit - tl.max(b_logit, 0))
    mass = tl.sum(tl.where(is_chosen, b_power, 0.0), 0) if RENORMALISE else tl.sum(b_power, 0)
    b_rank = tl.cumsum(is_chosen.to(tl.int32), 0) - 1
    tl.store(p_weight + i_row * (TOP + 1) + b_rank, b_power / mass, mask=is_chosen)
    tl.store(p_expert + i_row * TOP + b_rank, o_e, mask=is_chosen)
    tl.store(p_place + i_row * PLACES + o_e, tl.where(is_chosen, b_rank, -1).to(tl.int8), mask=is_e)
    if SHARED:
        tl.store(p_place + i_row * PLACES + E, TOP)
        tl.store(p_weight + i_row * (TOP + 1) + TOP, 1.0 / (1.0 + tl.exp(-gate * unit)))


@triton.jit
def _multiply(
    p_x,
    p_factor,
    p_router,
    p_parts,
    i,
    valid,
    N,
    K,
    part_stride,
    part,
    n_tiles,
    x_stride,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """A part of K of some router rows, and by the first of them the squares of that part."""
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
        b_w = tl.load(p_router + o_n[None, :] * K + o_k[:, None], mask=(o_n < N)[None, :] & is_k[:, None], other=0.0)
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
