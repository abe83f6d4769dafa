"""The drafter's keys and values for new context rows, all layers in one launch.

Tensors and rules: `plain/draft_context.py`. One program makes one key head or one value head of one layer for a tile of
rows: a matrix product whose columns are the head, in two halves, so that the rotation needs no shuffling. Programs
whose rows are all fillers exit at once.

Cost: the stacked weights once per tile of rows (50 MB for the 35B's drafter).
Exactness: one K order whatever the rows; against the twin one rounding of the cache's type.
Checked by: tests/inference_node/kernels/triton/test_draft_context.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from inference_node.kernels.plain.kv_write import PAGE


@dataclass(frozen=True, slots=True)
class Tiles:
    rows: int
    step: int  # of the inner dimension
    warps: int
    stages: int


def tiles(device: str, rows: int) -> Tiles:
    """A block's rows stream the weights; a prompt's rows are a matrix product."""
    if device == "hip":
        return Tiles(16, 64, warps=4, stages=2) if rows <= 16 else Tiles(32, 32, warps=4, stages=1)
    return Tiles(16, 128, warps=4, stages=4) if rows <= 16 else Tiles(64, 64, warps=4, stages=3)


def write(
    context: torch.Tensor,
    weight: torch.Tensor,
    k_norm: torch.Tensor,
    rope: torch.Tensor,
    table: torch.Tensor,
    start: torch.Tensor,
    valid: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    eps: float,
    *,
    cut: Tiles | None = None,
) -> None:
    """See the twin. `cut` is for measurements."""
    rows, hidden = context.shape
    layers, _, kv_heads, page, dim = k_pages.shape
    if page != PAGE or k_pages.stride()[2:] != (PAGE * dim, dim, 1) or v_pages.stride() != k_pages.stride():
        raise ValueError(f"pages are {tuple(k_pages.shape)}; expected [layers, pages, kv_heads, {PAGE}, dim]")
    if tuple(weight.shape) != (layers, 2, kv_heads * dim, hidden) or not weight.is_contiguous():
        raise ValueError(f"weight is {tuple(weight.shape)}; expected contiguous {(layers, 2, kv_heads * dim, hidden)}")
    if rope.shape[1] != dim or dim & (dim - 1) or not rope.is_contiguous() or context.stride(1) != 1:
        raise ValueError(f"rope is {tuple(rope.shape)}; expected all of {dim} dimensions, a power of two, rotated")
    cut = cut or tiles("hip" if torch.version.hip else "cuda", rows)
    _write[(layers * 2 * kv_heads, triton.cdiv(rows, cut.rows))](
        context,
        weight,
        k_norm,
        rope,
        table,
        start,
        valid,
        k_pages,
        v_pages,
        eps,
        context.stride(0),
        table.stride(0),
        k_pages.stride(0),
        k_pages.stride(1),
        HIDDEN=hidden,
        KV_HEADS=kv_heads,
        DIM=dim,
        ROWS=cut.rows,
        STEP=min(cut.step, triton.next_power_of_2(hidden)),
        PAGE=PAGE,
        num_warps=cut.warps,
        num_stages=cut.stages,
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=["eps"])
def _write(
    p_context,
    p_weight,
    p_k_norm,
    p_rope,
    p_table,
    p_start,
    p_valid,
    p_k_pages,
    p_v_pages,
    eps,
    context_stride,
    table_stride,
    layer_stride,
    page_stride,
    HIDDEN: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    PAGE: tl.constexpr,
):
    i_part, i_tile = tl.program_id(0), tl.program_id(1)
    valid = tl.load(p_valid)
    if i_tile * ROWS < valid:
        HALF: tl.constexpr = DIM // 2
        i_layer = i_part // (2 * KV_HEADS)
        i_kv = i_part % KV_HEADS
        is_key = (i_part // KV_HEADS) % 2 == 0
        o_row = i_tile * ROWS + tl.arange(0, ROWS)
        is_row = o_row < valid
        o_half = tl.arange(0, HALF)
        p_first = p_weight + (i_part.to(tl.int64) * DIM + o_half)[:, None] * HIDDEN
        p_rows = p_context + o_row[:, None] * context_stride
        b_first = tl.zeros([ROWS, HALF], tl.float32)
        b_second = tl.zeros([ROWS, HALF], tl.float32)
        for inner in range(0, HIDDEN, STEP):
            o_inner = (inner + tl.arange(0, STEP))[None, :]
            if HIDDEN % STEP == 0:
                b_rows = tl.load(p_rows + o_inner, mask=is_row[:, None], other=0.0)
                b_w_first = tl.load(p_first + o_inner)
                b_w_second = tl.load(p_first + HALF * HIDDEN + o_inner)
            else:
                is_inner = o_inner < HIDDEN
                b_rows = tl.load(p_rows + o_inner, mask=is_row[:, None] & is_inner, other=0.0)
                b_w_first = tl.load(p_first + o_inner, mask=is_inner, other=0.0)
                b_w_second = tl.load(p_first + HALF * HIDDEN + o_inner, mask=is_inner, other=0.0)
            b_first = tl.dot(b_rows, tl.trans(b_w_first), b_first, input_precision="ieee")
            b_second = tl.dot(b_rows, tl.trans(b_w_second), b_second, input_precision="ieee")
        b_position = tl.load(p_start) + o_row
        b_page = tl.load(p_table + i_layer * table_stride + b_position // PAGE, mask=is_row, other=0).to(tl.int64)
        o_cached = i_layer.to(tl.int64) * layer_stride + b_page * page_stride
        o_cached += (i_kv * PAGE + b_position % PAGE) * DIM
        o_to = o_cached[:, None] + o_half[None, :]
        element = p_k_pages.dtype.element_ty
        if is_key:
            b_square = tl.sum(b_first * b_first, 1) + tl.sum(b_second * b_second, 1)
            b_scale = tl.rsqrt(b_square / DIM + eps)[:, None]
            b_first = b_first * b_scale * tl.load(p_k_norm + i_layer * DIM + o_half)[None, :]
            b_second = b_second * b_scale * tl.load(p_k_norm + i_layer * DIM + HALF + o_half)[None, :]
            p_angles = p_rope + b_position.to(tl.int64)[:, None] * DIM + o_half[None, :]
            b_cos = tl.load(p_angles, mask=is_row[:, None], other=0.0)
            b_sin = tl.load(p_angles + HALF, mask=is_row[:, None], other=0.0)
            b_turned = (b_first * b_cos - b_second * b_sin).to(element)
            tl.store(p_k_pages + o_to, b_turned, mask=is_row[:, None])
            b_turned = (b_second * b_cos + b_first * b_sin).to(element)
            tl.store(p_k_pages + o_to + HALF, b_turned, mask=is_row[:, None])
        else:
            tl.store(p_v_pages + o_to, b_first.to(element), mask=is_row[:, None])
            tl.store(p_v_pages + o_to + HALF, b_second.to(element), mask=is_row[:, None])
