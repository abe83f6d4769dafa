"""Attention of a block over keys in pages: one launch for all splits, one that adds them.

Tensors and rules: `plain/paged_attention.py`. A program of the first launch holds some rows of all heads that share a
key head as one tile of queries, and walks over the keys of one split in steps cut at absolute positions, with a running
softmax. A step in which a row sees nothing leaves its bits alone (weight 0, factor 1), and so does a split, so what a
row gets depends on its position and on the keys it sees. The second launch finds each row's top over all splits and
adds the splits' parts by fixed groups in fixed order; it also does the output gate.

Programs whose rows are all fillers, or whose split begins past the block, exit at once: the grid is that of the whole
context, for one captured graph. Values past the block are not read (0 x NaN is NaN); keys may be, and are masked.

Cost: the keys and values of the block's context once (twice from the cache when two row tiles share them), and rows *
heads * dim * 8 bytes per split for the parts.
Exactness: as the twin says. Probabilities are rounded to the values' type before the product, sums are fp32.
Checked by: tests/inference_node/kernels/triton/test_paged_attention.py
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from inference_node.kernels.plain.kv_write import PAGE
from inference_node.kernels.plain.paged_attention import LENGTHS, Parts


@dataclass(frozen=True, slots=True)
class Tiles:
    """How the work is cut. Another cut is other bits, so it is fixed per kind of device and head width."""

    queries: int  # rows times heads of one program
    keys: int  # of one step
    warps: int
    stages: int


def tiles(device: str, dim: int) -> Tiles:
    """device: "cuda", or "hip" for LDS of 64 KiB and matrix units of 16 x 16."""
    if device == "hip":
        return Tiles(queries=64, keys=32, warps=4, stages=1) if dim <= 128 else Tiles(32, 16, warps=8, stages=1)
    return Tiles(queries=64, keys=64 if dim <= 128 else 32, warps=4, stages=3)


ADD = 16  # splits added at once
ADD_WARPS = 4


def attend(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    table: torch.Tensor,
    start: torch.Tensor,
    valid: torch.Tensor,
    bounds: torch.Tensor,
    room: Parts | None,
    out: torch.Tensor,
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    gate: torch.Tensor | None = None,
    cut: Tiles | None = None,
) -> None:
    """See the twin. `cut` is for measurements."""
    rows, heads, dim = q.shape
    _, kv_heads, page, _ = k_pages.shape
    splits = bounds.shape[0] - 1
    if k_pages.stride()[1:] != (PAGE * dim, dim, 1) or page != PAGE or v_pages.stride() != k_pages.stride():
        raise ValueError(
            f"pages are {tuple(k_pages.shape)}; expected [pages, kv_heads, {PAGE}, {dim}], contiguous inside"
        )
    if not (q.is_contiguous() and out.is_contiguous() and out.shape == q.shape):
        raise ValueError(f"q is {tuple(q.shape)}, out {tuple(out.shape)}; expected the same and contiguous")
    if dim & (dim - 1) or heads % kv_heads:
        raise ValueError(f"{heads} heads of {dim} over {kv_heads}; expected a power of two and an even share")
    if room is None or tuple(room.total.shape) != (splits, rows, heads, dim):
        raise ValueError(f"room is not that of {splits} splits of {(rows, heads, dim)}; make it with `parts`")
    if gate is not None and (gate.shape != q.shape or gate.stride(2) != 1):
        raise ValueError(f"gate is {tuple(gate.shape)}; expected {tuple(q.shape)} with contiguous heads")
    cut = cut or tiles("hip" if torch.version.hip else "cuda", dim)
    share = heads // kv_heads
    tile_rows = max(1, min(cut.queries // share, triton.next_power_of_2(rows)))
    _attend[(splits, kv_heads, triton.cdiv(rows, tile_rows))](
        q,
        k_pages,
        v_pages,
        table,
        start,
        valid,
        bounds,
        room.total,
        room.top,
        room.mass,
        scale * math.log2(math.e),
        k_pages.stride(0),
        window or 0,
        ROWS=rows,
        HEADS=heads,
        SHARE=share,
        DIM=dim,
        TILE_ROWS=tile_rows,
        TILE=max(16, triton.next_power_of_2(tile_rows * share)),
        STEP=cut.keys,
        PAGE=PAGE,
        PAGES=LENGTHS[-1][1] // PAGE if cut.stages > 1 else 0,
        CAUSAL=causal,
        WINDOWED=window is not None,
        num_warps=cut.warps,
        num_stages=cut.stages,
        enable_fp_fusion=False,
    )
    _add[(heads, rows)](
        room.total,
        room.top,
        room.mass,
        start,
        valid,
        bounds,
        gate if gate is not None else q,
        out,
        gate.stride(0) if gate is not None else 0,
        gate.stride(1) if gate is not None else 0,
        window or 0,
        splits,
        ROWS=rows,
        HEADS=heads,
        DIM=dim,
        ROOM=triton.next_power_of_2(splits),
        ADD=ADD,
        CAUSAL=causal,
        WINDOWED=window is not None,
        GATED=gate is not None,
        num_warps=ADD_WARPS,
        num_stages=1,
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=["scale", "window"])
def _attend(
    p_q,
    p_k_pages,
    p_v_pages,
    p_table,
    p_start,
    p_valid,
    p_bounds,
    p_total,
    p_top,
    p_mass,
    scale,  # log2(e) included: weights are powers of two
    page_stride,
    window,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    DIM: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    PAGE: tl.constexpr,
    PAGES: tl.constexpr,  # most pages of one split, or 0: page numbers are looked up step by step
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
):
    i_split, i_kv, i_tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start, valid = tl.load(p_start), tl.load(p_valid)
    low, high = tl.load(p_bounds + i_split), tl.load(p_bounds + i_split + 1)
    first_row = i_tile * TILE_ROWS
    last_row = tl.minimum(first_row + TILE_ROWS, valid) - 1
    end = start + valid  # keys from here on hold nothing
    high = tl.minimum(high, start + last_row + 1 if CAUSAL else end)
    if WINDOWED:
        low = tl.maximum(low, (tl.maximum(start + first_row - window + 1, 0) // STEP) * STEP)
        high = tl.minimum(high, start + last_row + window)
    if (first_row < valid) & (low < high):
        o_query = tl.arange(0, TILE)
        o_row = first_row + o_query // SHARE
        is_query = (o_query < TILE_ROWS * SHARE) & (o_row < valid)
        o_head = i_kv * SHARE + o_query % SHARE
        o_dim = tl.arange(0, DIM)
        o_place = o_row * HEADS + o_head
        b_q = tl.load(p_q + o_place[:, None] * DIM + o_dim[None, :], mask=is_query[:, None], other=0.0)
        b_position = start + o_row
        b_top = tl.full([TILE], float("-inf"), tl.float32)
        b_mass = tl.zeros([TILE], tl.float32)
        b_total = tl.zeros([TILE, DIM], tl.float32)
        o_step = tl.arange(0, STEP)
        # With stages, all page numbers are read before the loop: a look-up in it would wait for the keys under way too.
        if PAGES > 0:
            o_page = low // PAGE + tl.arange(0, PAGES)
            b_page = tl.load(p_table + o_page, mask=o_page * PAGE < high, other=0)
        for first in range(low, high, STEP):
            if PAGES > 0:
                page = tl.sum(tl.where(o_page == first // PAGE, b_page, 0), 0).to(tl.int64)
            else:
                page = tl.load(p_table + first // PAGE).to(tl.int64)
            o_cached = page * page_stride + (i_kv * PAGE + first % PAGE) * DIM
            o_keys = o_step[:, None] * DIM + o_dim[None, :]
            o_key = first + o_step
            b_k = tl.load(p_k_pages + o_cached + o_keys)
            b_v = tl.load(p_v_pages + o_cached + o_keys, mask=(o_key < end)[:, None], other=0.0)
            b_score = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale
            b_distance = b_position[:, None] - o_key[None, :]
            is_seen = (o_key < end)[None, :] & is_query[:, None]
            if CAUSAL:
                is_seen = is_seen & (b_distance >= 0)
            if WINDOWED:
                is_seen = is_seen & (b_distance < window) & (b_distance > -window)
            b_score = tl.where(is_seen, b_score, float("-inf"))
            b_new_top = tl.maximum(b_top, tl.max(b_score, 1))
            b_base = tl.where(b_new_top == float("-inf"), 0.0, b_new_top)
            b_weight = tl.exp2(b_score - b_base[:, None])
            b_factor = tl.exp2(b_top - b_base)
            b_mass = b_mass * b_factor + tl.sum(b_weight, 1)
            b_total = b_total * b_factor[:, None]
            b_total = tl.dot(b_weight.to(b_v.dtype), b_v, b_total, input_precision="ieee")
            b_top = b_new_top
        o_part = i_split.to(tl.int64) * (ROWS * HEADS) + o_place
        tl.store(p_total + o_part[:, None] * DIM + o_dim[None, :], b_total, mask=is_query[:, None])
        tl.store(p_top + o_part, b_top, mask=is_query)
        tl.store(p_mass + o_part, b_mass, mask=is_query)


@triton.jit(do_not_specialize=["window"])
def _add(
    p_total,
    p_top,
    p_mass,
    p_start,
    p_valid,
    p_bounds,
    p_gate,
    p_out,
    gate_row,
    gate_head,
    window,
    splits,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ROOM: tl.constexpr,
    ADD: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    GATED: tl.constexpr,
):
    i_head, i_row = tl.program_id(0), tl.program_id(1)
    start, valid = tl.load(p_start), tl.load(p_valid)
    o_dim = tl.arange(0, DIM)
    p_to = p_out + (i_row * HEADS + i_head) * DIM + o_dim
    if i_row >= valid:
        tl.store(p_to, tl.zeros([DIM], p_out.dtype.element_ty))
    else:
        position = start + i_row
        last = position if CAUSAL else start + valid - 1  # keys this row sees: first to last
        first = 0
        if WINDOWED:
            first = tl.maximum(position - window + 1, 0)
            last = tl.minimum(last, position + window - 1)
        o_split = tl.arange(0, ROOM)
        b_seen = _sees(p_bounds, o_split, splits, first, last)
        o_part = (o_split * ROWS + i_row) * HEADS + i_head
        b_top = tl.load(p_top + o_part, mask=b_seen, other=float("-inf"))
        top = tl.max(b_top, 0)
        mass = tl.sum(tl.load(p_mass + o_part, mask=b_seen, other=0.0) * tl.exp2(b_top - top), 0)
        b_total = tl.zeros([DIM], tl.float32)
        count = tl.max(tl.where(b_seen, o_split + 1, 0), 0)
        for group in range(0, count, ADD):
            o_few = group + tl.arange(0, ADD)
            b_few = _sees(p_bounds, o_few, splits, first, last)
            o_few_parts = (o_few * ROWS + i_row) * HEADS + i_head
            b_weight = tl.exp2(tl.load(p_top + o_few_parts, mask=b_few, other=float("-inf")) - top)
            p_parts = p_total + o_few_parts.to(tl.int64)[:, None] * DIM + o_dim[None, :]
            b_part = tl.load(p_parts, mask=b_few[:, None], other=0.0)
            b_total = b_total + tl.sum(b_part * b_weight[:, None], 0)
        b_out = b_total / mass
        if GATED:
            b_gate = tl.load(p_gate + i_row * gate_row + i_head * gate_head + o_dim).to(tl.float32)
            b_out = b_out / (1.0 + tl.exp(-b_gate))
        tl.store(p_to, b_out.to(p_out.dtype.element_ty))


@triton.jit
def _sees(p_bounds, o_split, splits, first, last):
    """Which splits hold a key between first and last."""
    is_split = o_split < splits
    b_low = tl.load(p_bounds + o_split, mask=is_split, other=0)
    b_high = tl.load(p_bounds + o_split + 1, mask=is_split, other=0)
    return is_split & (b_low <= last) & (b_high > first)
