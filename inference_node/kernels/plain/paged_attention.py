"""Attention of a block of up to 16 rows over keys in pages: the target's verify, and the drafter's block.

Why: with few rows the time is that of reading the cache once, so keys are split among programs and the parts are added
afterwards. For a row's bits not to depend on its neighbours, splits are cut at absolute positions and the sum over
splits has one order. Splits are longer where the context is longer (`split_bounds`): the parts of one split weigh
rows * heads * dim fp32 numbers, as much as the keys of 128 positions, so short splits everywhere would double the
traffic at 128k positions, and long ones everywhere would leave most of the chip idle at 1k.

    q          [rows, heads, dim]             rotated; contiguous
    k_pages, v_pages [pages, kv_heads, 256, dim]  rows past the block may hold anything, NaN too
    table      [pages of the sequence] int32
    start      [1]  int32                     position of row 0; its own key is the one at `start`
    valid      [1]  int32                     rows that count, 0 to rows; other rows of `out` are set to zero
    bounds     [splits + 1] int32             `split_bounds(context)`
    gate       [rows, heads, dim]             or None; out is multiplied by its sigmoid. Rows and heads may lie apart
    out        [rows, heads, dim]             in q's type

A row at position p sees key j when j < start + valid, j <= p (causal) and |p - j| < window (where there is one).
Query head h reads key head h // (heads // kv_heads).
Exactness: row by row the same bits whatever start, rows, neighbours and later keys; the kernel against this twin in
bf16: 1e-2 of the largest value (probabilities are rounded to bf16 before they meet the values).
Checked by: tests/inference_node/kernels/triton/test_paged_attention.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inference_node.kernels.plain.kv_write import PAGE

LENGTHS = ((0, 128), (2048, 256), (4096, 512), (32768, 1024))
"""From this position on, splits of this many keys."""


def split_bounds(context: int, device: torch.device) -> torch.Tensor:
    """Where splits begin, and the end of the last one, for contexts up to `context` positions."""
    bounds = [0]
    while bounds[-1] < context:
        bounds.append(bounds[-1] + [length for since, length in LENGTHS if since <= bounds[-1]][-1])
    return torch.tensor(bounds, dtype=torch.int32, device=device)


@dataclass(frozen=True, slots=True)
class Parts:
    """Room for what each split adds; one for all layers of the same shape. Needs no clearing."""

    total: torch.Tensor  # [splits, rows, heads, dim] fp32, weighed values of one split
    top: torch.Tensor  # [splits, rows, heads] fp32, its largest score
    mass: torch.Tensor  # [splits, rows, heads] fp32, its sum of weights


def parts(bounds: torch.Tensor, rows: int, heads: int, dim: int) -> Parts:
    splits, device = bounds.shape[0] - 1, bounds.device
    return Parts(
        torch.empty(splits, rows, heads, dim, device=device),
        torch.empty(splits, rows, heads, device=device),
        torch.empty(splits, rows, heads, device=device),
    )


def attend(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    table: torch.Tensor,
    start: torch.Tensor,
    valid: torch.Tensor,
    bounds: torch.Tensor,
    room: Parts | None,
    out: torch.Tensor,
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    gate: torch.Tensor | None = None,
) -> None:
    """`room` is the kernel's; the twin does each row's keys in one go, which has row-independent bits too."""
    first, rows = int(start), int(valid)
    out[rows:] = 0.0
    if rows == 0:
        return
    k, v = (gather(pages, table, first + rows) for pages in (k_pages, v_pages))
    for row in range(rows):
        position = first + row
        low = 0 if window is None else max(0, position - window + 1)
        high = position + 1 if causal else first + rows if window is None else min(first + rows, position + window)
        read = attend_row(q[row], k[:, low:high].contiguous(), v[:, low:high].contiguous(), scale)
        if gate is not None:
            read = read * torch.sigmoid(gate[row].to(torch.float32))
        out[row] = read.to(out.dtype)


def attend_row(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """[heads, dim] fp32 of one query row that sees all of k, v [kv_heads, n, dim]."""
    kv_heads, _, dim = k.shape
    grouped = (q.to(torch.float32) * scale).view(kv_heads, -1, dim)
    weight = torch.softmax(torch.bmm(grouped, k.to(torch.float32).transpose(1, 2)), dim=-1)
    return torch.bmm(weight, v.to(torch.float32)).view(-1, dim)


def gather(pages: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    """[kv_heads, length, dim]: the first `length` positions of a sequence."""
    ids = table[: (length + PAGE - 1) // PAGE].long()
    line = pages[ids].transpose(0, 1)  # [kv_heads, pages, 256, dim]
    return line.reshape(line.shape[0], -1, line.shape[3])[:, :length]
