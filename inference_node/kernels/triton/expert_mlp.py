"""The woken experts of a block, the shared one among them: two launches whose grid does not depend on the routing.

Tensors and rules: `plain/expert_mlp.py`.

`expert_up`: every program finds the woken experts from the rows' choices (4 KB; the first keeps the list for those who
come after). A fixed number of programs share out the pieces of work, a piece being some gate and up rows of one woken
expert, so that 8 and 128 woken experts are the same launch. Gate and up rows alternate in a tile, and SiLU(gate) * up
is made from neighbouring columns of one product.

`expert_down`: one program per tile of output features; it walks the woken experts in ascending order and adds each
one's part to its rows, so the weighted sum has one order, needs no atomics, no room in memory and no third launch.
With HALVES two programs share a tile: one walks the experts in the lower half of the ids, one the others and the shared
one, so a core has two of them and twice the loads under way. Whoever is done last (a ticket) adds lower + upper; which
half an expert is in follows from its id, so a row's bits still depend on nothing but its own experts.

Cost: each woken expert's weights once: (2 + 1) * I * K elements; activations come from the second-level cache, only
the rows that an expert serves.
Exactness: a row's bits depend on its own experts alone: an expert that it did not choose leaves its sum untouched, not
merely adding zero. Against the twin: order of fp32 sums inside one expert's products.
Checked by: tests/inference_node/kernels/triton/test_expert_mlp.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference_node.kernels.plain.linear import GROUP, ROWS, Feed
from inference_node.kernels.plain.packed import BLOCK as FP4_BLOCK
from inference_node.kernels.plain.packed import Weight
from inference_node.kernels.plain.route import TILES, Plan
from inference_node.kernels.triton import tiles
from inference_node.kernels.triton.linear import no_sum, store_feed
from inference_node.kernels.triton.marks import finish
from inference_node.kernels.triton.packed import fp4_values, operand

HALVES = False
"""Whether `expert_down` has two programs a tile. Another order of one sum, so to the bit another model. Off: on an H200
a cycle gains 1.5 % and a plain decode loses 2.6 % (NOTES.md, 2026-12-01); `lab/fast_bench.py` measures both."""


def expert_up(
    h: torch.Tensor,
    up: Weight,
    plan: Plan,
    hidden: torch.Tensor,
    *,
    tile: tiles.Tile | None = None,
) -> torch.Tensor:
    """Returns `hidden`. `tile` is for measuring only."""
    stack, twice, k = up.shape
    if h.shape[0] > ROWS or h.shape[1] != k or h.stride(1) != 1:
        raise ValueError(f"h is {tuple(h.shape)}; expected at most {ROWS} contiguous rows of {k}")
    if stack != plan.experts + plan.shared:
        raise ValueError(f"{stack} experts; the plan is for {plan.experts + plan.shared}, the shared one included")
    if tuple(hidden.shape) != (h.shape[0], plan.top + 1, twice // 2) or not hidden.is_contiguous():
        raise ValueError(f"hidden is {tuple(hidden.shape)}; expected {(h.shape[0], plan.top + 1, twice // 2)}")
    tile = (tile or tiles.expert_up(up.kind)).within(k)
    data, scale, kind = operand(up)
    _up[(tiles.cores(h.device) * tile.per_core,)](
        h,
        data,
        scale,
        plan.place,
        plan.woken,
        plan.rank,
        plan.count,
        plan.low,
        hidden,
        h.stride(0),
        E=plan.experts,
        PLACES=plan.place.shape[1],
        SHARED=plan.shared,
        BLOCK_E=triton.next_power_of_2(plan.experts),
        I=twice // 2,
        K=k,
        TOP=plan.top,
        KIND=kind,
        ROWS=ROWS,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        WK=1 if kind == 2 else tile.wk,
        FP4_BLOCK=FP4_BLOCK,
        num_warps=tile.warps,
        num_stages=tiles.stages(tile),
        enable_fp_fusion=False,
    )
    return hidden


def expert_down(
    hidden: torch.Tensor,
    down: Weight,
    plan: Plan,
    valid: torch.Tensor,
    residual: torch.Tensor,
    out: torch.Tensor,
    *,
    feed: Feed | None = None,
    tile: tiles.Tile | None = None,
) -> torch.Tensor:
    """Returns `out`. `tile` is for measuring only."""
    stack, n, k = down.shape
    rows = out.shape[0]
    if stack != plan.experts + plan.shared:
        raise ValueError(f"{stack} experts; the plan is for {plan.experts + plan.shared}, the shared one included")
    if tuple(hidden.shape) != (rows, plan.top + 1, k) or not hidden.is_contiguous():
        raise ValueError(f"hidden is {tuple(hidden.shape)}; expected contiguous {(rows, plan.top + 1, k)}")
    for name, tensor in (("residual", residual), ("out", out), ("feed", out if feed is None else feed.scaled)):
        if tuple(tensor.shape) != (rows, n) or tensor.stride(1) != 1:
            raise ValueError(f"{name} is {tuple(tensor.shape)}; expected {(rows, n)} with contiguous rows")
    tile = (tile or tiles.expert_down(down.kind)).within(k)
    n_tiles = triton.cdiv(n, tile.block_n)
    halves = HALVES and n_tiles <= TILES
    parts = torch.empty(2, n_tiles, ROWS, tile.block_n, device=out.device) if halves else out
    data, scale, kind = operand(down)
    _down[(n_tiles, 2 if halves else 1)](
        hidden,
        data,
        scale,
        plan.woken,
        plan.rank,
        plan.count,
        plan.weight,
        valid,
        residual,
        out,
        feed.factor if feed is not None else out,
        feed.scaled if feed is not None else out,
        feed.squares if feed is not None else out,
        parts,
        plan.low,
        plan.tickets,
        residual.stride(0),
        out.stride(0),
        n,
        HALVES=halves,
        FEED=feed is not None,
        GROUP=GROUP,
        K=k,
        TOP=plan.top,
        KIND=kind,
        ROWS=ROWS,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        WK=1 if kind == 2 else tile.wk,
        FP4_BLOCK=FP4_BLOCK,
        num_warps=tile.warps,
        num_stages=tiles.stages(tile),
        enable_fp_fusion=False,
    )
    return out


@triton.jit
def _product(
    b_sum,
    p_rows,
    is_row,
    p_w,
    p_scale,
    o_n,
    is_n,
    k,
    K: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WK: tl.constexpr,
    FP4_BLOCK: tl.constexpr,
):
    """b_sum plus rows times BLOCK_K input features of the weight, from k on. p_rows [ROWS]: where each row begins.

    With WK parts of BLOCK_K, b_sum is [WK, ROWS, BLOCK_N]: see linear.py.
    """
    type: tl.constexpr = p_rows.dtype.element_ty
    if KIND == 2:  # BLOCK_K / 2 bytes: low halves are one run of 16 features, high halves the next
        HALF: tl.constexpr = FP4_BLOCK // 2
        o_byte = k // 2 + tl.arange(0, BLOCK_K // 2)
        is_byte = o_byte < K // 2
        o_low = o_byte // HALF * FP4_BLOCK + o_byte % HALF
        is_w = is_n[None, :] & is_byte[:, None]
        b_byte = tl.load(p_w + o_n[None, :] * (K // 2) + o_byte[:, None], mask=is_w, other=0).to(tl.int32)
        b_power = tl.load(p_scale + o_n[None, :] * (K // FP4_BLOCK) + (o_byte // HALF)[:, None], mask=is_w, other=0).to(
            tl.int32
        )
        is_x = is_row[:, None] & is_byte[None, :]
        b_low = tl.load(p_rows[:, None] + o_low[None, :], mask=is_x, other=0.0)
        b_high = tl.load(p_rows[:, None] + (o_low + HALF)[None, :], mask=is_x, other=0.0)
        b_sum = tl.dot(b_low, fp4_values(b_byte & 15, b_power, type), b_sum, input_precision="ieee")
        b_sum = tl.dot(b_high, fp4_values(b_byte >> 4, b_power, type), b_sum, input_precision="ieee")
    elif WK > 1:
        PART: tl.constexpr = BLOCK_K // WK
        o_part_k = k + tl.arange(0, WK)[:, None] * PART + tl.arange(0, PART)[None, :]
        p_weights = p_w + o_n[None, None, :] * K + o_part_k[:, :, None]
        p_parts = p_rows[None, :, None] + o_part_k[:, None, :]
        if K % BLOCK_K == 0:
            b_w = tl.load(p_weights, mask=is_n[None, None, :], other=0, eviction_policy="evict_first")
            b_x = tl.load(p_parts, mask=is_row[None, :, None], other=0.0)
        else:
            b_w = tl.load(p_weights, mask=is_n[None, None, :] & (o_part_k < K)[:, :, None], other=0)
            b_x = tl.load(p_parts, mask=is_row[None, :, None] & (o_part_k < K)[:, None, :], other=0.0)
        b_sum = tl.dot(b_x, b_w.to(type), b_sum, input_precision="ieee")
    else:
        o_k = k + tl.arange(0, BLOCK_K)
        p_weights = p_w + o_n[None, :] * K + o_k[:, None]
        if K % BLOCK_K == 0:
            b_w = tl.load(p_weights, mask=is_n[None, :], other=0, eviction_policy="evict_first")
            b_x = tl.load(p_rows[:, None] + o_k[None, :], mask=is_row[:, None], other=0.0)
        else:
            b_w = tl.load(p_weights, mask=is_n[None, :] & (o_k < K)[:, None], other=0)
            b_x = tl.load(p_rows[:, None] + o_k[None, :], mask=is_row[:, None] & (o_k < K)[None, :], other=0.0)
        b_sum = tl.dot(b_x, b_w.to(type), b_sum, input_precision="ieee")
    return b_sum


@triton.jit
def _expert(p_w, p_scale, e, N, K: tl.constexpr, KIND: tl.constexpr, FP4_BLOCK: tl.constexpr):
    """Where expert e's weight and scales begin."""
    e = e.to(tl.int64)
    if KIND == 0:
        return p_w + e * N * K, p_scale
    elif KIND == 1:
        return p_w + e * N * K, p_scale + e * N
    else:
        return p_w + e * N * (K // 2), p_scale + e * N * (K // FP4_BLOCK)


@triton.jit
def _up(
    p_h,
    p_w,
    p_scale,
    p_place,
    p_woken,
    p_rank,
    p_count,
    p_low,
    p_hidden,
    h_stride,
    E: tl.constexpr,
    PLACES: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK_E: tl.constexpr,
    I: tl.constexpr,  # noqa: E741 (the intermediate size, as in the docstring)
    K: tl.constexpr,
    TOP: tl.constexpr,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WK: tl.constexpr,
    FP4_BLOCK: tl.constexpr,
):
    TILES: tl.constexpr = (2 * I + BLOCK_N - 1) // BLOCK_N
    o_row = tl.arange(0, ROWS)
    o_e = tl.arange(0, BLOCK_E)
    b_place = tl.load(p_place + o_row[:, None] * PLACES + o_e[None, :], mask=(o_e < E)[None, :], other=-1)
    b_shared = tl.load(p_place + o_row * PLACES + E).to(tl.int32)
    is_woken = tl.max(b_place.to(tl.int32), 0) >= 0
    b_slot = tl.where(is_woken, tl.cumsum(is_woken.to(tl.int32), 0) - 1, -1)
    routed = tl.sum(is_woken.to(tl.int32), 0)
    slots = routed
    if SHARED:
        slots = routed + (tl.max(b_shared, 0) >= 0).to(tl.int32)
    if tl.program_id(0) == 0:  # for the kernels after this one
        tl.store(p_woken + b_slot, o_e, mask=is_woken)
        tl.store(
            p_rank + b_slot[None, :] * ROWS + o_row[:, None],
            b_place.to(tl.int32),
            mask=tl.broadcast_to(is_woken[None, :], [ROWS, BLOCK_E]),
        )
        if SHARED:
            tl.store(p_woken + routed, E)
            tl.store(p_rank + routed * ROWS + o_row, b_shared)
        tl.store(p_low, tl.sum((is_woken & (o_e < E // 2)).to(tl.int32), 0))
        tl.store(p_count, slots)
        tl.store(p_count + 1, routed)
    pieces = slots * TILES
    for piece in range(tl.program_id(0), pieces, tl.num_programs(0)):
        slot = piece // TILES
        i_tile = piece % TILES
        e = tl.sum(tl.where(b_slot == slot, o_e, 0), 0) if not SHARED or slot < routed else E
        b_rank = tl.load(p_place + o_row * PLACES + e).to(tl.int32)
        is_row = b_rank >= 0
        o_column = i_tile * BLOCK_N + tl.arange(0, BLOCK_N)
        o_n = o_column // 2 + (o_column % 2) * I
        p_w_e, p_scale_e = _expert(p_w, p_scale, e, 2 * I, K, KIND, FP4_BLOCK)
        b_sum = no_sum(ROWS, BLOCK_N, WK)
        for k in range(0, K, BLOCK_K):
            b_sum = _product(
                b_sum,
                p_h + o_row * h_stride,
                is_row,
                p_w_e,
                p_scale_e,
                o_n,
                o_column < 2 * I,
                k,
                K,
                KIND,
                BLOCK_K,
                WK,
                FP4_BLOCK,
            )
        if WK > 1:
            b_sum = tl.sum(b_sum, 0)
        if KIND == 1:
            b_sum = b_sum * tl.load(p_scale_e + o_n, mask=o_column < 2 * I, other=0.0)[None, :]
        b_gate, b_value = tl.split(tl.reshape(b_sum, [ROWS, BLOCK_N // 2, 2]))
        b_hidden = b_gate / (1.0 + tl.exp(-b_gate)) * b_value
        o_out = i_tile * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
        tl.store(
            p_hidden + (o_row * (TOP + 1) + b_rank)[:, None] * I + o_out[None, :],
            b_hidden.to(p_hidden.dtype.element_ty),
            mask=is_row[:, None] & (o_out < I)[None, :],
        )


@triton.jit
def _down(
    p_hidden,
    p_w,
    p_scale,
    p_woken,
    p_rank,
    p_count,
    p_weight,
    p_valid,
    p_residual,
    p_out,
    p_factor,
    p_fed,
    p_fed_squares,
    p_parts,
    p_low,
    p_tickets,
    residual_stride,
    out_stride,
    N,
    HALVES: tl.constexpr,
    FEED: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    TOP: tl.constexpr,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WK: tl.constexpr,
    FP4_BLOCK: tl.constexpr,
):
    valid = tl.load(p_valid)
    if valid == 0:
        return
    i_tile, i_half = tl.program_id(0), tl.program_id(1)
    o_row = tl.arange(0, ROWS)
    o_n = i_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    is_n = o_n < N
    b_total = no_sum(ROWS, BLOCK_N, WK)
    first, end = 0, tl.load(p_count)
    if HALVES:
        low = tl.load(p_low)
        first, end = low * i_half, tl.where(i_half == 0, low, end)
    for slot in range(first, end):
        b_rank = tl.load(p_rank + slot * ROWS + o_row)
        is_row = b_rank >= 0
        o_pair = o_row * (TOP + 1) + b_rank
        p_w_e, p_scale_e = _expert(p_w, p_scale, tl.load(p_woken + slot), N, K, KIND, FP4_BLOCK)
        b_sum = no_sum(ROWS, BLOCK_N, WK)
        for k in tl.static_range(0, K, BLOCK_K):
            b_sum = _product(
                b_sum, p_hidden + o_pair * K, is_row, p_w_e, p_scale_e, o_n, is_n, k, K, KIND, BLOCK_K, WK, FP4_BLOCK
            )
        b_weight = tl.load(p_weight + o_pair, mask=is_row, other=0.0)
        b_factor = tl.broadcast_to(b_weight[:, None], [ROWS, BLOCK_N])
        if KIND == 1:
            b_factor = b_factor * tl.load(p_scale_e + o_n, mask=is_n, other=0.0)[None, :]
        if WK == 1:
            b_total = tl.where(is_row[:, None], b_total + b_sum * b_factor, b_total)
        else:
            b_total = tl.where(is_row[None, :, None], b_total + b_sum * b_factor[None, :, :], b_total)
    if WK > 1:
        b_total = tl.sum(b_total, 0)
    if HALVES:
        p_tile = p_parts + i_tile * ROWS * BLOCK_N + o_row[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        half = tl.num_programs(0) * ROWS * BLOCK_N
        tl.store(p_tile + i_half * half, b_total)
        if finish(p_tickets + i_tile) == 0:  # the other half is still to come
            return
        tl.debug_barrier()
        b_total = tl.load(p_tile, cache_modifier=".cg") + tl.load(p_tile + half, cache_modifier=".cg")
        tl.store(p_tickets + i_tile, 0)
    is_out = (o_row < valid)[:, None] & is_n[None, :]
    b_total += tl.load(p_residual + o_row[:, None] * residual_stride + o_n[None, :], mask=is_out, other=0.0).to(
        tl.float32
    )
    b_row = b_total.to(p_out.dtype.element_ty)
    tl.store(p_out + o_row[:, None] * out_stride + o_n[None, :], b_row, mask=is_out)
    if FEED:
        store_feed(b_row, p_factor, p_fed, p_fed_squares, o_row, o_n, is_out, i_tile, N, GROUP, ROWS, BLOCK_N)
