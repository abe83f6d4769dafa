"""Rows of an embedding table, one program per row. Tensors: `plain/embed.py`. Exact: values are copied.

Checked by: tests/inference_node/kernels/triton/test_embed.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024


def embed(
    ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor, *, valid: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns `out`."""
    if out.shape[1] != table.shape[1] or ids.shape[0] < out.shape[0] or out.stride(1) != 1 or table.stride(1) != 1:
        raise ValueError(f"ids {tuple(ids.shape)}, table {tuple(table.shape)} and out {tuple(out.shape)} do not fit")
    if out.shape[0]:
        _embed[(out.shape[0], triton.cdiv(out.shape[1], BLOCK))](
            ids,
            table,
            out,
            valid if valid is not None else ids,
            out.shape[1],
            table.stride(0),
            out.stride(0),
            VALID=valid is not None,
            BLOCK=BLOCK,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return out


@triton.jit
def _embed(p_ids, p_table, p_out, p_valid, D, table_stride, out_stride, VALID: tl.constexpr, BLOCK: tl.constexpr):
    i_row = tl.program_id(0)
    if VALID:
        if i_row >= tl.load(p_valid):  # noqa: SIM102 (the pointer may be of another type)
            return
    o_d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(p_ids + i_row).to(tl.int64)
    b_row = tl.load(p_table + token * table_stride + o_d, mask=o_d < D, other=0.0)
    tl.store(p_out + i_row.to(tl.int64) * out_stride + o_d, b_row, mask=o_d < D)
