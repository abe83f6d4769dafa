"""Norm and rotate a block's queries and keys, and put its keys and values into cache pages, in one launch.

Why: block rows' keys and values are in the cache before attention reads it, so keys of the block are no special case;
and four small launches (two norms, rotary, copy) are one.

    q             [rows, heads, dim]            as projected; rows and heads may lie apart (a gate may lie beside each)
    k, v          [rows, kv_heads, dim]         likewise
    q_norm,k_norm [dim]                  fp32   factors after the norm; where the model's norm is 1 + w, this is 1 + w
    rope          [positions, rotated]   fp32   cosines (first half) and sines of `rotated` / 2 angles per position
    table         [pages of the sequence] int32 page that holds positions 256 * i ..
    start         [1]                    int32  position of row 0
    valid         [1]                    int32  rows that count; other rows' queries are set to zero, nothing is cached
    k_pages       [pages, kv_heads, 256, dim]   pages may lie apart (a view of one layer); the last two are contiguous
    v_pages       likewise
    q_out         [rows, heads, dim]            contiguous

Norm: RMS over `dim`, then rotate-half over the first `rotated` dimensions, all in fp32, rounded once at the end.
Exactness: a row function. Checked by: tests/inference_node/kernels/triton/test_kv_write.py
"""

from __future__ import annotations

import torch

PAGE = 256
"""Positions of one cache page."""


def write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    rope: torch.Tensor,
    table: torch.Tensor,
    start: torch.Tensor,
    valid: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    q_out: torch.Tensor,
    eps: float,
) -> None:
    """q_out and the pages' rows start .. start + valid."""
    first, rows = int(start), int(valid)
    q_out[rows:] = 0.0
    for row in range(rows):
        page, place = int(table[(first + row) // PAGE]), (first + row) % PAGE
        angles = rope[first + row]
        q_out[row] = norm_and_rotate(q[row].clone(), q_norm, angles, eps).to(q_out.dtype)
        k_pages[page, :, place] = norm_and_rotate(k[row].clone(), k_norm, angles, eps).to(k_pages.dtype)
        v_pages[page, :, place] = v[row].to(v_pages.dtype)


def norm_and_rotate(heads: torch.Tensor, factor: torch.Tensor, angles: torch.Tensor, eps: float) -> torch.Tensor:
    """[heads, dim] of one row, in fp32."""
    wide = heads.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * factor
    half = angles.shape[0] // 2
    cos, sin = angles[:half], angles[half:]
    first, second = wide[:, :half], wide[:, half : 2 * half]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, wide[:, 2 * half :]], dim=-1)


def rope_table(frequency: torch.Tensor, scale: float, positions: int) -> torch.Tensor:
    """[positions, 2 * len(frequency)] fp32 for `write`: every angle a position can need, made once at load."""
    angle = torch.arange(positions, dtype=torch.float32, device=frequency.device)[:, None] * frequency[None, :]
    return torch.cat([angle.cos(), angle.sin()], dim=-1) * scale
