"""A linear layer for a block of 1 to 16 rows at the speed of reading its weight.

Tensors and formulas: `plain/linear.py`. One program owns BLOCK_N output features and walks K once, in order, with a
16-row tile whatever is valid; loads of other rows are masked, so one row costs the traffic of one row. The weight is
read once, past the cache's other contents. There is no split over K among programs: BLOCK_N 16 gives 128 programs for
2,048 features, enough for a card of 132 cores, and no second launch. Where a program is alone on its core, the matrix
instructions of one accumulator wait for each other longer than memory does; so each warp has a part of BLOCK_K of its
own (WK parts), and the parts are added at the end.

Norms are never in the loop (that doubled its time: every program would redo them). A norm that was fed costs a factor
at the end; `norm` and `gate` are a launch of norm.py before this one.

Cost: N * K elements of the weight; rows * K elements per program from the second-level cache.
Exactness: the bits of a row depend on that row and the tile, and on nothing else. Against the twin: the order of the
sum (fp32); with `norm` also where the norm's scale is applied (before x is rounded).
Checked by: tests/inference_node/kernels/triton/test_linear.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference_node.kernels.plain.linear import GROUP, ROWS, Feed
from inference_node.kernels.plain.packed import Weight
from inference_node.kernels.triton import norm as norms
from inference_node.kernels.triton import tiles
from inference_node.kernels.triton.packed import operand


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
    feed: Feed | None = None,
    squares: torch.Tensor | None = None,
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
    for name, other, columns in (
        ("out", out, width),
        ("residual", residual, width),
        ("gate", gate, k),
        ("squares", squares, k // GROUP),
        ("feed", None if feed is None else feed.scaled, width),
    ):
        if other is not None and (tuple(other.shape) != (rows, columns) or other.stride(1) != 1):
            raise ValueError(f"{name} is {tuple(other.shape)}; expected {(rows, columns)} with contiguous rows")
    if (norm is not None and squares is not None) or (feed is not None and swiglu):
        raise ValueError("norm and squares, or feed and swiglu, do not go together")
    x = _normed(x, norm, gate, eps, valid)
    tile = (tile or tiles.linear(n, k, weight.kind)).within(k)
    data, scale, kind = operand(weight)
    _linear[(triton.cdiv(n, tile.block_n),)](
        x,
        data,
        scale,
        residual if residual is not None else x,
        squares if squares is not None else x,
        out,
        feed.factor if feed is not None else x,
        feed.scaled if feed is not None else x,
        feed.squares if feed is not None else x,
        valid,
        n,
        k,
        x.stride(0),
        0 if residual is None else residual.stride(0),
        out.stride(0),
        eps,
        RESIDUAL=residual is not None,
        SQUARES=0 if squares is None else triton.next_power_of_2(k // GROUP),
        FEED=feed is not None,
        SWIGLU=swiglu,
        KIND=kind,
        EVEN_N=n % tile.block_n == 0,
        EVEN_K=k % tile.block_k == 0,
        ROWS=ROWS,
        GROUP=GROUP,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        WK=tile.wk,
        num_warps=tile.warps,
        num_stages=tiles.stages(tile),
        enable_fp_fusion=False,
    )
    return out


def _normed(
    x: torch.Tensor, norm: torch.Tensor | None, gate: torch.Tensor | None, eps: float, valid: torch.Tensor
) -> torch.Tensor:
    """The rows that meet the weight."""
    if norm is None:
        if gate is not None:
            raise ValueError("a gate needs the factors of its norm")
        return x
    rows, k = x.shape
    length = norm.shape[0]
    if length != k and (gate is None or k % length):
        raise ValueError(f"norm has {length} factors; expected {k}, or with a gate a length that divides it")
    normed = torch.empty(rows, k, dtype=x.dtype, device=x.device)
    if gate is None:
        return norms.norm(x, norm, normed, eps=eps, valid=valid)
    parts = (rows, k // length, length)
    norms.gated_norm(
        x.unflatten(1, parts[1:]), gate.unflatten(1, parts[1:]), norm, normed.view(parts), eps=eps, valid=valid
    )
    return normed


@triton.jit
def no_sum(ROWS: tl.constexpr, BLOCK_N: tl.constexpr, WK: tl.constexpr):
    """Zeros of a product's shape: [ROWS, BLOCK_N], or WK of them."""
    if WK == 1:
        return tl.zeros([ROWS, BLOCK_N], tl.float32)
    else:
        return tl.zeros([WK, ROWS, BLOCK_N], tl.float32)


@triton.jit
def block_product(
    b_sum,
    p_x,
    x_stride,
    is_row,
    p_w,
    o_n,
    is_n,
    k,
    K,
    EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WK: tl.constexpr,
):
    """b_sum plus rows times BLOCK_K input features from k on. With WK parts b_sum is [WK, ROWS, BLOCK_N]."""
    type: tl.constexpr = p_x.dtype.element_ty
    o_row = tl.arange(0, ROWS)
    if WK == 1:
        o_k = k + tl.arange(0, BLOCK_K)
        p_weights = p_w + o_n.to(tl.int64)[None, :] * K + o_k[:, None]
        p_rows = p_x + o_row[:, None] * x_stride + o_k[None, :]
        if EVEN_K:
            b_x = tl.load(p_rows, mask=is_row[:, None], other=0.0)
        else:
            b_x = tl.load(p_rows, mask=is_row[:, None] & (o_k < K)[None, :], other=0.0)
        if EVEN_N and EVEN_K:
            b_w = tl.load(p_weights, eviction_policy="evict_first")
        else:
            b_w = tl.load(p_weights, mask=is_n[None, :] & (o_k < K)[:, None], other=0)
    else:
        PART: tl.constexpr = BLOCK_K // WK
        o_part_k = k + tl.arange(0, WK)[:, None] * PART + tl.arange(0, PART)[None, :]
        p_weights = p_w + o_n.to(tl.int64)[None, None, :] * K + o_part_k[:, :, None]
        p_rows = p_x + o_row[None, :, None] * x_stride + o_part_k[:, None, :]
        if EVEN_K:
            b_x = tl.load(p_rows, mask=is_row[None, :, None], other=0.0)
        else:
            b_x = tl.load(p_rows, mask=is_row[None, :, None] & (o_part_k < K)[:, None, :], other=0.0)
        if EVEN_N and EVEN_K:
            b_w = tl.load(p_weights, eviction_policy="evict_first")
        else:
            b_w = tl.load(p_weights, mask=is_n[None, None, :] & (o_part_k < K)[:, :, None], other=0)
    return tl.dot(b_x, b_w.to(type), b_sum, input_precision="ieee")


@triton.jit
def store_feed(
    b_row,
    p_factor,
    p_scaled,
    p_squares,
    o_row,
    o_n,
    is_out,
    i_tile,
    N,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """A Feed's part of BLOCK_N columns, from rows as they were rounded. N is a multiple of GROUP."""
    b_wide = tl.where(is_out, b_row.to(tl.float32), 0.0)
    b_factor = tl.load(p_factor + o_n, mask=o_n < N, other=0.0)
    p_to = p_scaled + o_row[:, None] * N + o_n[None, :]
    tl.store(p_to, (b_wide * b_factor[None, :]).to(p_scaled.dtype.element_ty), mask=is_out)
    b_square = tl.sum(tl.reshape(b_wide * b_wide, [ROWS, BLOCK_N // GROUP, GROUP]), 2)
    o_group = i_tile * (BLOCK_N // GROUP) + tl.arange(0, BLOCK_N // GROUP)
    is_valid = tl.max(is_out.to(tl.int32), 1) == 1
    tl.store(
        p_squares + o_row[:, None] * (N // GROUP) + o_group[None, :],
        b_square,
        mask=is_valid[:, None] & (o_group < N // GROUP)[None, :],
    )


@triton.jit
def fed_scale(p_squares, o_row, is_row, K, eps, GROUP: tl.constexpr, SQUARES: tl.constexpr):
    """[ROWS]: the scale of the norm whose squares these are."""
    o_group = tl.arange(0, SQUARES)
    is_square = is_row[:, None] & (o_group < K // GROUP)[None, :]
    b_square = tl.load(p_squares + o_row[:, None] * (K // GROUP) + o_group[None, :], mask=is_square, other=0.0)
    return tl.rsqrt(tl.sum(b_square, 1) / K + eps)


@triton.jit
def _linear(
    p_x,
    p_w,
    p_scale,
    p_residual,
    p_squares,
    p_out,
    p_factor,
    p_fed,
    p_fed_squares,
    p_valid,
    N,
    K,
    x_stride,
    residual_stride,
    out_stride,
    eps,
    RESIDUAL: tl.constexpr,
    SQUARES: tl.constexpr,  # 0, or a power of two that holds K / GROUP
    FEED: tl.constexpr,
    SWIGLU: tl.constexpr,
    KIND: tl.constexpr,
    EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WK: tl.constexpr,
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
    b_sum = no_sum(ROWS, BLOCK_N, WK)
    for k in range(0, K, BLOCK_K):
        b_sum = block_product(
            b_sum, p_x, x_stride, is_row, p_w, o_n, is_column, k, K, EVEN_N, EVEN_K, ROWS, BLOCK_K, WK
        )
    if WK > 1:
        b_sum = tl.sum(b_sum, 0)
    if SQUARES > 0:
        b_sum = b_sum * fed_scale(p_squares, o_row, is_row, K, eps, GROUP, SQUARES)[:, None]
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
        p_from = p_residual + o_row[:, None] * residual_stride + o_out[None, :]
        b_out += tl.load(p_from, mask=is_out, other=0.0).to(tl.float32)
    b_row = b_out.to(p_out.dtype.element_ty)
    tl.store(p_out + o_row[:, None] * out_stride + o_out[None, :], b_row, mask=is_out)
    if FEED:
        store_feed(b_row, p_factor, p_fed, p_fed_squares, o_row, o_n, is_out, tl.program_id(0), N, GROUP, ROWS, BLOCK_N)
