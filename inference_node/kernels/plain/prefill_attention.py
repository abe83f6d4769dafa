"""Causal attention of many rows over keys in pages: the target's prefill.

Why: with many rows the time is that of the matrix products, so each program holds a tile of query rows and walks over
all keys it sees. Tiles of 64 rows and 64 keys are cut at absolute multiples of 64: a prompt prefilled in pieces that
end there has the bits of one prefilled at once.

    q          [n, heads, dim]       rotated; contiguous; n a multiple of 64
    k_pages, v_pages [pages, kv_heads, 256, dim]   the rows' own keys and values are there already (`kv_write`)
    table      [pages of the sequence] int32
    start      int                   position of row 0, a multiple of 64
    valid      int                   rows that count, 1 to n; other rows of `out` are set to zero
    gate       [n, heads, dim]       or None; out is multiplied by its sigmoid. Rows and heads may lie apart
    out        [n, heads, dim]       in q's type

A row at position p sees key j when j <= p.
Exactness: against the twin in bf16 1e-2 of the largest value.
Checked by: tests/inference_node/kernels/triton/test_prefill_attention.py
"""

from __future__ import annotations

import torch

from inference_node.kernels.plain.paged_attention import gather

TILE = 64


def attend(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    table: torch.Tensor,
    start: int,
    valid: int,
    out: torch.Tensor,
    *,
    scale: float,
    gate: torch.Tensor | None = None,
) -> None:
    """A tile of 64 rows at a time against all keys up to the tile's end, so that slices do not change shapes."""
    n, heads, dim = q.shape
    if start % TILE or n % TILE or not 0 < valid <= n:
        raise ValueError(f"{valid} valid of {n} rows from position {start}; expected multiples of {TILE}, 1 to n valid")
    out[valid:] = 0.0
    k, v = (gather(pages, table, start + valid) for pages in (k_pages, v_pages))
    kv_heads = k.shape[0]
    for first in range(0, valid, TILE):
        count, end = min(TILE, valid - first), start + first + TILE
        keys, values = (_until(line, start + valid, end) for line in (k, v))
        tile = (q[first : first + TILE].to(torch.float32) * scale).transpose(0, 1).reshape(kv_heads, -1, dim)
        score = torch.bmm(tile, keys.transpose(1, 2)).view(heads, TILE, end)
        position = torch.arange(start + first, end, device=q.device)
        seen = position[:, None] >= torch.arange(end, device=q.device)[None, :]
        weight = torch.softmax(torch.where(seen, score, -torch.inf), dim=-1).view(kv_heads, -1, end)
        read = torch.bmm(weight, values).view(heads, TILE, dim).transpose(0, 1)[:count]
        if gate is not None:
            read = read * torch.sigmoid(gate[first : first + count].to(torch.float32))
        out[first : first + count] = read.to(out.dtype)


def _until(line: torch.Tensor, written: int, end: int) -> torch.Tensor:
    """[kv_heads, end, dim] fp32; zeros from `written` on, which only fillers see."""
    result = line.new_zeros((line.shape[0], end, line.shape[2]), dtype=torch.float32)
    known = min(written, end)
    result[:, :known] = line[:, :known].to(torch.float32)
    return result
