"""What the cycle wants of a drafter on the device, and the DFlash drafter in kernels.

DFlash fills a block of an anchor and masks in one pass, with the target's states for a past; see `models/drafter.py`
for what it computes. Its context keys lie in the second pool of cache pages, under the target's page numbers; the
block's own are written behind them for the time of the pass, where the next context rows overwrite them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from inference_node.fast.forward import SamplingNumbers, cache
from inference_node.fast.pages import CacheShape, Table
from inference_node.fast.parts import Parts
from inference_node.fast.sizes import NotForFast
from inference_node.kernels.plain import paged_attention
from inference_node.kernels.plain.accept import Field
from inference_node.kernels.plain.head import chosen
from inference_node.kernels.plain.kv_write import rope_table
from inference_node.kernels.plain.linear import ROWS, Feed, feed
from inference_node.kernels.plain.packed import Weight
from inference_node.models.draft_config import DraftConfig
from inference_node.models.draft_weights import LoadedDrafter

POOL = 1


class DeviceDrafter(Protocol):
    """Fills the blocks of one sequence. Its state follows the target's rows by position, so a truncation needs nothing:
    what a pass leaves for rows that are taken back, the next one overwrites before it is read."""

    taps: tuple[int, ...]  # target layers whose outputs it wants
    mask: int  # what stands in a block before a draft does
    lag: int  # positions before the rows of a pass in which it writes too

    def run(self, s: Any, table: Table, sampling: SamplingNumbers, *, own_noise: bool) -> None:
        """Drafts into s.block[1:], and into s.confidence how sure each is."""
        ...

    def absorb(
        self, tokens: torch.Tensor, taps: torch.Tensor, start: torch.Tensor, valid: torch.Tensor, table: Table
    ) -> None:
        """Rows start .. start + valid of these tokens went through the target; taps [rows, len(self.taps), hidden]."""
        ...

    def keep(self, position: int) -> torch.Tensor | None:
        """What a checkpoint at this position needs besides the pages."""
        ...

    def resume(self, kept: torch.Tensor | None, position: int) -> None: ...

    def poison(self, value: float, position: int) -> None:
        """Fill what no later pass may read, the pages aside."""
        ...


@dataclass(frozen=True, slots=True)
class Layer:
    norm: torch.Tensor
    enter: Weight  # queries, keys, values
    q_norm: torch.Tensor
    k_norm: torch.Tensor
    out: Weight
    mlp_norm: torch.Tensor
    up: Weight
    down: Weight
    window: int | None
    causal: bool


@dataclass(frozen=True, slots=True)
class DrafterWeights:
    fc: Weight  # [hidden, taps * hidden]
    context_norm: torch.Tensor
    context: torch.Tensor  # [layers, 2, kv_heads * dim, hidden]: all layers' keys and values
    context_k_norm: torch.Tensor  # [layers, dim]
    layers: list[Layer]
    norm: torch.Tensor
    head: Weight | None  # its own over a smaller vocabulary
    head_ids: torch.Tensor | None  # int32: the target's id of each of its rows

    @property
    def bytes(self) -> int:
        matrices = [weight.bytes for layer in self.layers for weight in (layer.enter, layer.out, layer.up, layer.down)]
        return self.fc.bytes + sum(matrices) + (self.head.bytes if self.head is not None else 0)


def check(config: DraftConfig) -> None:
    """Raises NotForFast for what only the reference knows."""
    if config.biased or config.output_scale != 1.0 or config.softcap is not None or config.input_scale != 1.0:
        raise NotForFast("The fast engine knows no drafters with biases, scales or a soft cap; use --engine reference.")
    if config.block > ROWS:
        raise NotForFast(f"The drafter's block is {config.block} rows; the fast engine's kernels have {ROWS}.")


def from_module(loaded: LoadedDrafter) -> DrafterWeights:
    """The loaded module's tensors, stacked as the kernels want them."""
    module, config = loaded.module, loaded.config

    def fp32(weight: torch.Tensor) -> torch.Tensor:
        return weight.to(torch.float32).contiguous()

    layers, context = [], []
    for index, how in enumerate(config.layers):
        layer: Any = module.layers[index]
        attention, mlp = layer.self_attn, layer.mlp
        q, k, v = (getattr(attention, name).weight for name in ("q_proj", "k_proj", "v_proj"))
        context.append(torch.stack([k, v]))
        layers.append(
            Layer(
                norm=fp32(layer.input_layernorm.weight),
                enter=Weight(torch.cat([q, k, v])),
                q_norm=fp32(attention.q_norm.weight),
                k_norm=fp32(attention.k_norm.weight),
                out=Weight(attention.o_proj.weight.contiguous()),
                mlp_norm=fp32(layer.post_attention_layernorm.weight),
                up=Weight(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])),
                down=Weight(mlp.down_proj.weight.contiguous()),
                window=how.window,
                causal=how.causal,
            )
        )
    own = loaded.head
    return DrafterWeights(
        fc=Weight(module.fc.weight.contiguous()),
        context_norm=fp32(module.hidden_norm.weight),
        context=torch.stack(context).contiguous(),
        context_k_norm=torch.stack([layer.k_norm for layer in layers]),
        layers=layers,
        norm=fp32(module.norm.weight),
        head=None if own is None else Weight(own.to(module.fc.weight.dtype).contiguous()),
        head_ids=None if loaded.head_ids is None else loaded.head_ids.to(torch.int32),
    )


class BlockDrafter:
    """Proposes a block from the anchor; its past is in the table's second pool, and all its state."""

    lag = 0

    def __init__(
        self,
        weights: DrafterWeights,
        config: DraftConfig,
        rope: torch.Tensor,
        bounds: torch.Tensor,
        embedding: torch.Tensor,
        head: Weight,
        parts: Parts,
    ) -> None:
        """rope: the table of `rope_table`; head: the target's, its known ids."""
        self.weights, self.config, self.parts = weights, config, parts
        self.taps, self.mask = config.taps, config.mask_id
        self.rope, self.bounds, self.embedding = rope, bounds, embedding
        self.head = head if weights.head is None else weights.head
        c, device, dtype = config, embedding.device, embedding.dtype

        def room(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.x, self.fused, self.context = (room(c.block, c.hidden) for _ in range(3))
        self.projected = room(c.block, (c.heads + 2 * c.kv_heads) * c.head_dim)
        self.queries, self.read = (room(c.block, c.heads, c.head_dim) for _ in range(2))
        self.middle = room(c.block, c.intermediate)
        # Each norm is fed by the layer before it: two a layer and the last, in one room.
        norms = [norm for layer in weights.layers for norm in (layer.norm, layer.mlp_norm)] + [weights.norm]
        ahead = feed(c.block, norms[0], dtype)
        self.fed = [Feed(norm, ahead.scaled, ahead.squares) for norm in norms]
        self.chosen = chosen(self.head.shape[0], device)
        self.split_room = None if parts.plain else paged_attention.parts(bounds, c.block, c.heads, c.head_dim)

    @classmethod
    def cache_shape(cls, config: DraftConfig) -> CacheShape:
        return CacheShape(len(config.layers), config.kv_heads, config.head_dim)

    def run(self, s: Any, table: Table, sampling: SamplingNumbers, *, own_noise: bool) -> None:
        """s.block's masks become drafts, s.confidence says how sure each is. Always the whole block, unless the text
        has ended: a shorter one would change all its rows, because masks see each other."""
        rows = (s.at(Field.VALID) > 0).to(torch.int32) * self.config.block
        self.states(s, s.at(Field.START), rows, table)
        self.choose(s, rows, sampling, own_noise=own_noise)

    def states(self, s: Any, start: torch.Tensor, rows: torch.Tensor, table: Table) -> None:
        """The block through all layers; the last one feeds the head."""
        p, c = self.parts, self.config
        ahead = self.fed[0]
        p.embed(s.block, self.embedding, self.x, valid=rows, feed=ahead)
        for index, layer in enumerate(self.weights.layers):
            p.linear(ahead.scaled, layer.enter, rows, self.projected, squares=ahead.squares, eps=c.eps)
            self.attend(index, start, rows, table)
            mlp, following = self.fed[2 * index + 1], self.fed[2 * index + 2]
            p.linear(self.read.view(c.block, -1), layer.out, rows, self.x, residual=self.x, feed=mlp)
            p.linear(mlp.scaled, layer.up, rows, self.middle, squares=mlp.squares, eps=c.eps, swiglu=True)
            p.linear(self.middle, layer.down, rows, self.x, residual=self.x, feed=following)

    def attend(self, index: int, start: torch.Tensor, rows: torch.Tensor, table: Table) -> None:
        """One layer's attention: from `projected` to `read`."""
        p, c, layer = self.parts, self.config, self.weights.layers[index]
        q, k, v = self.projected.split([c.heads * c.head_dim, *[c.kv_heads * c.head_dim] * 2], dim=-1)
        q, k, v = (part.unflatten(-1, (-1, c.head_dim)) for part in (q, k, v))
        keys, values = cache(table.pages, POOL, index)
        p.kv_write(
            q, k, v, layer.q_norm, layer.k_norm, self.rope, table.device, start, rows, keys, values, self.queries,
            c.eps,
        )  # fmt: skip
        p.paged_attention(
            self.queries, keys, values, table.device, start, rows, self.bounds, self.split_room, self.read,
            scale=c.head_dim**-0.5, causal=layer.causal, window=layer.window,
        )  # fmt: skip

    def choose(self, s: Any, rows: torch.Tensor, sampling: SamplingNumbers, *, own_noise: bool) -> None:
        """From the last layer's states to drafts."""
        c, w, ahead = self.config, self.weights, self.fed[0]
        heat = sampling.temperature if own_noise and w.head is None else sampling.cold
        self.parts.head(
            ahead.scaled, self.head, rows, heat, sampling.seed, s.positions, self.chosen, squares=ahead.squares,
            eps=c.eps, known=s.known if w.head is None else None,
        )  # fmt: skip
        drafts = self.chosen.choice[1 : c.block]
        if w.head_ids is not None:
            drafts = w.head_ids[drafts.clamp(min=0).to(torch.int64)]
        s.block[1:].copy_(drafts)
        s.confidence.copy_(confidence(self.chosen.logit[1 : c.block], self.chosen.mass[1 : c.block], heat))

    def absorb(
        self, tokens: torch.Tensor, taps: torch.Tensor, start: torch.Tensor, valid: torch.Tensor, table: Table
    ) -> None:
        """Context keys and values for rows start .. start + valid, from taps [rows, len(self.taps), hidden]."""
        p, c, w = self.parts, self.config, self.weights
        pool = table.pages.pools[POOL]
        keys, values = (pool[:, :, side].transpose(0, 1) for side in (0, 1))
        tables = table.device.expand(len(w.layers), -1)
        if taps.shape[0] <= c.block:
            rows = taps.shape[0]
            p.linear(taps.reshape(rows, -1), w.fc, valid, self.fused[:rows])
            p.norm(self.fused[:rows], w.context_norm, self.context[:rows], eps=c.eps, valid=valid)
            p.draft_context(
                self.context[:rows], w.context, w.context_k_norm, self.rope, tables, start, valid, keys, values, c.eps
            )
            return
        fused = p.prefill_linear(taps.reshape(taps.shape[0], -1), w.fc, taps.new_empty(taps.shape[0], c.hidden))
        context = p.norm(fused, w.context_norm, torch.empty_like(fused), eps=c.eps)
        for first in range(0, context.shape[0], ROWS):
            piece = context[first : first + ROWS]
            p.draft_context(
                piece, w.context, w.context_k_norm, self.rope, tables, start + first,
                torch.full_like(valid, piece.shape[0]), keys, values, c.eps,
            )  # fmt: skip

    def keep(self, position: int) -> torch.Tensor | None:
        return None

    def resume(self, kept: torch.Tensor | None, position: int) -> None:
        pass

    def poison(self, value: float, position: int) -> None:
        pass


def confidence(logit: torch.Tensor, mass: torch.Tensor, heat: torch.Tensor) -> torch.Tensor:
    """The probabilities of what a head chose, from what it says of its choices."""
    return (logit / torch.where(heat > 0.0, heat, 1.0) - mass).exp()


def draft_rope(loaded: LoadedDrafter, positions: int) -> torch.Tensor:
    """Cosines and sines of every position that a block can have."""
    return rope_table(loaded.rope.frequency, loaded.rope.scale, positions)
