"""Depthwise causal convolution as an explicit sum over its taps.

Why: library convolutions choose an algorithm by length, so a row alone and the same row in a block may differ. Here
every row is the same products added in the same order, in fp32, rounded once before the activation.

    rows    [n, channels]         inputs of the block
    before  [taps - 1, channels]  the inputs just before it, oldest first; zeros at the start of a sequence
    weight  [channels, taps]      oldest tap first
    result  [n, channels]         after SiLU, in the inputs' type
Checked by: tests/inference_node/kernels/test_causal_conv.py
"""

from __future__ import annotations

import torch
from torch.nn import functional as F


def window(rows: torch.Tensor, before: torch.Tensor, taps: int) -> torch.Tensor:
    """[n, taps, channels]: what each row's taps read."""
    line = torch.cat([before, rows])
    return torch.stack([line[tap : tap + rows.shape[0]] for tap in range(taps)], dim=1)


def convolve(read: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """From `window` to activated rows; a row function."""
    total = read[:, 0].to(torch.float32) * weight[:, 0].to(torch.float32)
    for tap in range(1, weight.shape[1]):
        total = total + read[:, tap].to(torch.float32) * weight[:, tap].to(torch.float32)
    if bias is not None:
        total = total + bias.to(torch.float32)
    return F.silu(total.to(read.dtype).to(torch.float32)).to(read.dtype)


def tail(rows: torch.Tensor, before: torch.Tensor, kept: int) -> torch.Tensor:
    """The `before` of the next block when the first `kept` rows stay."""
    return torch.cat([before, rows[:kept]])[kept:].clone()
