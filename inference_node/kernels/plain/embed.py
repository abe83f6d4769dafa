"""Rows of an embedding table, gathered by ids that lie on the device.

    ids    [rows]       int32   ids of rows from `valid` on may be anything
    table  [V, D]
    valid  [1]          int32   or None: all rows
    out    [rows, D]            in the table's type; row r = table[ids[r]], exactly
Checked by: tests/inference_node/kernels/triton/test_embed.py
"""

from __future__ import annotations

import torch


def embed(
    ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor, *, valid: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns `out`."""
    rows = out.shape[0] if valid is None else int(valid)
    out[:rows] = table[ids[:rows].to(torch.int64)]
    return out
