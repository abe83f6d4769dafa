"""Attention of a few query rows over keys that lie in splits of a fixed length.

Why: a row's result must not depend on how many rows or later keys share the pass. So keys are taken in splits cut at
absolute positions (256 each, one cache page), each split has the same shape whatever is in it, and splits are combined
left to right by the running-softmax rule. A split in which a row sees nothing leaves that row's bits untouched.

    q          [rows, heads, dim]                  any float type; computed in fp32
    q_position [rows]                     int64    absolute positions
    k, v       [kv_heads, length, dim]             of one split; rows past its valid ones may hold anything, NaN too
    result     [rows, heads, dim]         fp32

Query head h reads key head h // (heads // kv_heads).
Checked by: tests/inference_node/kernels/test_block_attention.py
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

SPLIT = 256
"""Keys of one split, and rows of one cache page."""


@dataclass(frozen=True, slots=True)
class Split:
    """Some keys at consecutive positions. `valid` of them, from the first, hold something."""

    k: torch.Tensor
    v: torch.Tensor
    first: int
    valid: int


@dataclass(frozen=True, slots=True)
class Visibility:
    """Which keys a query sees: with d = query position - key position, causal asks 0 <= d, a window |d| < window."""

    causal: bool = True
    window: int | None = None

    def first_seen(self, position: int) -> int:
        """The earliest key that a query at this position, or later, can see."""
        return 0 if self.window is None else max(0, position - self.window + 1)

    def mask(self, q_position: torch.Tensor, low: int, high: int, split: Split) -> torch.Tensor | None:
        """[rows, length] bool, or None when every query (positions low to high) sees every key of the split."""
        length = split.k.shape[1]
        last = split.first + length - 1
        if (
            split.valid == length
            and (not self.causal or low >= last)
            and (self.window is None or (high - split.first < self.window and last - low < self.window))
        ):
            return None
        key = torch.arange(split.first, split.first + length, device=q_position.device)
        distance = q_position[:, None] - key[None, :]
        seen = (key < split.first + split.valid).expand_as(distance)
        if self.causal:
            seen = seen & (distance >= 0)
        if self.window is not None:
            seen = seen & (distance.abs() < self.window)
        return seen


def attend(
    q: torch.Tensor, q_position: torch.Tensor, splits: Iterable[Split], visibility: Visibility, scale: float
) -> torch.Tensor:
    """A row that sees no key at all gets zeros."""
    rows, heads, dim = q.shape
    queries = (q.to(torch.float32) * scale).transpose(0, 1).contiguous()  # [heads, rows, dim]
    top = queries.new_full((heads, rows, 1), -torch.inf)
    mass = queries.new_zeros((heads, rows, 1))
    total = queries.new_zeros((heads, rows, dim))
    low, high = int(q_position.min()), int(q_position.max())
    for split in splits:
        kv_heads, length, _ = split.k.shape
        seen = visibility.mask(q_position, low, high, split)
        k, v = split.k.to(torch.float32), split.v.to(torch.float32)
        if split.valid < length:  # 0 x NaN is NaN, so stale values must not meet even a zero weight
            v = v.clone()
            v[:, split.valid :] = 0.0
        grouped = queries.view(kv_heads, heads // kv_heads * rows, dim)
        score = torch.bmm(grouped, k.transpose(1, 2)).view(heads, rows, length)
        if seen is not None:
            score = torch.where(seen, score, -torch.inf)
        new_top = torch.maximum(top, score.amax(-1, keepdim=True))
        base = torch.where(new_top == -torch.inf, 0.0, new_top)
        weight = torch.exp(score - base)
        old = torch.exp(top - base)
        gained = torch.bmm(weight.view(kv_heads, heads // kv_heads * rows, length), v).view(heads, rows, dim)
        new_mass = mass * old + weight.sum(-1, keepdim=True)
        new_total = total * old + gained
        if seen is not None:
            sees = seen.any(-1)[None, :, None]
            new_top, new_mass = torch.where(sees, new_top, top), torch.where(sees, new_mass, mass)
            new_total = torch.where(sees, new_total, total)
        top, mass, total = new_top, new_mass, new_total
    result = total / torch.where(mass == 0.0, 1.0, mass)
    return result.transpose(0, 1).contiguous()
