"""Rows of an embedding table, gathered by ids that lie on the device.

    ids    [rows]       int32   ids of rows from `valid` on may be anything
    table  [V, D]
    valid  [1]          int32   or None: all rows
    out    [rows, D]            in the table's type; row r = table[ids[r]], exactly
    feed   Feed                 or None; what the norm before the first layer needs, see linear.py
Checked by: tests/inference_node/kernels/triton/test_embed.py
"""

from __future__ import annotations

import torch

from inference_node.kernels.plain.linear import Feed


def embed(
    ids: torch.Tensor,
    table: torch.Tensor,
    out: torch.Tensor,
    *,
    valid: torch.Tensor | None = None,
    feed: Feed | None = None,
) -> torch.Tensor:
    """Returns `out`."""
    rows = out.shape[0] if valid is None else int(valid)
    out[:rows] = table[ids[:rows].to(torch.int64)]
    if feed is not None:
        for row in range(rows):
            feed.write(row, out[row])
    return out
