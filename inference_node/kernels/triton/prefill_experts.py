"""A mixture for many rows: pairs of row and expert sorted by expert, two grouped products, one weighted sum.

Tensors and rules: `plain/prefill_experts.py`. Sorting and bookkeeping are a handful of ordinary torch calls on the
device; the grid is the most tiles that there can be, and programs past the last one leave. Nothing asks the host.
Exactness: one tile shape for every number of rows; a row's bits depend on no other row. Against the twin: order of fp32
sums, and the rounding of what lies between the products.
Checked by: tests/inference_node/kernels/triton/test_prefill_experts.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference_node.kernels.plain.packed import BLOCK as FP4_BLOCK
from inference_node.kernels.plain.packed import Weight
from inference_node.kernels.plain.prefill_experts import choose
from inference_node.kernels.triton import tiles
from inference_node.kernels.triton.expert_mlp import _expert, _product
from inference_node.kernels.triton.packed import operand


def prefill_experts(
    h: torch.Tensor,
    logits: torch.Tensor,
    up: Weight,
    down: Weight,
    valid: int,
    residual: torch.Tensor,
    out: torch.Tensor,
    *,
    experts: int,
    top: int,
    renormalise: bool = True,
    tile: tiles.PrefillTile | None = None,
) -> torch.Tensor:
    """Returns `out`. `tile` is for measuring only."""
    stack, twice, k = up.shape
    if logits.shape != (h.shape[0], stack) or h.shape[1] != k or h.stride(1) != 1:
        raise ValueError(f"h {tuple(h.shape)} and logits {tuple(logits.shape)} do not fit {stack} experts of {k}")
    if down.shape != (stack, k, twice // 2) or stack not in (experts, experts + 1):
        raise ValueError(f"down is {down.shape}; expected {(stack, k, twice // 2)}")
    for name, tensor in (("residual", residual), ("out", out)):
        if tuple(tensor.shape) != tuple(h.shape) or tensor.stride(1) != 1:
            raise ValueError(f"{name} is {tuple(tensor.shape)}; expected {tuple(h.shape)} with contiguous rows")
    if valid == 0:
        return out
    tile = tile or tiles.prefill_experts()
    weight, expert = choose(logits[:valid], experts, top, renormalise)
    ranks, pairs = expert.shape[1], expert.numel()
    order = torch.argsort(expert.flatten(), stable=True)
    counts = torch.zeros(stack, dtype=torch.int64, device=h.device)
    counts.index_add_(0, expert.flatten(), torch.ones_like(order))
    tiles_of = (counts + tile.block_m - 1) // tile.block_m
    ends, tile_ends = counts.cumsum(0), tiles_of.cumsum(0)
    most = pairs // tile.block_m + min(stack, pairs)
    number = torch.arange(most, device=h.device)
    owner = torch.searchsorted(tile_ends, number, right=True)  # `stack` past the last tile
    clamped = owner.clamp(max=stack - 1)
    first = (ends - counts)[clamped] + (number - (tile_ends - tiles_of)[clamped]) * tile.block_m
    sorted_pairs, owner, first, last = (t.to(torch.int32) for t in (order, owner, first, ends[clamped]))
    hidden = torch.empty(pairs, twice // 2, dtype=h.dtype, device=h.device)
    parts = torch.empty(pairs, k, dtype=h.dtype, device=h.device)
    for x, w, n, result, share, swiglu in ((h, up, twice, hidden, ranks, True), (hidden, down, k, parts, 1, False)):
        data, scale, kind = operand(w)
        inner = tiles.Tile(tile.block_n, tile.block_k, tile.warps, tile.stages).within(w.shape[2])
        _grouped[(most, triton.cdiv(n, tile.block_n))](
            x,
            data,
            scale,
            result,
            sorted_pairs,
            owner,
            first,
            last,
            x.stride(0),
            share,
            E=stack,
            N=n,
            K=w.shape[2],
            SWIGLU=swiglu,
            KIND=kind,
            BLOCK_M=tile.block_m,
            BLOCK_N=tile.block_n,
            BLOCK_K=inner.block_k,
            FP4_BLOCK=FP4_BLOCK,
            num_warps=tile.warps,
            num_stages=tiles.stages(inner),
            enable_fp_fusion=False,
        )
    _combine[(valid, triton.cdiv(k, 1024))](
        parts,
        weight,
        residual,
        out,
        k,
        residual.stride(0),
        out.stride(0),
        RANKS=ranks,
        BLOCK=1024,
        num_warps=4,
        num_stages=1,
        enable_fp_fusion=False,
    )
    return out


@triton.jit
def _grouped(
    p_x,
    p_w,
    p_scale,
    p_out,
    p_pair,
    p_owner,
    p_first,
    p_last,
    x_stride,
    share,
    E: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    SWIGLU: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FP4_BLOCK: tl.constexpr,
):
    """A pair's input row is pair // share; its result goes to row `pair`."""
    i_tile = tl.program_id(0)
    e = tl.load(p_owner + i_tile)
    if e == E:
        return
    o_place = tl.load(p_first + i_tile) + tl.arange(0, BLOCK_M)
    is_row = o_place < tl.load(p_last + i_tile)
    o_pair = tl.load(p_pair + o_place, mask=is_row, other=0)
    o_column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = o_column < N
    o_n = o_column
    if SWIGLU:
        o_n = o_column // 2 + (o_column % 2) * (N // 2)
    p_w_e, p_scale_e = _expert(p_w, p_scale, e, N, K, KIND, FP4_BLOCK)
    p_rows = p_x + (o_pair // share).to(tl.int64) * x_stride
    b_sum = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in range(0, K, BLOCK_K):
        b_sum = _product(b_sum, p_rows, is_row, p_w_e, p_scale_e, o_n, is_column, k, K, KIND, BLOCK_K, 1, FP4_BLOCK)
    if KIND == 1:
        b_sum = b_sum * tl.load(p_scale_e + o_n, mask=is_column, other=0.0)[None, :]
    if SWIGLU:
        b_gate, b_value = tl.split(tl.reshape(b_sum, [BLOCK_M, BLOCK_N // 2, 2]))
        b_out = b_gate / (1.0 + tl.exp(-b_gate)) * b_value
        o_out = tl.program_id(1) * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
    else:
        b_out = b_sum
        o_out = o_column
    WIDTH: tl.constexpr = N // 2 if SWIGLU else N
    p_to = p_out + o_pair.to(tl.int64)[:, None] * WIDTH + o_out[None, :]
    tl.store(p_to, b_out.to(p_out.dtype.element_ty), mask=is_row[:, None] & (o_out < WIDTH)[None, :])


@triton.jit
def _combine(
    p_parts, p_weight, p_residual, p_out, D, residual_stride, out_stride, RANKS: tl.constexpr, BLOCK: tl.constexpr
):
    i_row = tl.program_id(0).to(tl.int64)
    o_d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_d = o_d < D
    b_total = tl.zeros([BLOCK], tl.float32)
    for rank in tl.static_range(RANKS):
        pair = i_row * RANKS + rank
        b_part = tl.load(p_parts + pair * D + o_d, mask=is_d, other=0.0).to(tl.float32)
        b_total += b_part * tl.load(p_weight + pair)
    b_total += tl.load(p_residual + i_row * residual_stride + o_d, mask=is_d, other=0.0).to(tl.float32)
    tl.store(p_out + i_row * out_stride + o_d, b_total.to(p_out.dtype.element_ty), mask=is_d)
