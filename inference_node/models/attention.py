"""Softmax attention layers: grouped heads, optional head norms, optional output gate, optional window.

Block rows' keys and values go into the cache before attention reads it, so keys of the block are no special case.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from inference_node.kernels.plain.block_attention import Visibility, attend
from inference_node.models.passes import Pass
from inference_node.models.rope import Rope, rotate


class Attention:
    """The token mixer of one layer. `index` counts attention layers only: its place in the pages."""

    def __init__(self, index: int, layer: Any, config: Any, rope: Rope, window: int | None) -> None:
        self.index = index
        self.norm = layer.input_layernorm
        self.part = layer.self_attn
        self.rope = rope
        self.visibility = Visibility(causal=True, window=window)
        self.dim = int(self.part.head_dim)
        self.heads = int(config.num_attention_heads)
        self.gated = self.part.q_proj.out_features == 2 * self.heads * self.dim  # Qwen3.5: a gate beside each query

    def mix(self, x: torch.Tensor, run: Pass) -> torch.Tensor:
        """x [rows, hidden] plus what it read."""
        q, k, v, gate = run.apply("attention.in", self._project, x, run.position)
        run.pages.write(self.index, run.start, k[: run.valid], v[: run.valid])
        splits = run.pages.splits(self.index, run.end, self.visibility.first_seen(run.start))

        def read(q: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
            return attend(q, position, splits, self.visibility, self.dim**-0.5)

        out = run.apply("attention.read", read, q, run.position)
        result: torch.Tensor = run.apply("attention.out", self._out, x, out, gate)
        return result

    def _project(self, x: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h, p = self.norm(x), self.part
        rows = x.shape[0]
        q = p.q_proj(h).view(rows, self.heads, -1)
        gate = q.new_zeros(rows, 0)
        if self.gated:
            q, gate = q.chunk(2, dim=-1)
            gate = gate.reshape(rows, -1)
        k, v = p.k_proj(h).view(rows, -1, self.dim), p.v_proj(h).view(rows, -1, self.dim)
        if hasattr(p, "q_norm"):
            q, k = p.q_norm(q), p.k_norm(k)
        cos, sin = self.rope.at(position, x.dtype)
        return rotate(q, cos, sin), rotate(k, cos, sin), v, gate

    def _out(self, x: torch.Tensor, read: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        flat = read.reshape(read.shape[0], -1).to(x.dtype)
        if self.gated:
            flat = flat * torch.sigmoid(gate)
        return x + F.linear(flat, self.part.o_proj.weight, self.part.o_proj.bias)
