"""DFlash drafters: a small decoder that fills a block of masks in one pass, with the target's states for a past.

It never runs over the context. Each layer makes keys and values for context rows straight from fused target states
("features": outputs of some target layers, side by side), and runs only the block: the last confirmed token and
block - 1 masks. Row i predicts the token at its own position.

    feature  [n, taps * hidden]         one row per context token
    context  RMSNorm(fc(feature))       once, shared by all layers; no input norm, no residual, no MLP
    keys     RoPE(RMSNorm(Wk context)), values Wv context; block rows go through input_layernorm first

All norms are plain RMSNorm (the target's may be 1 + w). Names of parameters are those of the released files. Training
runs the same module: attention is handed in, so that it may be over cache pages or over a training mask, and a block's
rows [rows, ...] may stand behind further dimensions, one block each.
Checked by: tests/inference_node/models/test_drafter.py, against z-lab's own package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from inference_node.models.draft_config import DraftConfig
from inference_node.models.rope import Rope, rotate

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, q [..., rows, heads, dim], k [..., rows, kv_heads, dim], v) of the block, rotated -> as q."""


class Norm(nn.Module):
    """RMSNorm: fp32 statistics, rounded to the input's type, then times the weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class DraftAttention(nn.Module):
    def __init__(self, c: DraftConfig) -> None:
        super().__init__()
        self.dim = c.head_dim
        self.q_proj = nn.Linear(c.hidden, c.heads * c.head_dim, bias=c.biased)
        self.k_proj = nn.Linear(c.hidden, c.kv_heads * c.head_dim, bias=c.biased)
        self.v_proj = nn.Linear(c.hidden, c.kv_heads * c.head_dim, bias=c.biased)
        self.o_proj = nn.Linear(c.heads * c.head_dim, c.hidden, bias=c.biased)
        self.q_norm = Norm(c.head_dim, c.eps)
        self.k_norm = Norm(c.head_dim, c.eps)

    def keys(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotated keys and plain values [..., n, kv_heads, dim] of context rows or of block rows."""
        k, v = (part(x).view(*x.shape[:-1], -1, self.dim) for part in (self.k_proj, self.v_proj))
        return rotate(self.k_norm(k), cos, sin), v

    def queries(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return rotate(self.q_norm(self.q_proj(x).view(*x.shape[:-1], -1, self.dim)), cos, sin)


class DraftMlp(nn.Module):
    def __init__(self, c: DraftConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden, c.intermediate, bias=False)
        self.up_proj = nn.Linear(c.hidden, c.intermediate, bias=False)
        self.down_proj = nn.Linear(c.intermediate, c.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class BlockConv(nn.Module):
    """DFlash 2: a short causal convolution inside the block, its kernel partly made from the row itself.

    Two kernels, before and after a sublayer, both made from the sublayer's normed input. Zeros stand before row 0.
    """

    def __init__(self, c: DraftConfig) -> None:
        super().__init__()
        self.taps, self.group = c.conv_kernel, c.conv_group
        self.base_kernel = nn.Parameter(torch.zeros(2, c.conv_kernel, c.hidden))
        self.kernel_projection = nn.Linear(c.hidden, 2 * c.conv_kernel * (c.hidden // c.conv_group), bias=False)

    def kernels(self, x: torch.Tensor) -> torch.Tensor:
        """[..., rows, 2, taps, groups] from the sublayer's normed input."""
        return self.kernel_projection(x).view(*x.shape[:-1], 2, self.taps, -1)

    def forward(self, x: torch.Tensor, kernels: torch.Tensor, which: int) -> torch.Tensor:
        total = torch.zeros_like(x)
        for tap in range(self.taps):
            earlier = F.pad(x, (0, 0, tap, 0))[..., : x.shape[-2], :]
            own = kernels[..., which, tap, :].repeat_interleave(self.group, dim=-1)
            total = total + (self.base_kernel[which, tap].to(x.dtype) + own) * earlier
        return total


class DraftLayerModule(nn.Module):
    def __init__(self, c: DraftConfig) -> None:
        super().__init__()
        self.self_attn = DraftAttention(c)
        self.mlp = DraftMlp(c)
        self.input_layernorm = Norm(c.hidden, c.eps)
        self.post_attention_layernorm = Norm(c.hidden, c.eps)
        self.attention_conv = BlockConv(c) if c.kind == "dflash2" else None
        self.mlp_conv = BlockConv(c) if c.kind == "dflash2" else None

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: Callable[..., Any]
    ) -> torch.Tensor:
        x = x + _between(self.attention_conv, self.input_layernorm(x), lambda h: self._attention(h, cos, sin, attend))
        return x + _between(self.mlp_conv, self.post_attention_layernorm(x), self.mlp)

    def _attention(
        self, h: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: Callable[..., torch.Tensor]
    ) -> torch.Tensor:
        read = attend(self.self_attn.queries(h, cos, sin), *self.self_attn.keys(h, cos, sin))
        return self.self_attn.o_proj(read.reshape(*h.shape[:-1], -1).to(h.dtype))


def _between(conv: BlockConv | None, h: torch.Tensor, part: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A sublayer, with DFlash 2's convolutions around it."""
    if conv is None:
        return part(h)
    kernels = conv.kernels(h)
    result: torch.Tensor = conv(part(conv(h, kernels, 0)), kernels, 1)
    return result


class Selector(nn.Module):
    """DFlash 2: walks the block left to right over each row's best candidates, each weighed against its predecessor."""

    def __init__(self, c: DraftConfig) -> None:
        super().__init__()
        self.top = c.selector_top
        self.predecessor_codebook = nn.Parameter(torch.zeros(c.vocab, c.selector_rank))
        self.successor_codebook = nn.Parameter(torch.zeros(c.vocab, c.selector_rank))
        self.hidden_projection = nn.Linear(c.hidden, c.selector_rank, bias=False)

    def forward(
        self, hidden: torch.Tensor, logits: torch.Tensor, anchor: int, pick: Callable[[int, torch.Tensor], int]
    ) -> list[int]:
        """hidden [n, hidden] and logits [n, ids] of the mask rows; pick(row, scores [ids]) gives an id."""
        best, candidates = torch.topk(logits, min(self.top, logits.shape[-1]), dim=-1)
        projected = self.hidden_projection(hidden)
        path, previous = [], anchor
        for row in range(hidden.shape[0]):
            pull = self.successor_codebook[candidates[row]] @ (self.predecessor_codebook[previous] * projected[row])
            scores = torch.full_like(logits[row], -torch.inf)
            scores[candidates[row]] = best[row] + pull.to(logits.dtype)
            previous = pick(row, scores)
            path.append(previous)
        return path


class DFlash(nn.Module):
    """A drafter without embedding and head: it borrows the target's."""

    def __init__(self, c: DraftConfig) -> None:
        super().__init__()
        self.config = c
        self.fc = nn.Linear(len(c.taps) * c.hidden, c.hidden, bias=False)
        self.hidden_norm = Norm(c.hidden, c.eps)
        self.layers = nn.ModuleList(DraftLayerModule(c) for _ in c.layers)
        self.norm = Norm(c.hidden, c.eps)
        self.candidate_selector = Selector(c) if c.kind == "dflash2" else None

    def context(
        self, feature: torch.Tensor, position: torch.Tensor, rope: Rope
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values [n, kv_heads, dim] per layer for context rows. feature [n, taps * hidden]."""
        fused = self.hidden_norm(self.fc(feature))
        cos, sin = rope.at(position, fused.dtype)
        return [layer.self_attn.keys(fused, cos, sin) for layer in self.layers]  # type: ignore[operator, union-attr]

    def forward(self, x: torch.Tensor, position: torch.Tensor, rope: Rope, attend: Attend) -> torch.Tensor:
        """Hidden rows [..., rows, hidden] after the final norm, for block embeddings x at position [..., rows]."""
        cos, sin = rope.at(position, x.dtype)
        for index, layer in enumerate(self.layers):

            def read(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, index: int = index) -> torch.Tensor:
                return attend(index, q, k, v)

            x = layer(x, cos, sin, read)
        result: torch.Tensor = self.norm(x)
        return result

    def logits(self, hidden: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        """fp32 [rows, ids] with the target's head (fp32), or the drafter's own over its smaller vocabulary."""
        logits = F.linear(hidden.to(torch.float32), head)
        if self.config.output_scale != 1:
            logits = logits * self.config.output_scale
        if self.config.softcap is not None:
            logits = torch.tanh(logits / self.config.softcap) * self.config.softcap
        return logits
