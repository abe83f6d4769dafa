"""The drafter's keys and values for new context rows, all layers in one launch.

Why: every layer of the drafter makes its context keys and values from the same fused rows, so they are one matrix
product over the stacked weights, with the key norm, the rotation and the page write at its end.

    context    [rows, hidden]                        hidden_norm(fc(taps)) of the rows that were kept
    weight     [layers, 2, kv_heads * dim, hidden]   keys' and values' projections of each layer
    k_norm     [layers, dim]                 fp32    factors after the key norm
    rope       [positions, dim]              fp32    cosines and sines, as for `kv_write`
    table      [layers, pages of the sequence] int32 layers that share pages may share a row (stride 0)
    start      [1]                           int32   position of context row 0
    valid      [1]                           int32   rows that count, 0 to rows; nothing is written for others
    k_pages, v_pages [layers, pages, kv_heads, 256, dim]   layers and pages may lie apart

Exactness: a row function, products in the inputs' type with fp32 sums, the rest in fp32, rounded once.
Checked by: tests/inference_node/kernels/triton/test_draft_context.py
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from inference_node.kernels.plain.kv_write import PAGE, norm_and_rotate


def write(
    context: torch.Tensor,
    weight: torch.Tensor,
    k_norm: torch.Tensor,
    rope: torch.Tensor,
    table: torch.Tensor,
    start: torch.Tensor,
    valid: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    eps: float,
) -> None:
    """Rows start .. start + valid of every layer's pages."""
    first, rows = int(start), int(valid)
    layers, _, _, hidden = weight.shape
    _, _, kv_heads, _, dim = k_pages.shape
    for row in range(rows):
        page, place = table[:, (first + row) // PAGE].tolist(), (first + row) % PAGE
        projected = F.linear(context[row : row + 1].to(torch.float32), weight.view(-1, hidden).to(torch.float32))
        both = projected.view(layers, 2, kv_heads, dim)
        for layer in range(layers):
            key = norm_and_rotate(both[layer, 0].clone(), k_norm[layer], rope[first + row], eps)
            k_pages[layer, page[layer], :, place] = key.to(k_pages.dtype)
            v_pages[layer, page[layer], :, place] = both[layer, 1].to(v_pages.dtype)
