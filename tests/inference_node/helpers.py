"""Small things that many tests of the node need."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from inference_node.speculate.reference import ReferenceTarget
from inference_node.speculate.seam import Constraint, Cut, CycleResult, Sampling

POISONS = (math.nan, -0.0, 3e38)


def prompt(length: int, seed: int = 0, vocab: int = 490) -> list[int]:
    return torch.randint(vocab, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def generate(
    target: ReferenceTarget,
    tokens: Sequence[int],
    sampling: Sampling,
    budget: int,
    *,
    draft: bool = True,
    stop_ids: Sequence[int] = (),
    constraint: Constraint | None = None,
    poison: Sequence[float] = (),
    results: list[CycleResult] | None = None,
) -> list[int]:
    """A whole generation from nothing. Unreadable cache rows are filled with each poison in turn after every cycle."""
    target.reset()
    target.prefill(tokens[:-1])
    target.begin(tokens, sampling, budget=budget, stop_ids=stop_ids, constraint=constraint, draft=draft)
    said: list[int] = []
    cycles = 0
    while True:
        if poison:
            target.poison(poison[cycles % len(poison)])
        result = target.cycle().read()
        if result.cut is Cut.IDLE:
            return said
        said += result.tokens
        cycles += 1
        if results is not None:
            results.append(result)


class Grammar:
    """Allows ids below a bound, and one forbidden at the third row of each walk."""

    def __init__(self, bound: int, words: int = 16) -> None:
        self.bound, self.words = bound, words
        self.said: list[int] = []
        self.walked: list[tuple[int, ...]] = []

    def masks(self, drafts):
        self.walked.append(tuple(drafts))
        rows = 1 + next((i for i, token in enumerate(drafts) if token >= self.bound), len(drafts))
        bits = torch.zeros(self.words * 32, dtype=torch.int64)
        bits[: self.bound] = 1
        words = (bits.view(self.words, 32) << torch.arange(32)).sum(-1)
        return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).expand(min(rows, len(drafts) + 1), -1)

    def advance(self, tokens):
        assert all(token < self.bound for token in tokens)
        self.said += tokens
