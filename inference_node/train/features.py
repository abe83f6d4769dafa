"""The target's states over samples: outputs of the tapped layers, and the last hidden state where a loss needs it.

Two sources: the target here, in one process with the trainer, and a node that serves them (states.py). Both check that
what comes back is what was asked for: features that are all zeros, or another text's, train a drafter that seems to
learn and accepts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from inference_node.models.errors import NodeError
from inference_node.train.batch import Batch
from inference_node.train.sample import Sample

FLAT = 1e-6
"""A layer's output whose standard deviation over a sample is below this holds nothing."""

FILLED, FILLED_THERE = 0.25, 0.75
"""Share of a row that may be filling, on a CPU and on an accelerator: of texts side by side, each is computed as long
as the longest. There a pass of a small target costs its launches, not its rows."""


SCALED_BY = 32
"""Texts by whose states columns are brought to one size."""

HOST_ROOM = 1 << 30
"""Bytes of states that stay in a machine's own memory."""


@dataclass(frozen=True, slots=True)
class States:
    """Of one sample with n tokens."""

    feature: torch.Tensor  # [n, taps * hidden], tap by tap
    last: torch.Tensor | None  # [n, hidden], after the final norm: what the head reads


class Source(Protocol):
    """Where states come from."""

    @property
    def head(self) -> torch.Tensor:
        """[vocab, hidden]"""
        ...

    @property
    def embedding(self) -> torch.Tensor:
        """[vocab, hidden]"""
        ...

    def states(self, samples: Sequence[Sample]) -> list[States]:
        """In the samples' order. Raises NodeError for states that cannot be right."""
        ...

    def coming(self, work: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches, in order; a source that is far away asks for their states before they are due."""
        ...


class LocalTarget:
    """The target in this process: its transformers module, run over samples side by side."""

    def __init__(self, module: nn.Module, taps: Sequence[int], *, last: bool) -> None:
        self.module, self.taps, self.wants_last = module, tuple(taps), last
        body: Any = module.model
        self.body = body
        self.device = body.embed_tokens.weight.device

    @property
    def head(self) -> torch.Tensor:
        weight: torch.Tensor = self.module.lm_head.weight  # type: ignore[union-attr, assignment]
        return weight

    @property
    def embedding(self) -> torch.Tensor:
        weight: torch.Tensor = self.body.embed_tokens.weight
        return weight

    def coming(self, work: Iterator[Batch]) -> Iterator[Batch]:
        return work

    @torch.no_grad()
    def states(self, samples: Sequence[Sample]) -> list[States]:
        found: dict[int, States] = {}
        filled = FILLED if self.device.type == "cpu" else FILLED_THERE
        for group in by_length([len(sample.tokens) for sample in samples], filled):
            found |= zip(group, self._side_by_side([samples[i] for i in group]), strict=True)
        states = [found[i] for i in range(len(samples))]
        check(samples, states, taps=len(self.taps))
        return states

    def _side_by_side(self, samples: Sequence[Sample]) -> list[States]:
        longest = max(len(sample.tokens) for sample in samples)
        tokens = torch.zeros(len(samples), longest, dtype=torch.int64)  # causal: what fills up on the right is not seen
        for row, sample in enumerate(samples):
            tokens[row, : len(sample.tokens)] = torch.tensor(sample.tokens)
        with self._tapped() as seen:
            last = self.body(input_ids=tokens.to(self.device), use_cache=False).last_hidden_state
        feature = torch.cat([seen[tap] for tap in self.taps], dim=-1)
        return [
            States(feature[row, : len(one.tokens)], last[row, : len(one.tokens)] if self.wants_last else None)
            for row, one in enumerate(samples)
        ]

    @contextmanager
    def _tapped(self) -> Iterator[dict[int, torch.Tensor]]:
        """Outputs of the asked layers of the pass that runs inside."""
        seen: dict[int, torch.Tensor] = {}

        def keep(index: int) -> Any:
            def hook(layer: nn.Module, given: Any, result: Any) -> None:
                seen[index] = result[0] if isinstance(result, tuple) else result

            return hook

        hooks = [self.body.layers[tap].register_forward_hook(keep(tap)) for tap in set(self.taps)]
        try:
            yield seen
        finally:
            for hook in hooks:
                hook.remove()


class Kept:
    """A source whose states stay on the device while there is room: each epoch has the same texts.

    Features are kept in the type that the drafter's first product reads them in.
    """

    def __init__(self, inner: Source, room: int) -> None:
        """room: bytes of states."""
        self.inner, self.room = inner, room
        self._kept: dict[Sample, States] = {}

    @property
    def head(self) -> torch.Tensor:
        return self.inner.head

    @property
    def embedding(self) -> torch.Tensor:
        return self.inner.embedding

    def coming(self, work: Iterator[Batch]) -> Iterator[Batch]:
        return self.inner.coming(work)

    def states(self, samples: Sequence[Sample]) -> list[States]:
        new = [sample for sample in dict.fromkeys(samples) if sample not in self._kept]
        found = dict(zip(new, self.inner.states(new), strict=True)) if new else {}
        for sample, states in found.items():
            kept = _for_keeping(states)
            if (size := _bytes(kept)) <= self.room:
                self.room -= size
                self._kept[sample] = kept
        return [self._kept.get(sample) or found[sample] for sample in samples]


def _for_keeping(states: States) -> States:
    """In memory of their own, for a view would keep all texts that were computed beside this one."""
    feature = states.feature.to(torch.bfloat16) if states.feature.is_cuda else states.feature
    return States(feature.clone(), None if states.last is None else states.last.clone())


def _bytes(states: States) -> int:
    return states.feature.nbytes + (0 if states.last is None else states.last.nbytes)


def room_on(device: torch.device) -> int:
    """Bytes that states of texts may take: half of what is free on an accelerator."""
    return torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else HOST_ROOM


def by_length(lengths: Sequence[int], filled: float = FILLED) -> Iterator[list[int]]:
    """Numbers of the texts that go side by side, the longest first: none leaves more than `filled` of its row empty."""
    group: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        if group and lengths[number] < (1 - filled) * lengths[group[0]]:
            yield group
            group = []
        group.append(number)
    if group:
        yield group


def check(samples: Sequence[Sample], states: Sequence[States], *, taps: int) -> None:
    """Refuse states that no target gives: another length, zeros, the same row everywhere, infinities.

    Reads from the device once for all samples. Raises NodeError.
    """
    for sample, one in zip(samples, states, strict=True):
        if one.feature.shape[0] != len(sample.tokens):
            raise NodeError(
                f'Sample "{sample.id}" has {len(sample.tokens)} tokens, its states {one.feature.shape[0]} rows. '
                "They belong to another text."
            )
    spreads = torch.stack([_spread(one.feature, taps) for one in states]).tolist()
    for sample, by_tap in zip(samples, spreads, strict=True):
        for tap, spread in enumerate(by_tap):
            finite = math.isfinite(spread)
            if not finite or (len(sample.tokens) > 1 and spread < FLAT):
                raise NodeError(
                    f'The states of sample "{sample.id}" at tap {tap} are {"flat" if finite else "not numbers"} '
                    f"(standard deviation {spread:.2g}). A drafter trained on them would learn the text's "
                    "frequencies only; what gives them has a fault."
                )


def _spread(feature: torch.Tensor, taps: int) -> torch.Tensor:
    """[taps] standard deviations."""
    return feature.to(torch.float32).unflatten(-1, (taps, -1)).std(dim=(0, 2))


def column_scale(source: Source, samples: Sequence[Sample]) -> torch.Tensor:
    """[taps * hidden] powers of two that bring every column of the features to a size near one, by some of the texts.

    A column may be hundreds of times the size of another, and nearly constant. A text's first state is left out: many
    models put there what no other place has.
    """
    some = samples[:: -(-len(samples) // SCALED_BY)]
    rows = torch.cat([one.feature[min(1, len(one.feature) - 1) :] for one in source.states(some)])
    size = rows.to(torch.float32).pow(2).mean(0).sqrt()
    return torch.exp2(-torch.log2(size.clamp(min=FLAT)).round())


def packed(states: Sequence[States], rows: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Features [rows, taps * hidden] and last states [rows, hidden], one sample behind the other, zeros at the end."""
    feature = torch.cat([one.feature for one in states])
    last = None if states[0].last is None else torch.cat([one.last for one in states if one.last is not None])
    return _filled(feature, rows), None if last is None else _filled(last, rows)


def _filled(x: torch.Tensor, rows: int) -> torch.Tensor:
    return torch.cat([x, x.new_zeros(rows - x.shape[0], *x.shape[1:])])
