"""The model's own multi-token head in kernels: one row per draft, each fed with the one before.

See `models/mtp.py` for what it computes. Its layer is an attention layer as the target has them, so it is run by the
target's forward with weights of its own. Its row for token t needs token t + 1, so it lies one position behind the
rows of the target: a pass that begins at START writes its keys from START - 1 on, with the hidden row that waited.
Hidden rows wait in a ring by absolute position, long enough to go back two blocks. As with DFlash the verify leaves
keys for all its rows, wrong ones too: the next pass overwrites them and nothing reads them before. With one layer, rows
that are not drafts need its keys and values alone.

Checked by: tests/inference_node/fast/test_mtp.py, against the reference's head
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from inference_node.fast import weights as fast_weights
from inference_node.fast.drafter import POOL, confidence
from inference_node.fast.forward import Model, SamplingNumbers, cache
from inference_node.fast.pages import CacheShape, Table
from inference_node.fast.reading import Stored
from inference_node.fast.sizes import Sizes
from inference_node.fast.weights import AttentionPart, Filler, Mlp, Place
from inference_node.kernels.plain.accept import Field
from inference_node.kernels.plain.head import Chosen
from inference_node.kernels.plain.linear import ROWS
from inference_node.kernels.plain.packed import Weight
from inference_node.models.errors import BadModel
from inference_node.models.files import Told, untold


@dataclass(frozen=True, slots=True)
class MtpWeights:
    embedding_norm: torch.Tensor  # before `fc`, of the embedding of token t + 1
    hidden_norm: torch.Tensor  # before `fc`, of the hidden row of t
    fc: Weight  # [hidden, 2 * hidden]
    mixer: AttentionPart
    mlp: Mlp
    norm: torch.Tensor


def sizes_of(sizes: Sizes) -> Sizes:
    """Of the head: one layer of attention like the target's."""
    return replace(sizes, layers=1, recurrent=(False,), delta=None)


def empty(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> MtpWeights:
    """Room for the head of a target of these sizes."""
    mixer, mlp = fast_weights.empty_layer(sizes_of(sizes), 0, dtype, device)
    assert isinstance(mixer, AttentionPart)
    norms = [torch.empty(sizes.hidden, device=device) for _ in range(3)]
    fc = Weight(torch.empty(sizes.hidden, 2 * sizes.hidden, dtype=dtype, device=device))
    return MtpWeights(norms[0], norms[1], fc, mixer, mlp, norms[2])


def load(
    sizes: Sizes,
    where: Mapping[str, Stored],
    folder: str,
    dtype: torch.dtype,
    device: torch.device,
    told: Told = untold,
) -> MtpWeights:
    """The head of a model directory. Raises BadModel where there is none, or not this one."""
    names = {name.removeprefix("mtp."): name for name in where if name.startswith("mtp.")}
    if not names:
        raise BadModel(folder, "tensors under mtp.", found="missing", expected="the model's multi-token head")
    made = empty(sizes, dtype, device)
    fill = Filler(names, where, folder, told)
    fill([
        Place("fc.weight", made.fc.data),
        Place("pre_fc_norm_embedding.weight", made.embedding_norm),
        Place("pre_fc_norm_hidden.weight", made.hidden_norm),
        Place("norm.weight", made.norm),
        *fast_weights.layer_places(sizes_of(sizes), 0, made.mixer, made.mlp, fill.single),
    ])  # fmt: skip
    fill.finish("only the tensors of a head with one layer")
    finish(sizes, made)
    return made


def finish(sizes: Sizes, made: MtpWeights) -> None:
    """From what the files hold to what the kernels take, in place."""
    if sizes.plus_one:
        for norm in (made.embedding_norm, made.hidden_norm, made.norm):
            norm.add_(1.0)
    fast_weights.finish_layer(sizes_of(sizes), made.mixer, made.mlp)


class MtpDrafter:
    """Proposes a block, one draft after the other; its past is in the table's second pool, one position behind."""

    lag = 1
    mask = 0  # what stands in the block before a draft does; nothing reads it

    def __init__(self, weights: MtpWeights, target: Model, block: int) -> None:
        self.weights, self.target, self.block, self.parts = weights, target, block, target.parts
        self.taps: tuple[int, ...] = (target.sizes.layers - 1,)
        own = replace(target.weights, norm=weights.norm, mixers=[weights.mixer], mlps=[weights.mlp])
        self.layer = Model(
            own, sizes_of(target.sizes), target.rope, block=1, known_ids=target.known_ids, pool=POOL, parts=self.parts
        )
        s = target.sizes
        device, dtype = target.device, target.dtype
        queries = weights.mixer.enter.shape[0] - 2 * s.kv_heads * s.head_dim
        self.keys_and_values = weights.mixer.enter[queries:]
        self.ring = torch.zeros(4 * block, s.hidden, dtype=dtype, device=device)
        self.places = torch.arange(block, device=device)
        self.row = torch.zeros(ROWS, s.hidden, dtype=dtype, device=device)  # the hidden row that the next step reads
        self.features = torch.zeros(ROWS, 2 * s.hidden, dtype=dtype, device=device)
        self.logit, self.mass = (torch.zeros(block - 1, device=device) for _ in range(2))
        self.marks = torch.zeros(block - 1, dtype=torch.int32, device=device)  # one a step, for its routing

    @classmethod
    def cache_shape(cls, sizes: Sizes) -> CacheShape:
        return CacheShape(1, sizes.kv_heads, sizes.head_dim)

    def run(self, s: Any, table: Table, sampling: SamplingNumbers, *, own_noise: bool) -> None:
        """s.block's masks become drafts, as many as may be verified; s.confidence says how sure each is."""
        start, valid = s.at(Field.START), s.at(Field.VALID)
        valid.copy_(torch.where(start > 0, valid, valid.clamp(max=1)))  # nothing stands before the first token
        steps = (valid > self.places[1:]).to(torch.int32)
        behind = (start - self.lag + self.places[:-1]).to(torch.int32)
        heat = sampling.temperature if own_noise else sampling.cold
        torch.index_select(self.ring, 0, (start - 1) % self.ring.shape[0], out=self.row[:1])
        self.marks.zero_()
        for step in range(self.block - 1):
            self._step(s, table, step, behind[step : step + 1], steps[step : step + 1], heat, sampling.seed)
        s.confidence.copy_(confidence(self.logit, self.mass, heat))

    def absorb(
        self, tokens: torch.Tensor, taps: torch.Tensor, start: torch.Tensor, valid: torch.Tensor, table: Table
    ) -> None:
        """Keys and values for target rows start .. start + valid of these tokens, from taps [rows, 1, hidden]."""
        p, w, target, n = self.parts, self.weights, self.target, taps.shape[0]
        eps, size = target.sizes.eps, self.ring.shape[0]
        hidden = p.norm(taps[:, 0], target.weights.norm, torch.empty_like(taps[:, 0]), eps=eps, valid=valid)
        # The row that waited comes first; at the start of a sequence there is none, and the first token has no row.
        first = (start == 0).to(torch.int32)
        count = (valid - first).clamp(min=0)
        rows = torch.arange(n, device=hidden.device) + first
        waited = self.ring.index_select(0, (start - 1) % size)
        before = torch.cat([waited, hidden]).index_select(0, rows)
        last = min(n, size)
        self.ring.index_copy_(0, (start + torch.arange(n - last, n, device=hidden.device)) % size, hidden[n - last :])
        features = hidden.new_empty(n, 2, hidden.shape[1])
        ids = tokens.index_select(0, rows.clamp(max=n - 1))
        p.norm(
            p.embed(ids, target.weights.embedding, torch.empty_like(hidden), valid=count), w.embedding_norm,
            features[:, 0], eps=eps, valid=count,
        )  # fmt: skip
        p.norm(before, w.hidden_norm, features[:, 1], eps=eps, valid=count)
        self._keep(features.view(n, -1), (start - 1 + first), count, table)

    def keep(self, position: int) -> torch.Tensor | None:
        """The hidden row that waits, where the target has `position` rows; None where there is none."""
        return self.ring[(position - 1) % self.ring.shape[0]].clone() if position else None

    def resume(self, waiting: torch.Tensor | None, position: int) -> None:
        if waiting is not None:
            self.ring[(position - 1) % self.ring.shape[0]].copy_(waiting)

    def poison(self, value: float, position: int) -> None:
        """Fill what no later pass may read, where the target has `position` rows: hidden rows that are not in yet."""
        for place in range(position, position + self.block):
            self.ring[place % self.ring.shape[0]] = value
        self.row.fill_(value)

    def _step(
        self,
        s: Any,
        table: Table,
        step: int,
        start: torch.Tensor,
        valid: torch.Tensor,
        heat: torch.Tensor,
        seed: torch.Tensor,
    ) -> None:
        """Draft `step` + 1, from the token before it and the hidden row of the one before that."""
        p, w, layer = self.parts, self.weights, self.layer
        eps, hidden = layer.sizes.eps, self.row.shape[1]
        p.embed(s.block[step:], layer.weights.embedding, layer.x[:1], valid=valid)
        p.norm(layer.x, w.embedding_norm, self.features[:, :hidden], eps=eps, valid=valid)
        p.norm(self.row, w.hidden_norm, self.features[:, hidden:], eps=eps, valid=valid)
        p.linear(self.features, w.fc, valid, layer.x, feed=layer.fed[0])
        layer.attend(0, 0, start, valid, table, self.marks[step : step + 1])
        p.norm(layer.x, w.norm, self.row, eps=eps, valid=valid)
        place = slice(step, step + 1)
        draft = s.block[step + 1 : step + 2]
        p.head(
            layer.fed[-1].scaled[:1], layer.head_weight, valid, heat, seed, s.positions[step + 1 : step + 2],
            Chosen(draft, self.logit[place], self.mass[place], layer.chosen.tiles), squares=layer.fed[-1].squares[:1],
            eps=eps, known=s.known,
        )  # fmt: skip
        draft.clamp_(min=0)  # where no id was found, for want of finite logits

    def _keep(self, features: torch.Tensor, start: torch.Tensor, count: torch.Tensor, table: Table) -> None:
        """The layer's keys and values from features [rows, 2 * hidden]."""
        p, w, s, n = self.parts, self.weights, self.target.sizes, features.shape[0]
        x = features.new_zeros(n, s.hidden)
        both = features.new_zeros(n, self.keys_and_values.shape[0])
        if n <= ROWS:
            p.linear(features, w.fc, count, x)
            p.linear(x, self.keys_and_values, count, both, norm=w.mixer.norm, eps=s.eps)
        else:
            p.prefill_linear(features, w.fc, x)
            p.prefill_linear(p.norm(x, w.mixer.norm, torch.empty_like(x), eps=s.eps), self.keys_and_values, both)
        k, v = (part.unflatten(-1, (s.kv_heads, s.head_dim)) for part in both.chunk(2, dim=-1))
        keys, values = cache(table.pages, POOL, 0)
        unread = torch.empty_like(k, memory_format=torch.contiguous_format)  # queries, which nobody asks for
        p.kv_write(
            k, k, v, w.mixer.k_norm, w.mixer.k_norm, self.target.rope, table.device, start, count, keys, values,
            unread, s.eps,
        )  # fmt: skip
