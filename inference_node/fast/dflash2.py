"""DFlash 2 in kernels: DFlash with a convolution around every sublayer, and a choice that walks the block.

See `models/drafter.py` for what it computes. A convolution needs the normed rows themselves, and so do the kernels that
it takes from them, so here a norm is a launch of its own and no layer feeds the next one. The best candidates of each
row are found among logits in memory; the walk over them is one program, so the whole draft stays one graph.

Checked by: tests/inference_node/fast/test_dflash2.py, against the reference's drafter
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from inference_node.fast.drafter import BlockDrafter, DrafterWeights
from inference_node.fast.forward import SamplingNumbers
from inference_node.fast.pages import Table
from inference_node.fast.parts import Parts
from inference_node.kernels.plain.packed import Weight
from inference_node.models.draft_config import DraftConfig
from inference_node.models.draft_weights import LoadedDrafter
from inference_node.models.drafter import BlockConv


@dataclass(frozen=True, slots=True)
class Conv:
    base: torch.Tensor  # [2, taps, hidden] fp32
    own: Weight  # [2 * taps * hidden / group, hidden]: a row's part of its kernels


@dataclass(frozen=True, slots=True)
class Second:
    """What a DFlash 2 drafter has besides a DFlash one."""

    attention: list[Conv]  # per layer
    mlp: list[Conv]
    predecessor: torch.Tensor  # [ids, rank]
    successor: torch.Tensor  # [ids, rank]
    project: Weight  # [rank, hidden]


def from_module(loaded: LoadedDrafter) -> Second:
    """The loaded module's tensors, as the kernels want them."""
    selector = loaded.module.candidate_selector
    assert selector is not None, "the caller looks at the drafter's kind"

    def conv(module: BlockConv) -> Conv:
        base = module.base_kernel.to(torch.float32).contiguous()
        return Conv(base, Weight(module.kernel_projection.weight.contiguous()))

    layers: Any = loaded.module.layers
    return Second(
        attention=[conv(layer.attention_conv) for layer in layers],
        mlp=[conv(layer.mlp_conv) for layer in layers],
        predecessor=selector.predecessor_codebook.contiguous(),
        successor=selector.successor_codebook.contiguous(),
        project=Weight(selector.hidden_projection.weight.contiguous()),
    )


class SelectingDrafter(BlockDrafter):
    """Proposes a block from the anchor, each draft with an eye to the one before."""

    def __init__(
        self,
        second: Second,
        weights: DrafterWeights,
        config: DraftConfig,
        rope: torch.Tensor,
        bounds: torch.Tensor,
        embedding: torch.Tensor,
        head: Weight,
        parts: Parts,
    ) -> None:
        super().__init__(weights, config, rope, bounds, embedding, head, parts)
        self.second = second
        known = head.shape[0]  # ids that text may have
        self.predecessor, self.successor = second.predecessor[:known], second.successor[:known]
        c, device, dtype = config, embedding.device, embedding.dtype

        def room(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.normed, self.mixed, self.made = (room(c.block, c.hidden) for _ in range(3))
        self.own = room(c.block, second.attention[0].own.shape[0])
        self.logits = torch.zeros(c.block, self.head.shape[0], device=device)
        self.seen = room(c.block, c.selector_rank)

    def states(self, s: Any, start: torch.Tensor, rows: torch.Tensor, table: Table) -> None:
        p, c = self.parts, self.config
        p.embed(s.block, self.embedding, self.x, valid=rows)
        for index, layer in enumerate(self.weights.layers):

            def attention(mixed: torch.Tensor, index: int = index) -> None:
                layer = self.weights.layers[index]
                p.linear(mixed, layer.enter, rows, self.projected)
                self.attend(index, start, rows, table)
                p.linear(self.read.view(c.block, -1), layer.out, rows, self.made)

            def mlp(mixed: torch.Tensor, index: int = index) -> None:
                layer = self.weights.layers[index]
                p.linear(mixed, layer.up, rows, self.middle, swiglu=True)
                p.linear(self.middle, layer.down, rows, self.made)

            self._between(self.second.attention[index], layer.norm, rows, attention)
            self._between(self.second.mlp[index], layer.mlp_norm, rows, mlp)

    def choose(self, s: Any, rows: torch.Tensor, sampling: SamplingNumbers, *, own_noise: bool) -> None:
        p, c, w = self.parts, self.config, self.weights
        p.norm(self.x, w.norm, self.normed, eps=c.eps, valid=rows)
        p.head(self.normed, self.head, rows, sampling.cold, sampling.seed, s.positions, self.chosen, logits=self.logits)
        p.linear(self.normed, self.second.project, rows, self.seen)
        best = torch.topk(self.logits[1:], min(c.selector_top, self.logits.shape[1]), dim=-1)
        ids = best.indices.to(torch.int32)
        if w.head_ids is not None:
            ids = w.head_ids[best.indices]
        p.candidate_walk(
            ids, best.values, self.seen[1:], self.predecessor, self.successor, (rows - 1).clamp(min=0),
            sampling.temperature if own_noise else sampling.cold, sampling.seed, s.positions[1:], s.block,
            s.confidence, known=s.known,
        )  # fmt: skip

    def _between(
        self, conv: Conv, norm: torch.Tensor, rows: torch.Tensor, sublayer: Callable[[torch.Tensor], None]
    ) -> None:
        """A sublayer, which leaves its result in `made`, with the convolutions around it."""
        p = self.parts
        p.norm(self.x, norm, self.normed, eps=self.config.eps, valid=rows)
        p.linear(self.normed, conv.own, rows, self.own)
        p.block_conv(self.normed, self.own, conv.base, rows, 0, self.mixed)
        sublayer(self.mixed)
        p.block_conv(self.made, self.own, conv.base, rows, 1, self.x, residual=self.x)
