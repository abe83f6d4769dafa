"""Rows of an embedding table, one program per row. Tensors: `plain/embed.py`. Exact: values are copied.

Checked by: tests/inference_node/kernels/triton/test_embed.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference_node.kernels.plain.linear import GROUP, Feed

BLOCK = 1024


def embed(
    ids: torch.Tensor,
    table: torch.Tensor,
    out: torch.Tensor,
    *,
    valid: torch.Tensor | None = None,
    feed: Feed | None = None,
) -> torch.Tensor:
    """Returns `out`."""
    rows, width = out.shape
    if width != table.shape[1] or ids.shape[0] < rows or out.stride(1) != 1 or table.stride(1) != 1:
        raise ValueError(f"ids {tuple(ids.shape)}, table {tuple(table.shape)} and out {tuple(out.shape)} do not fit")
    if feed is not None and tuple(feed.scaled.shape) != (rows, width):
        raise ValueError(f"feed is {tuple(feed.scaled.shape)}; expected {(rows, width)}")
    if rows:
        _embed[(rows, triton.cdiv(width, BLOCK))](
            ids,
            table,
            out,
            valid if valid is not None else ids,
            feed.factor if feed is not None else out,
            feed.scaled if feed is not None else out,
            feed.squares if feed is not None else out,
            width,
            table.stride(0),
            out.stride(0),
            VALID=valid is not None,
            FEED=feed is not None,
            GROUP=GROUP,
            BLOCK=BLOCK,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return out


@triton.jit
def _embed(
    p_ids,
    p_table,
    p_out,
    p_valid,
    p_factor,
    p_scaled,
    p_squares,
    D,
    table_stride,
    out_stride,
    VALID: tl.constexpr,
    FEED: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i_row = tl.program_id(0)
    if VALID and i_row >= tl.load(p_valid):
        return
    o_d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(p_ids + i_row).to(tl.int64)
    b_row = tl.load(p_table + token * table_stride + o_d, mask=o_d < D, other=0.0)
    tl.store(p_out + i_row.to(tl.int64) * out_stride + o_d, b_row, mask=o_d < D)
    if FEED:
        b_wide = b_row.to(tl.float32)
        b_scaled = (b_wide * tl.load(p_factor + o_d, mask=o_d < D, other=0.0)).to(p_scaled.dtype.element_ty)
        tl.store(p_scaled + i_row * D + o_d, b_scaled, mask=o_d < D)
        o_group = tl.program_id(1) * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)
        b_square = tl.sum(tl.reshape(b_wide * b_wide, [BLOCK // GROUP, GROUP]), 1)
        tl.store(p_squares + i_row * (D // GROUP) + o_group, b_square, mask=o_group < D // GROUP)
