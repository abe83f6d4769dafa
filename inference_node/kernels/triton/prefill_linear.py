"""A linear layer for many rows. Tensors and rules: `plain/prefill_linear.py`.

An ordinary tiled product; what is particular is that its tile never changes with the row count, so that a prompt
continued from a checkpoint has the bits of one read from nothing. Programs go through the row tiles of one weight tile
first, so that the weight is read once while the rows stay in the second-level cache.
Exactness: a row's bits depend on no other row. Against the twin: order of fp32 sums.
Checked by: tests/inference_node/kernels/triton/test_prefill_linear.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference_node.kernels.plain.packed import Weight
from inference_node.kernels.triton import tiles
from inference_node.kernels.triton.packed import operand


def prefill_linear(
    x: torch.Tensor,
    weight: Weight,
    out: torch.Tensor,
    *,
    residual: torch.Tensor | None = None,
    swiglu: bool = False,
    tile: tiles.PrefillTile | None = None,
) -> torch.Tensor:
    """Returns `out`. `tile` is for measuring only."""
    n, k = weight.shape
    rows = x.shape[0]
    width = n // 2 if swiglu else n
    if x.shape[1] != k or x.stride(1) != 1:
        raise ValueError(f"x is {tuple(x.shape)}, strides {x.stride()}; expected contiguous rows of {k}")
    if weight.kind == "mxfp4":
        raise ValueError("linear layers are bf16 or int8; mxfp4 is for experts")
    for name, other in (("out", out), ("residual", residual)):
        if other is not None and (tuple(other.shape) != (rows, width) or other.stride(1) != 1):
            raise ValueError(f"{name} is {tuple(other.shape)}; expected {(rows, width)} with contiguous rows")
    if rows == 0:
        return out
    tile = tile or tiles.prefill_linear()
    data, scale, kind = operand(weight)
    row_tiles = triton.cdiv(rows, tile.block_m)
    _prefill_linear[(row_tiles * triton.cdiv(n, tile.block_n),)](
        x,
        data,
        scale,
        residual if residual is not None else x,
        out,
        rows,
        row_tiles,
        n,
        k,
        x.stride(0),
        0 if residual is None else residual.stride(0),
        out.stride(0),
        RESIDUAL=residual is not None,
        SWIGLU=swiglu,
        KIND=kind,
        EVEN_K=k % tile.block_k == 0,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        num_warps=tile.warps,
        num_stages=tiles.stages(tile),
        enable_fp_fusion=False,
    )
    return out


@triton.jit(do_not_specialize=["rows", "row_tiles"])
def _prefill_linear(
    p_x,
    p_w,
    p_scale,
    p_residual,
    p_out,
    rows,
    row_tiles,
    N,
    K,
    x_stride,
    residual_stride,
    out_stride,
    RESIDUAL: tl.constexpr,
    SWIGLU: tl.constexpr,
    KIND: tl.constexpr,
    EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    i_m = tl.program_id(0) % row_tiles
    i_n = tl.program_id(0) // row_tiles
    o_row = i_m * BLOCK_M + tl.arange(0, BLOCK_M)
    is_row = o_row < rows
    o_column = i_n * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = o_column < N
    o_n = o_column
    if SWIGLU:
        o_n = o_column // 2 + (o_column % 2) * (N // 2)
    type: tl.constexpr = p_x.dtype.element_ty
    b_sum = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    p_rows = p_x + o_row.to(tl.int64)[:, None] * x_stride
    p_columns = p_w + o_n.to(tl.int64)[None, :] * K
    for k in range(0, K, BLOCK_K):
        o_k = k + tl.arange(0, BLOCK_K)
        if EVEN_K:
            b_x = tl.load(p_rows + o_k[None, :], mask=is_row[:, None], other=0.0)
            b_w = tl.load(p_columns + o_k[:, None], mask=is_column[None, :], other=0)
        else:
            b_x = tl.load(p_rows + o_k[None, :], mask=is_row[:, None] & (o_k < K)[None, :], other=0.0)
            b_w = tl.load(p_columns + o_k[:, None], mask=is_column[None, :] & (o_k < K)[:, None], other=0)
        b_sum = tl.dot(b_x, b_w.to(type), b_sum, input_precision="ieee")
    if KIND == 1:
        b_sum = b_sum * tl.load(p_scale + o_n, mask=is_column, other=0.0)[None, :]
    if SWIGLU:
        b_first, b_second = tl.split(tl.reshape(b_sum, [BLOCK_M, BLOCK_N // 2, 2]))
        b_out = b_first / (1.0 + tl.exp(-b_first)) * b_second
        o_out = i_n * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
        is_out = is_row[:, None] & (o_out < N // 2)[None, :]
    else:
        b_out = b_sum
        o_out = o_column
        is_out = is_row[:, None] & is_column[None, :]
    if RESIDUAL:
        p_from = p_residual + o_row.to(tl.int64)[:, None] * residual_stride + o_out[None, :]
        b_out += tl.load(p_from, mask=is_out, other=0.0).to(tl.float32)
    p_to = p_out + o_row.to(tl.int64)[:, None] * out_stride + o_out[None, :]
    tl.store(p_to, b_out.to(p_out.dtype.element_ty), mask=is_out)
