"""A linear layer for a block of 1 to 16 rows at the speed of reading its weight, with norm and sum in the same launch.

Tensors and formulas: `plain/linear.py`. One program owns BLOCK_N output features and walks K once, in order, with a
16-row tile whatever is valid; loads of other rows are masked, so one row costs the traffic of one row. The weight is
read once, past the cache's other contents. There is no split over K among programs: BLOCK_N 16 gives 128 programs for
2,048 features, enough for a card of 132 cores, and no second launch.

Cost: N * K elements of the weight; rows * K elements per program from the second-level cache.
Exactness: the bits of a row depend on that row and the tile, and on nothing else. Against the twin: the order of the
sum (fp32), and the rounding of x * norm where the product is exact to the last bit in one and not in the other: none.
Checked by: tests/inference_node/kernels/triton/test_linear.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference_node.kernels.plain.linear import ROWS
from inference_node.kernels.plain.packed import Weight
from inference_node.kernels.triton import tiles
from inference_node.kernels.triton.packed import operand

GROUPS = (16, 32, 64, 128, 256)
"""Lengths of the gated norm that the kernel knows: its K tile is one of them."""


def linear(
    x: torch.Tensor,
    weight: Weight,
    valid: torch.Tensor,
    out: torch.Tensor,
    *,
    norm: torch.Tensor | None = None,
    eps: float = 1e-6,
    gate: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    swiglu: bool = False,
    tile: tiles.Tile | None = None,
) -> torch.Tensor:
    """Returns `out`. `tile` is for measuring only."""
    n, k = weight.shape
    rows = x.shape[0]
    if rows > ROWS or x.shape[1] != k or x.stride(1) != 1:
        raise ValueError(f"x is {tuple(x.shape)}, strides {x.stride()}; expected at most {ROWS} contiguous rows of {k}")
    if weight.kind == "mxfp4":
        raise ValueError("linear layers are bf16 or int8; mxfp4 is for experts")
    width = n // 2 if swiglu else n
    for name, other, columns in (("out", out, width), ("residual", residual, width), ("gate", gate, k)):
        if other is not None and (tuple(other.shape) != (rows, columns) or other.stride(1) != 1):
            raise ValueError(f"{name} is {tuple(other.shape)}; expected {(rows, columns)} with contiguous rows")
    length = k if norm is None else norm.shape[0]
    if gate is not None and (norm is None or length not in GROUPS or k % length):
        raise ValueError(f"a gated norm has a length of {GROUPS} that divides {k}; found {length}")
    if gate is None and length != k:
        raise ValueError(f"norm has {length} factors; expected {k}")
    tile = tile or tiles.linear(n, k)
    block_k = tile.block_k if gate is None else length
    data, scale, kind = operand(weight)
    _linear[(triton.cdiv(n, tile.block_n),)](
        x,
        data,
        scale,
        norm if norm is not None else x,
        gate if gate is not None else x,
        residual if residual is not None else x,
        out,
        valid,
        n,
        k,
        x.stride(0),
        0 if gate is None else gate.stride(0),
        0 if residual is None else residual.stride(0),
        out.stride(0),
        eps,
        NORM=0 if norm is None else 1 if gate is None else 2,
        RESIDUAL=residual is not None,
        SWIGLU=swiglu,
        KIND=kind,
        EVEN_N=n % tile.block_n == 0,
        EVEN_K=k % block_k == 0,
        ROWS=ROWS,
        BLOCK_N=tile.block_n,
        BLOCK_K=block_k,
        num_warps=tile.warps,
        num_stages=tiles.stages(tile),
        enable_fp_fusion=False,
    )
    return out


@triton.jit
def _linear(
    p_x,
    p_w,
    p_scale,
    p_norm,
    p_gate,
    p_residual,
    p_out,
    p_valid,
    N,
    K,
    x_stride,
    gate_stride,
    residual_stride,
    out_stride,
    eps,
    NORM: tl.constexpr,  # 0 none, 1 over K, 2 over BLOCK_K and gated
    RESIDUAL: tl.constexpr,
    SWIGLU: tl.constexpr,
    KIND: tl.constexpr,
    EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    valid = tl.load(p_valid)
    if valid == 0:
        return
    o_column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = o_column < N
    o_n = o_column
    if SWIGLU:  # neighbouring columns are a gate and its partner
        o_n = o_column // 2 + (o_column % 2) * (N // 2)
    o_row = tl.arange(0, ROWS)
    is_row = o_row < valid
    type: tl.constexpr = p_x.dtype.element_ty
    b_sum = tl.zeros([ROWS, BLOCK_N], tl.float32)
    b_square = tl.zeros([ROWS, BLOCK_K], tl.float32)
    for k in range(0, K, BLOCK_K):
        o_k = k + tl.arange(0, BLOCK_K)
        p_weights = p_w + o_n.to(tl.int64)[None, :] * K + o_k[:, None]
        if EVEN_N and EVEN_K:
            b_w = tl.load(p_weights, eviction_policy="evict_first")
        else:
            b_w = tl.load(p_weights, mask=is_column[None, :] & (o_k < K)[:, None], other=0.0)
        if EVEN_K:
            is_x = is_row[:, None] & (o_k >= 0)[None, :]
        else:
            is_x = is_row[:, None] & (o_k < K)[None, :]
        b_x = tl.load(p_x + o_row[:, None] * x_stride + o_k[None, :], mask=is_x, other=0.0)
        if NORM == 1:
            b_wide = b_x.to(tl.float32)
            b_square += b_wide * b_wide
            b_factor = tl.load(p_norm + o_k, mask=o_k < K, other=0.0)
            b_x = (b_wide * b_factor[None, :]).to(type)
        if NORM == 2:
            b_wide = b_x.to(tl.float32)
            b_unit = tl.rsqrt(tl.sum(b_wide * b_wide, 1) / BLOCK_K + eps)
            b_factor = tl.load(p_norm + tl.arange(0, BLOCK_K))
            b_gate = tl.load(p_gate + o_row[:, None] * gate_stride + o_k[None, :], mask=is_x, other=0.0).to(tl.float32)
            b_x = (b_wide * b_unit[:, None] * b_factor[None, :] * (b_gate / (1.0 + tl.exp(-b_gate)))).to(type)
        b_sum = tl.dot(b_x, b_w.to(type), b_sum, input_precision="ieee")
    if NORM == 1:
        b_sum = b_sum * tl.rsqrt(tl.sum(b_square, 1) / K + eps)[:, None]
    if KIND == 1:
        b_sum = b_sum * tl.load(p_scale + o_n, mask=is_column, other=0.0)[None, :]
    if SWIGLU:
        b_first, b_second = tl.split(tl.reshape(b_sum, [ROWS, BLOCK_N // 2, 2]))
        b_out = b_first / (1.0 + tl.exp(-b_first)) * b_second
        o_out = tl.program_id(0) * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
        is_out = is_row[:, None] & (o_out < N // 2)[None, :]
    else:
        b_out = b_sum
        o_out = o_column
        is_out = is_row[:, None] & is_column[None, :]
    if RESIDUAL:
        b_out += tl.load(p_residual + o_row[:, None] * residual_stride + o_out[None, :], mask=is_out, other=0.0).to(
            tl.float32
        )
    tl.store(p_out + o_row[:, None] * out_stride + o_out[None, :], b_out.to(p_out.dtype.element_ty), mask=is_out)
