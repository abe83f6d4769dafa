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
    swiglu                bool    the first half of N is a gate: out = SiLU(first) * second

    plain norm   y = ((x * norm) W^T) * rsqrt(mean(x^2) + eps), so that the product need not wait for the mean;
                 x * norm is rounded to x's type
    gated norm   y = (x * rsqrt(mean_D(x^2) + eps) * norm * SiLU(gate)) W^T, the bracket rounded to x's type

Exactness: products in x's type, fp32 sums over K in one order. A row's bits depend on no other row, nor on `valid`.
Against fp64: 2^-8 of sum |x * w| in bf16 where a norm rounds x (2^-24 * K without), and then out's own rounding.
Checked by: tests/inference_node/kernels/triton/test_linear.py
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from inference_node.kernels.plain.packed import Weight, unpack

ROWS = 16
"""Rows of a full block: the kernels' tile has this many, whatever is valid."""


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
) -> torch.Tensor:
    """Returns `out`."""
    matrix = unpack(weight)
    for row in range(int(valid)):  # one by one: a library's product over several rows may round by their number
        out[row] = _row(x[row : row + 1], matrix, norm, eps, gate, row, residual, swiglu)[0].to(out.dtype)
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
) -> torch.Tensor:
    wide, scale = x.to(torch.float32, copy=True), None
    if gate is not None and norm is not None:
        groups = wide.view(1, -1, norm.shape[0])
        groups = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + eps) * norm
        wide = groups.view(1, -1) * F.silu(gate[row : row + 1].to(torch.float32))
    elif norm is not None:
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        wide = wide * norm
    y = F.linear(wide.to(x.dtype).to(torch.float32), matrix)
    if scale is not None:
        y = y * scale
    if swiglu:
        first, second = y.chunk(2, dim=-1)
        y = F.silu(first) * second
    return y if residual is None else y + residual[row : row + 1].to(torch.float32)
