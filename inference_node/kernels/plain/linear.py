"""A linear layer for a block of 1 to 16 rows, with the norm before it and the sum after it in the same launch.

Why: with few rows the time is that of reading the weight once, and a launch more costs as much as half a megabyte. So
what a layer does between two weights is done by the kernel that reads the second. Several weights of one input are one
weight: stack them along N when loading, and take views of `out`.

    x         [rows, K]           1 to 16 rows
    weight    Weight [N, K]       bf16 or int8; see packed.py
    valid     [1]         int32   rows that count, 0 to rows; with 0 nothing is written
    out       [rows, N]           (`swiglu`: [rows, N / 2]) any float type; rows may lie apart
    norm      [K]         fp32    or None; factors of an RMSNorm before the product (1 + w is made when loading)
    gate      [rows, K]           or None; with `norm` of length D (which divides K) and this, the gated norm of a Gated
                                  DeltaNet layer: each D values of x are normalised by themselves, then multiplied by
                                  the norm's factors and SiLU(gate). Rows may lie apart
    residual  [rows, N]           or None; added in fp32 before the one rounding to out's type. May be `out` itself
    feed      Feed                or None; what the norm after this layer needs, written beside `out`, so that the next
                                  weight can be multiplied without a launch for the norm
    squares   [rows, K / 16] fp32 or None; of a Feed whose `scaled` is x: the plain norm below, half done already
    swiglu                bool    the first half of N is a gate: out = SiLU(first) * second

    plain norm   y = ((x * norm) W^T) * rsqrt(mean(x^2) + eps), so that the product need not wait for the mean;
                 x * norm is rounded to x's type
    fed          y = (x W^T) * rsqrt(sum(squares) / K + eps)
    gated norm   y = (x * rsqrt(mean_D(x^2) + eps) * norm * SiLU(gate)) W^T, the bracket rounded to x's type

Exactness: products in x's type, fp32 sums over K in one order. A row's bits depend on no other row, nor on `valid`.
The plain norm may be done as written or before the product (x * rsqrt(..) * norm, rounded to x's type); `fed` is as
written. Against fp64: 2^-8 of sum |x * w| in bf16 where a norm rounds x (2^-24 * K without), then out's own rounding.
Checked by: tests/inference_node/kernels/triton/test_linear.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from inference_node.kernels.plain.packed import Weight, unpack

ROWS = 16
"""Rows of a full block: the kernels' tile has this many, whatever is valid."""

GROUP = 16
"""Columns whose squares are summed together for a norm that comes later."""


@dataclass(frozen=True, slots=True)
class Feed:
    """One norm ahead of its use: the rows times its factors, and the sums of squares that its scale will need."""

    factor: torch.Tensor  # [D] fp32, of the norm to come
    scaled: torch.Tensor  # [rows, D], row * factor in the model's type
    squares: torch.Tensor  # [rows, D / 16] fp32, of the row as it was rounded

    def __post_init__(self) -> None:
        rows, width = self.scaled.shape
        if width % GROUP or tuple(self.factor.shape) != (width,) or tuple(self.squares.shape) != (rows, width // GROUP):
            raise ValueError(
                f"feed of {tuple(self.scaled.shape)} with factors {tuple(self.factor.shape)} and squares "
                f"{tuple(self.squares.shape)}; expected {(width,)} and {(rows, width // GROUP)}, a multiple of {GROUP}"
            )
        if not self.scaled.is_contiguous() or not self.squares.is_contiguous():
            raise ValueError("a feed must be contiguous")

    def write(self, row: int, x: torch.Tensor) -> None:
        """From one row [D] as it was rounded."""
        wide = x.to(torch.float32)
        self.scaled[row] = (wide * self.factor).to(self.scaled.dtype)
        self.squares[row] = wide.square().view(-1, GROUP).sum(-1)


def feed(rows: int, factor: torch.Tensor, dtype: torch.dtype) -> Feed:
    """Room for rows of a stream whose next norm has these factors."""
    width = factor.shape[0]
    return Feed(
        factor,
        torch.zeros(rows, width, dtype=dtype, device=factor.device),
        torch.zeros(rows, width // GROUP, device=factor.device),
    )


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
) -> torch.Tensor:
    """Returns `out`."""
    matrix = unpack(weight)
    for row in range(int(valid)):  # one by one: a library's product over several rows may round by their number
        out[row] = _row(x[row : row + 1], matrix, norm, eps, gate, row, residual, swiglu, squares)[0].to(out.dtype)
        if feed is not None:
            feed.write(row, out[row])
    return out


def _row(
    x: torch.Tensor,
    matrix: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    gate: torch.Tensor | None,
    row: int,
    residual: torch.Tensor | None,
    swiglu: bool,
    squares: torch.Tensor | None,
) -> torch.Tensor:
    wide, scale = x.to(torch.float32, copy=True), None
    if gate is not None and norm is not None:
        groups = wide.view(1, -1, norm.shape[0])
        groups = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + eps) * norm
        wide = groups.view(1, -1) * F.silu(gate[row : row + 1].to(torch.float32))
    elif norm is not None:
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        wide = wide * norm
    elif squares is not None:
        scale = torch.rsqrt(squares[row].sum() / x.shape[1] + eps)
    y = F.linear(wide.to(x.dtype).to(torch.float32), matrix)
    if scale is not None:
        y = y * scale
    if swiglu:
        first, second = y.chunk(2, dim=-1)
        y = F.silu(first) * second
    return y if residual is None else y + residual[row : row + 1].to(torch.float32)
