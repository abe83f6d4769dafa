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
