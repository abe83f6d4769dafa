"""RMSNorms on their own, for any number of rows: where no linear layer follows that could take them in.

    x       [rows, D]          rows may lie apart
    factor  [D]        fp32    w, or 1 + w (made when loading)
    valid   [1]        int32   or None: all rows
    out     [rows, D]          any float type

    norm        out = x * rsqrt(mean(x^2) + eps) * factor
    gated_norm  x, gate, out [rows, heads, D]; out = norm over D * SiLU(gate)

All in fp32, rounded once. A row's bits depend on no other row.
Checked by: tests/inference_node/kernels/triton/test_norm.py
"""

from __future__ import annotations

import torch
from torch.nn import functional as F


def norm(
    x: torch.Tensor, factor: torch.Tensor, out: torch.Tensor, *, eps: float = 1e-6, valid: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns `out`."""
    rows = x.shape[0] if valid is None else int(valid)
    for row in range(rows):
        out[row] = _normed(x[row].to(torch.float32), factor, eps).to(out.dtype)
    return out


def gated_norm(
    x: torch.Tensor,
    gate: torch.Tensor,
    factor: torch.Tensor,
    out: torch.Tensor,
    *,
    eps: float = 1e-6,
    valid: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns `out`."""
    rows = x.shape[0] if valid is None else int(valid)
    for row in range(rows):
        normed = _normed(x[row].to(torch.float32), factor, eps)
        out[row] = (normed * F.silu(gate[row].to(torch.float32))).to(out.dtype)
    return out


def _normed(x: torch.Tensor, factor: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * factor
