"""The target's text model: weights in transformers' modules, the forward ours.

transformers' own forwards cannot be equal between one row and sixteen: their recurrent rule differs between one row and
more, matrix products change with the row count, experts gather rows. Here every decode, verify and replay is a pass
with the same number of rows, made of row functions (kernels/plain/rows.py), a stepwise delta rule, an explicit
convolution, experts that run on all rows, and attention in splits of 256 keys cut at absolute positions. So a token's
logits have the same bits alone and in a block, in fp32 and in bf16. Prefill runs in tiles of 64 rows that start at
absolute multiples of 64, so that a prompt continued from a checkpoint there has the bits of one prefilled from nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from inference_node.kernels.plain.gated_delta import CHUNK
from inference_node.kernels.plain.rows import Rows
from inference_node.models import rope as ropes
from inference_node.models.attention import Attention
from inference_node.models.delta import Delta
from inference_node.models.mlp import Dense, Experts
from inference_node.models.passes import Pass, together
from inference_node.state.recurrent import BlockNotes, RecurrentState
from inference_node.state.whole import SequenceState, Shapes

ROW_STEP = 8
"""Block passes are padded to a multiple of this: library matrix products treat such row counts evenly."""


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What a pass gives. All are [rows, ...] with fillers in."""

    hidden: torch.Tensor  # [rows, hidden], after the final norm
    taps: torch.Tensor  # [rows, taps, hidden]: outputs of the asked layers, in the asked order
    woken: tuple[int, ...]  # distinct experts per MoE layer

    def only(self, taps: int) -> Forwarded:
        """With the first few taps alone."""
        return self if taps == self.taps.shape[1] else Forwarded(self.hidden, self.taps[:, :taps], self.woken)


class TextModel:
    """A causal language model over one sequence, rows in, hidden rows out. It holds no sequence itself."""

    def __init__(self, module: nn.Module, config: Any, *, block: int, known_ids: int, where: str) -> None:
        """block: rows of a full verify. known_ids: rows of the head that may ever be chosen."""
        body: Any = module.model
        self.config = config
        self.embedding: torch.Tensor = body.embed_tokens.weight
        self.dtype, self.device = self.embedding.dtype, self.embedding.device
        self.norm = body.norm
        self.vocab = int(self.embedding.shape[0])
        self.known_ids = min(known_ids, self.vocab)
        # Logits are fp32 sums: rounded to bf16, the two best tie at more than one position in a hundred.
        self.head = module.lm_head.weight[: self.known_ids].to(torch.float32)  # type: ignore[union-attr, index]
        self.rows = -(-block // ROW_STEP) * ROW_STEP
        self.exact = Rows()
        self.rope = ropes.from_module(type(body.rotary_emb), config, self.device, where)
        self.mixers: list[Attention | Delta] = []
        self.mlps: list[Dense | Experts] = []
        for layer in body.layers:
            self.mixers.append(self._mixer(layer))
            self.mlps.append(Experts(layer) if hasattr(layer.mlp, "experts") else Dense(layer))
        self.deltas = [mixer for mixer in self.mixers if isinstance(mixer, Delta)]
        self.attentions = [mixer for mixer in self.mixers if isinstance(mixer, Attention)]
        self.module = module

    @property
    def hidden(self) -> int:
        return int(self.embedding.shape[1])

    @property
    def layers(self) -> int:
        return len(self.mixers)

    @property
    def weight_bytes(self) -> int:
        return sum(p.numel() * p.element_size() for p in self.module.parameters())

    def shapes(self) -> Shapes:
        """What a sequence of this model needs held."""
        config, part = self.config, self.deltas[0].part if self.deltas else None
        return Shapes(
            attention_layers=len(self.attentions),
            kv_heads=int(config.num_key_value_heads),
            head_dim=self.attentions[0].dim if self.attentions else 0,
            recurrent_layers=len(self.deltas),
            conv_rows=self.deltas[0].taps - 1 if part is not None else 0,
            conv_channels=int(self.deltas[0].weight.shape[0]) if part is not None else 0,
            delta=(part.num_v_heads, part.head_k_dim, part.head_v_dim) if part is not None else (0, 0, 0),
            dtype=self.dtype,
            device=self.device,
        )

    def block(
        self, tokens: Sequence[int], state: SequenceState, notes: BlockNotes, taps: Sequence[int] = ()
    ) -> Forwarded:
        """Tokens (at most `rows`) after the state's rows, each seeing those before it. The state is not advanced."""
        state.open(len(tokens))
        run = self._pass(len(tokens), self.rows, state, notes)
        return self._forward(tokens, run, taps)

    def tile(self, tokens: Sequence[int], state: SequenceState, taps: Sequence[int] = ()) -> Forwarded:
        """Prefill of at most CHUNK tokens; the state is advanced past them."""
        state.open(len(tokens))
        run = self._pass(len(tokens), CHUNK, state, None)
        done = self._forward(tokens, run, taps)
        layers = range(len(self.deltas))
        recurrent = RecurrentState(tuple(run.conv[i] for i in layers), tuple(run.delta[i] for i in layers))
        state.commit_tile(list(tokens), recurrent, aligned=state.position % CHUNK == 0)
        return done

    def fold(
        self, layer: int, x: torch.Tensor, rows: int, conv: torch.Tensor, delta: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Replay one recurrent layer over the first rows of its inputs in a verify."""
        return self.deltas[layer].fold(x, rows, conv, delta, self.exact)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, known_ids] fp32 for the hidden rows of a block."""
        result: torch.Tensor = self.exact("head", lambda rows: F.linear(rows.to(torch.float32), self.head), hidden)
        return result

    def embed(self, tokens: Sequence[int]) -> torch.Tensor:
        return self.embedding[torch.tensor(tokens, dtype=torch.int64, device=self.device)]

    def _pass(self, valid: int, rows: int, state: SequenceState, notes: BlockNotes | None) -> Pass:
        start = state.position
        return Pass(
            position=torch.arange(start, start + rows, device=self.device),
            start=start,
            valid=valid,
            pages=state.pages,
            recurrent=state.recurrent,
            apply=together if notes is None else self.exact,
            notes=notes,
            tile=notes is None,
        )

    def _forward(self, tokens: Sequence[int], run: Pass, taps: Sequence[int]) -> Forwarded:
        rows = run.position.shape[0]
        x = self.embed([*tokens, *[0] * (rows - len(tokens))])
        tapped: dict[int, torch.Tensor] = {}
        for index, (mixer, mlp) in enumerate(zip(self.mixers, self.mlps, strict=True)):
            x = mlp.mix(mixer.mix(x, run), run)
            if index in taps:
                tapped[index] = x
        hidden: torch.Tensor = run.apply("norm", self.norm, x)
        seen = [tapped[index] for index in taps]
        return Forwarded(
            hidden=hidden,
            taps=torch.stack(seen, dim=1) if seen else hidden.new_zeros(rows, 0, self.hidden),
            woken=tuple(run.woken),
        )

    def _mixer(self, layer: Any) -> Attention | Delta:
        index = len(self.mixers)
        if hasattr(layer, "linear_attn"):
            return Delta(sum(isinstance(mixer, Delta) for mixer in self.mixers), layer)
        kinds = getattr(self.config, "layer_types", None)
        sliding = kinds is not None and kinds[index] == "sliding_attention"
        window = self.config.sliding_window if sliding else None
        if kinds is None and self.config.model_type == "mistral":
            window = self.config.sliding_window
        return Attention(
            sum(isinstance(mixer, Attention) for mixer in self.mixers), layer, self.config, self.rope, window
        )
