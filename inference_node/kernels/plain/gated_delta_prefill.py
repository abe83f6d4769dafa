"""The gated delta rule for many rows at once, in chunks of 64 cut at absolute multiples of 64.

Why: stepping reads the whole state once per row. Inside a chunk the corrections u form a triangular system whose
solution gives all 64 outer products as matrix products (`gated_delta.chunk` has the maths); chunks follow one another.
A chunk is one tile whatever the number of its valid rows, so that a prompt prefilled in pieces that end at multiples
of 64 has the bits of one prefilled at once.

    x          [n, C]            conv inputs of n rows, n a multiple of 64, the first at an absolute multiple of 64
    b, a       [n, HV]           rows of x, b and a may lie apart
    valid      int               rows that count, 1 to n; the rest are fillers, which may hold anything, NaN too
    state      [HV, K, V]  fp32  before the first row; replaced by that after the last valid one
    tail       [3, C]            the conv inputs before the first row; replaced by the last 3 valid ones
    out        [n, HV, V]        in x's type; fillers are set to zero

Convolution, gates and norms are those of `gated_delta_step`. The state must have nothing left to fold: a pass of `step`
with no valid rows sees to that, and state[slot] and line[slot, :3] are then what goes in here.
Exactness: rounds otherwise than stepping does (prefill is a rule of its own). The plain twin is fp32
throughout; the kernel multiplies matrices in x's type with fp32 sums, like other engines: 2e-2 of the largest output.
Checked by: tests/inference_node/kernels/triton/test_gated_delta_prefill.py
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from inference_node.kernels.plain import causal_conv
from inference_node.kernels.plain.gated_delta import CHUNK, DeltaInputs, chunk, normalise
from inference_node.kernels.plain.gated_delta_step import TAPS, DeltaWeights


def prefill(
    x: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    weights: DeltaWeights,
    valid: int,
    state: torch.Tensor,
    tail: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Advance `state` and `tail` in place over the valid rows."""
    if x.shape[0] % CHUNK or not 0 < valid <= x.shape[0]:
        raise ValueError(f"{valid} valid of {x.shape[0]} rows; expected 1 to n of n, n a multiple of {CHUNK}")
    for first in range(0, x.shape[0], CHUNK):
        count = min(CHUNK, max(0, valid - first))
        if count == 0:
            out[first:] = 0.0
            return
        rows = slice(first, first + CHUNK)
        flow = x[rows].clone()
        flow[count:] = 0.0
        inputs = _inputs(flow, b[rows], a[rows], weights, tail, count, state.shape)
        read, after = chunk(inputs, state)
        read[count:] = 0.0
        out[rows] = read.to(out.dtype)
        state.copy_(after)
        tail.copy_(causal_conv.tail(flow, tail, count))


def _inputs(
    flow: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    weights: DeltaWeights,
    tail: torch.Tensor,
    count: int,
    shape: torch.Size,
) -> DeltaInputs:
    heads, width, value_width = shape
    convolved = causal_conv.convolve(causal_conv.window(flow, tail, TAPS), weights.conv, None)
    keys = (flow.shape[1] - heads * value_width) // 2
    q, k, v = convolved.split([keys, keys, heads * value_width], dim=-1)
    q, k = (
        normalise(part.reshape(CHUNK, -1, width)).repeat_interleave(heads // (keys // width), dim=1) for part in (q, k)
    )
    g = -weights.rate * F.softplus(a.to(torch.float32) + weights.shift)
    values = (q * width**-0.5, k, v.reshape(CHUNK, heads, value_width).to(torch.float32), g.exp(), g, b.sigmoid())
    alive = torch.arange(CHUNK, device=flow.device) < count
    return DeltaInputs(*(torch.where(alive.view(-1, *[1] * (y.dim() - 1)), y.to(torch.float32), 0.0) for y in values))
