"""A linear layer for many rows: prefill. One tile whatever the row count, so a row's bits depend on no other row.

    x         [rows, K]        any number of rows; K contiguous
    weight    Weight [N, K]    bf16 or int8
    out       [rows, N]        (`swiglu`: [rows, N / 2]); rows may lie apart
    residual  [rows, N]        or None; added in fp32 before the rounding. May be `out`
    swiglu    bool             the first half of N is a gate: out = SiLU(first) * second

Exactness: products in x's type, fp32 sums over K in one order. Not the bits of `linear`, whose tile is another.
Checked by: tests/inference_node/kernels/triton/test_prefill_linear.py
"""

from __future__ import annotations

import torch

from inference_node.kernels.plain.linear import linear
from inference_node.kernels.plain.packed import Weight


def prefill_linear(
    x: torch.Tensor,
    weight: Weight,
    out: torch.Tensor,
    *,
    residual: torch.Tensor | None = None,
    swiglu: bool = False,
) -> torch.Tensor:
    """Returns `out`."""
    every = torch.tensor([x.shape[0]], dtype=torch.int32)
    return linear(x, weight, every, out, residual=residual, swiglu=swiglu)
