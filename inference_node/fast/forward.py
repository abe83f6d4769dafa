"""The target's forward, in kernels: a block of up to 16 rows for decode and verify, a segment of many for prefill.

A block reads where it stands (START), how many rows count (VALID) and what is left to fold from the control block on
the device, so the same launches serve one row and sixteen, and a graph of them stays right. Its rows live in one
buffer: each layer adds to it. Rows that do not count are never computed, and nothing reads them.

A prefill segment starts at an absolute multiple of CHUNK and may be of any length: its kernels have one tile, so a
row's bits depend neither on the segment nor on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from inference_node.fast.pages import Pages, Table
from inference_node.fast.parts import Parts
from inference_node.fast.recurrent import Recurrent
from inference_node.fast.sizes import NotForFast, Sizes
from inference_node.fast.weights import AttentionPart, DeltaPart, DensePart, Mlp, Weights
from inference_node.kernels.plain import paged_attention
from inference_node.kernels.plain.accept import Field
from inference_node.kernels.plain.gated_delta import CHUNK
from inference_node.kernels.plain.gated_delta_step import TAPS, DeltaMemory, Keep, marks_for
from inference_node.kernels.plain.head import chosen
from inference_node.kernels.plain.linear import ROWS, Feed, feed
from inference_node.kernels.plain.packed import Weight
from inference_node.kernels.plain.philox import WORD
from inference_node.kernels.plain.route import plan
from inference_node.speculate.seam import Sampling


@dataclass
class SamplingNumbers:
    """Temperature and seed where kernels read them."""

    temperature: torch.Tensor  # fp32 [1]; 0 is greedy
    seed: torch.Tensor  # int32 [2]: low and high word
    cold: torch.Tensor  # fp32 [1], always 0: for choices without noise


class Model:
    """Weights, kernels and working room of one target. It holds no sequence."""

    def __init__(
        self,
        weights: Weights,
        sizes: Sizes,
        rope: torch.Tensor,
        *,
        block: int,
        known_ids: int,
        pool: int = 0,
        parts: Parts | None = None,
    ) -> None:
        """rope: the table of `rope_table`, for every position of a sequence and a block more. pool: of the cache pages
        in which the keys lie."""
        if not 1 <= block <= ROWS:
            raise NotForFast(f"A block of {block} rows; the fast engine's kernels have {ROWS}.")
        self.weights, self.sizes, self.block = weights, sizes, block
        self.device, self.dtype = weights.embedding.device, weights.embedding.dtype
        self.parts = parts or Parts(self.device)
        self.known_ids = min(known_ids, sizes.vocab)
        self.head_weight = weights.head[: self.known_ids]
        self.rope, self.pool = rope, pool
        self.bounds = paged_attention.split_bounds(rope.shape[0], self.device)
        s, device = sizes, self.device

        def room(*shape: int, dtype: torch.dtype = self.dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.x = room(ROWS, s.hidden)
        # The norm before a layer is fed by the layer before it: one room, the factors of whoever comes next.
        ahead = feed(ROWS, weights.mixers[0].norm, self.dtype)
        norms = [mixer.norm for mixer in weights.mixers] + [weights.norm]
        self.fed = [Feed(norm, ahead.scaled, ahead.squares) for norm in norms]
        self.position = room(ROWS, dtype=torch.int32)
        self.none = room(1, dtype=torch.int32)
        self.sampling = SamplingNumbers(
            room(1, dtype=torch.float32), room(2, dtype=torch.int32), room(1, dtype=torch.float32)
        )
        self.chosen = chosen(self.known_ids, device)
        if s.delta is not None:
            d = s.delta
            self.entered = room(ROWS, d.channels + d.values + 2 * d.value_heads)
            self.delta_out = room(block, d.value_heads, d.value_dim)
        if s.attention_layers:
            self.projected = room(ROWS, (s.heads * (2 if s.gated else 1) + 2 * s.kv_heads) * s.head_dim)
            self.queries, self.read = (room(ROWS, s.heads, s.head_dim) for _ in range(2))
            self.split_room = (
                None if self.parts.plain else paged_attention.parts(self.bounds, block, s.heads, s.head_dim)
            )
        self.imposed: torch.Tensor | None = None  # for benches: experts [layers, rows, top] in place of the router's
        self.counts = room(max(1, s.layers if s.mixture else 1), 2, dtype=torch.int32)
        if s.mixture is not None:
            m = s.mixture
            whole = plan(m.experts, m.top, bool(m.shared), device)
            self.plans = [replace(whole, count=self.counts[layer]) for layer in range(s.layers)]
            self.normed = room(ROWS, s.hidden)
            self.expert_hidden = room(ROWS, m.top + 1, m.width)
        else:
            self.middle = room(ROWS, s.intermediate)
        # What programs of one launch wait for each other by, all layers' in one tensor: it is zeroed once a pass.
        own = marks_for(s.delta.key_heads, s.delta.value_heads) if s.delta is not None else 0
        marks = room(s.recurrent_layers * own + s.layers, dtype=torch.int32)
        self.all_marks = marks
        self.marks, self.route_marks = marks[: -s.layers].view(s.recurrent_layers, own), marks[-s.layers :]

    @property
    def woken(self) -> torch.Tensor:
        """int32 [MoE layers]: distinct experts of the last verify."""
        return self.counts[:, 1] if self.sizes.mixture is not None else self.counts[:0, 1]

    def sample(self, sampling: Sampling) -> None:
        """From now on choose by these."""
        self.sampling.temperature.fill_(sampling.temperature)
        for place, word in enumerate((sampling.seed & WORD, sampling.seed >> 32)):
            self.sampling.seed[place] = word - (1 << 32) if word >= 1 << 31 else word

    # A block.

    def verify(self, s: Any, table: Table, recurrent: Recurrent, taps: Sequence[int]) -> torch.Tensor:
        """Rows of s.block through all layers; `x` is left with their states. Returns taps [rows, len(taps), hidden]."""
        valid, start = s.at(Field.VALID), s.at(Field.START)
        rows = slice(self.block)
        self.all_marks.zero_()
        first = Feed(self.fed[0].factor, self.fed[0].scaled[rows], self.fed[0].squares[rows])
        self.parts.embed(s.block, self.weights.embedding, self.x[rows], valid=valid, feed=first)
        tapped = self.x.new_zeros(self.block, len(taps), self.sizes.hidden)
        deltas = attentions = 0
        for layer, mixer in enumerate(self.weights.mixers):
            if isinstance(mixer, DeltaPart):
                self._delta(mixer, deltas, s, recurrent)
                self._mlp(self.weights.mlps[layer], layer, valid, self.route_marks[layer : layer + 1])
                deltas += 1
            else:
                self.attend(layer, attentions, start, valid, table, self.route_marks[layer : layer + 1])
                attentions += 1
            for place, tap in enumerate(taps):
                if tap == layer:
                    tapped[:, place].copy_(self.x[: self.block])
        return tapped

    def attend(
        self,
        layer: int,
        index: int,
        start: torch.Tensor,
        valid: torch.Tensor,
        table: Table,
        mark: torch.Tensor,
    ) -> None:
        """The layer, which is the `index`th of attention, over the rows in `x`, whose feed is made. mark: a zero."""
        mixer = self.weights.mixers[layer]
        assert isinstance(mixer, AttentionPart)
        self._attention(mixer, index, start, valid, table)
        self._mlp(self.weights.mlps[layer], layer, valid, mark)

    def choose(self, s: Any) -> None:
        """The fused way from states to tokens."""
        self._head(s, None)
        s.choices.copy_(self.chosen.choice[: self.block])
        s.best.copy_(self.chosen.logit[: self.block])

    def logits(self, s: Any) -> None:
        """Bare logits of the block's rows, for the long way."""
        self._head(s, s.logits)

    def fold(self, s: Any, recurrent: Recurrent) -> None:
        """A pass without rows: every memory's other side is its state with nothing left to fold."""
        for index, mixer in enumerate(part for part in self.weights.mixers if isinstance(part, DeltaPart)):
            self._step(mixer, index, s, recurrent, self.none)

    def replay(
        self,
        recurrent: Recurrent,
        old: torch.Tensor,
        new: torch.Tensor,
        kept: torch.Tensor,
        *,
        inputs: torch.Tensor | None = None,
        keep_earlier: bool = True,
    ) -> None:
        """Commit of replay: side `new` becomes side `old` and `kept` rows of the block whose inputs lie at `inputs`."""
        d = self.sizes.delta
        if d is None:
            return
        place = (old if inputs is None else inputs).to(torch.int64)
        if keep_earlier:
            side = new.to(torch.int64)
            recurrent.earlier_state.copy_(recurrent.state.index_select(1, side)[:, 0])
            recurrent.earlier_line.copy_(recurrent.line.index_select(1, side)[:, 0, : TAPS - 1])
        rows = recurrent.entered.index_select(1, place)[:, 0]
        nothing = torch.zeros_like(kept)
        for index, mixer in enumerate(part for part in self.weights.mixers if isinstance(part, DeltaPart)):
            x, b, a = rows[index].split([d.channels, d.value_heads, d.value_heads], dim=-1)
            self.parts.delta_step(
                x, b, a, mixer.rule, recurrent.memories[index], old, nothing, kept, self.delta_out, keep=Keep.LAST
            )

    def _delta(self, part: DeltaPart, index: int, s: Any, recurrent: Recurrent) -> None:
        d, valid = self.sizes.delta, s.at(Field.VALID)
        assert d is not None
        ahead = self.fed[0]
        self.parts.linear(ahead.scaled, part.enter, valid, self.entered, squares=ahead.squares, eps=self.sizes.eps)
        self._step(part, index, s, recurrent, valid)
        flow, gate, b, a = self._split(self.entered)
        if recurrent.keep is Keep.NOTHING:
            both = torch.cat([flow, b, a], dim=-1)[: self.block]
            recurrent.entered[index].index_copy_(0, s.at(Field.SLOT).to(torch.int64), both[None])
        self.parts.linear(
            self.delta_out.view(self.block, -1), part.out, valid, self.x[: self.block], norm=part.out_norm,
            eps=self.sizes.eps, gate=gate[: self.block], residual=self.x[: self.block],
        )  # fmt: skip

    def _step(self, part: DeltaPart, index: int, s: Any, recurrent: Recurrent, valid: torch.Tensor) -> None:
        flow, _, b, a = self._split(self.entered[: self.block])
        self.parts.delta_step(
            flow, b, a, part.rule, recurrent.memories[index], s.at(Field.SLOT), s.at(Field.FOLD), valid,
            self.delta_out, keep=recurrent.keep,
            snapshots=None if recurrent.snapshots is None else recurrent.snapshots[index],
            marks=self.marks[index],
        )  # fmt: skip

    def _attention(
        self,
        part: AttentionPart,
        index: int,
        start: torch.Tensor,
        valid: torch.Tensor,
        table: Table,
    ) -> None:
        s, n = self.sizes, self.block
        ahead = self.fed[0]
        self.parts.linear(ahead.scaled, part.enter, valid, self.projected, squares=ahead.squares, eps=s.eps)
        q, k, v, gate = self._heads(self.projected[:n])
        keys, values = cache(table.pages, self.pool, index)
        self.parts.kv_write(
            q, k, v, part.q_norm, part.k_norm, self.rope, table.device, start, valid, keys, values, self.queries[:n],
            s.eps,
        )  # fmt: skip
        self.parts.paged_attention(
            self.queries[:n], keys, values, table.device, start, valid, self.bounds, self.split_room, self.read[:n],
            scale=s.head_dim**-0.5, gate=gate,
        )  # fmt: skip
        self.parts.linear(self.read.view(ROWS, -1), part.out, valid, self.x, residual=self.x)

    def _mlp(self, part: Mlp, layer: int, valid: torch.Tensor, mark: torch.Tensor) -> None:
        s, m = self.sizes, self.sizes.mixture
        if isinstance(part, DensePart):
            self.parts.linear(self.x, part.up, valid, self.middle, norm=part.norm, eps=s.eps, swiglu=True)
            self.parts.linear(self.middle, part.down, valid, self.x, residual=self.x, feed=self.fed[layer + 1])
            return
        assert m is not None
        where = self.plans[layer]
        self.parts.route(
            self.x, part.norm, part.router, valid, self.normed, where, eps=s.eps, renormalise=m.renormalise,
            imposed=None if self.imposed is None else self.imposed[layer],
            mark=mark,
        )  # fmt: skip
        self.parts.expert_up(self.normed, part.up, where, self.expert_hidden)
        self.parts.expert_down(self.expert_hidden, part.down, where, valid, self.x, self.x, feed=self.fed[layer + 1])

    def _head(self, s: Any, logits: torch.Tensor | None) -> None:
        torch.add(s.positions, 1, out=self.position[: self.block])
        rows = slice(self.block)
        self.parts.head(
            self.fed[-1].scaled[rows], self.head_weight, s.at(Field.VALID), self.sampling.temperature,
            self.sampling.seed, self.position[rows], self.chosen, squares=self.fed[-1].squares[rows],
            eps=self.sizes.eps, known=s.known, logits=logits,
        )  # fmt: skip

    # Many rows.

    def prefill(
        self, tokens: Sequence[int], start: int, table: Table, recurrent: Recurrent, slot: int, taps: Sequence[int]
    ) -> torch.Tensor:
        """Rows from `start`, a multiple of CHUNK, on; their states go into pages and memories.

        The memories must have nothing left to fold. Returns taps [rows, len(taps), hidden].
        """
        p, s, valid = self.parts, self.sizes, len(tokens)
        padded = -(-valid // CHUNK) * CHUNK
        ids = torch.tensor([*tokens, *[0] * (padded - valid)], dtype=torch.int32).to(self.device, non_blocking=True)
        many = Many(
            valid=valid,
            start=start,
            first=torch.tensor([start], dtype=torch.int32).to(self.device, non_blocking=True),
            count=torch.tensor([valid], dtype=torch.int32).to(self.device, non_blocking=True),
            x=p.embed(ids, self.weights.embedding, self.x.new_empty(padded, s.hidden)),
            h=self.x.new_zeros(padded, s.hidden),
        )
        tapped = self.x.new_zeros(valid, len(taps), s.hidden)
        deltas = attentions = 0
        for layer, (mixer, mlp) in enumerate(zip(self.weights.mixers, self.weights.mlps, strict=True)):
            if isinstance(mixer, DeltaPart):
                self._delta_many(mixer, recurrent.memories[deltas], slot, many)
                deltas += 1
            else:
                self._attention_many(mixer, attentions, table, many)
                attentions += 1
            self._mlp_many(mlp, many)
            for place, tap in enumerate(taps):
                if tap == layer:
                    tapped[:, place].copy_(many.x[:valid])
        return tapped

    def _delta_many(self, part: DeltaPart, memory: DeltaMemory, slot: int, many: Many) -> None:
        d, p, n = self.sizes.delta, self.parts, many.valid
        assert d is not None
        entered = self._enter_many(part.norm, part.enter, many)
        flow, gate, b, a = self._split(entered)
        out = entered.new_zeros(entered.shape[0], d.value_heads, d.value_dim)
        p.delta_prefill(flow, b, a, part.rule, n, memory.state[slot], memory.line[slot, : TAPS - 1], out)
        normed = torch.empty_like(out)
        p.gated_norm(out[:n], gate[:n].unflatten(-1, out.shape[1:]), part.out_norm, normed[:n], eps=self.sizes.eps)
        p.prefill_linear(normed[:n].view(n, -1), part.out, many.x[:n], residual=many.x[:n])

    def _attention_many(self, part: AttentionPart, index: int, table: Table, many: Many) -> None:
        s, p, n = self.sizes, self.parts, many.valid
        q, k, v, gate = self._heads(self._enter_many(part.norm, part.enter, many))
        rows = q.shape[0]
        queries, read = (q.new_zeros(rows, s.heads, s.head_dim) for _ in range(2))
        keys, values = cache(table.pages, self.pool, index)
        p.kv_write(
            q, k, v, part.q_norm, part.k_norm, self.rope, table.device, many.first, many.count, keys, values, queries,
            s.eps,
        )  # fmt: skip
        p.prefill_attention(
            queries, keys, values, table.device, many.start, n, read, scale=s.head_dim**-0.5, gate=gate
        )  # fmt: skip
        p.prefill_linear(read[:n].view(n, -1), part.out, many.x[:n], residual=many.x[:n])

    def _mlp_many(self, part: Mlp, many: Many) -> None:
        s, p, n, m = self.sizes, self.parts, many.valid, self.sizes.mixture
        x, h = many.x[:n], many.h[:n]
        p.norm(x, part.norm, h, eps=s.eps)
        if isinstance(part, DensePart):
            middle = p.prefill_linear(h, part.up, h.new_empty(n, s.intermediate), swiglu=True)
            p.prefill_linear(middle, part.down, x, residual=x)
            return
        assert m is not None
        logits = p.prefill_linear(h, Weight(part.router), h.new_empty(n, part.router.shape[0], dtype=torch.float32))
        p.prefill_experts(
            h, logits, part.up, part.down, n, x, x, experts=m.experts, top=m.top, renormalise=m.renormalise
        )  # fmt: skip

    def _enter_many(self, norm: torch.Tensor, weight: Weight, many: Many) -> torch.Tensor:
        n = many.valid
        self.parts.norm(many.x[:n], norm, many.h[:n], eps=self.sizes.eps)
        out = many.h.new_zeros(many.h.shape[0], weight.shape[0])
        self.parts.prefill_linear(many.h[:n], weight, out[:n])
        return out

    # Views.

    def _split(self, entered: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Conv inputs, output gate, beta and decay side by side."""
        d = self.sizes.delta
        assert d is not None
        return entered.split([d.channels, d.values, d.value_heads, d.value_heads], dim=-1)

    def _heads(self, projected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Queries, keys, values and the queries' gates, each [rows, heads, dim]."""
        s, rows = self.sizes, projected.shape[0]
        each = s.head_dim * (2 if s.gated else 1)
        q, k, v = projected.split([s.heads * each, *[s.kv_heads * s.head_dim] * 2], dim=-1)
        q = q.view(rows, s.heads, each) if q.is_contiguous() else q.unflatten(-1, (s.heads, each))
        k, v = (part.unflatten(-1, (s.kv_heads, s.head_dim)) for part in (k, v))
        return q[..., : s.head_dim], k, v, q[..., s.head_dim :] if s.gated else None


@dataclass
class Many:
    """Rows of one prefill segment."""

    valid: int
    start: int
    first: torch.Tensor  # int32 [1]: start
    count: torch.Tensor  # int32 [1]: valid
    x: torch.Tensor  # [padded, hidden]
    h: torch.Tensor  # [padded, hidden], room for normalised rows


def cache(pages: Pages, pool: int, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One layer's key and value pages [pages, kv_heads, 256, dim]."""
    rows = pages.pools[pool]
    return rows[:, layer, 0], rows[:, layer, 1]
