"""DFlash 2's convolution inside a block: each row with the rows before it, by a kernel that is partly its own.

    x         [rows, H]                    1 to 16 rows
    own       [rows, 2 * taps * H / group] the rows' own part: both places' taps, one number for `group` columns
    base      [2, taps, H]           fp32  what all rows share
    valid     [1]                    int32 rows that count
    place     int                          0 before a sublayer, 1 after it
    residual  [rows, H]                    or None; added in fp32. May be `out` itself
    out       [rows, H]                    not x

    out[t] = residual[t] + sum over taps o of (base[place, o] + own[t, place, o]) * x[t - o], zeros before row 0

All in fp32, taps in their order, rounded once. Nothing is carried from block to block.
Checked by: tests/inference_node/kernels/triton/test_block_conv.py
"""

from __future__ import annotations

import torch


def block_conv(
    x: torch.Tensor,
    own: torch.Tensor,
    base: torch.Tensor,
    valid: torch.Tensor,
    place: int,
    out: torch.Tensor,
    *,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns `out`."""
    _, taps, width = base.shape
    rows = int(valid)
    groups = own.shape[1] // (2 * taps)
    kernels = own[:rows].to(torch.float32).view(rows, 2, taps, groups)[:, place].repeat_interleave(width // groups, -1)
    for row in range(rows):
        total = torch.zeros(width, device=x.device)
        for tap in range(min(taps, row + 1)):
            total = total + (base[place, tap] + kernels[row, tap]) * x[row - tap].to(torch.float32)
        if residual is not None:
            total = total + residual[row].to(torch.float32)
        out[row] = total.to(out.dtype)
    return out
