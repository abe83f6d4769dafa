"""Bits and texts: rows alone against rows in blocks, text with drafts against text without."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inference_node.fast.target import FastTarget
from inference_node.lab.whole.live import (
    Bench,
    like,
    tokens,
)
from inference_node.speculate.seam import Cut, Sampling

ROLLBACKS = ("fold", "snapshots", "replay")


def bits(bench: Bench, *, positions: int | None = None, name: str = "") -> None:
    """Logits of each row alone against those in a block with neighbours, for each rollback, any width, any fold.

    positions: for each rollback, by default as the bench was asked. Told under this name.
    """
    compared = mismatches = 0
    line = tokens(bench, (positions or bench.bit_positions) + 80, 3)
    alone = None
    for rollback in ROLLBACKS:
        target = like(bench, rollback)
        start = 64
        if alone is None:
            target.reset()
            target.prefill(line[:start])
            alone = [_logits(target, [token], start + at, 1)[0] for at, token in enumerate(line[start:-16])]
        target.reset()
        target.prefill(line[:start])
        random = torch.Generator().manual_seed(5)
        at = start
        while at < len(line) - 16:
            width, kept = _width(random, target.facts.block), 0
            kept = int(torch.randint(1, width + 1, (), generator=random))
            block = line[at : at + kept] + torch.randint(500, (width - kept,), generator=random).tolist()
            rows = _logits(target, block, at, kept)
            for row in range(kept):
                if at + row - start < len(alone):
                    compared += 1
                    mismatches += not torch.equal(rows[row], alone[at + row - start])
            at += kept
    bench.tell(**{f"{name}bit_positions": compared, f"{name}bit_mismatches": mismatches})


def text(bench: Bench) -> None:
    """The same text with drafts and without, greedy and sampled, for as many tokens as --text says."""
    same_text(bench, like(bench, "fold"))


def same_text(bench: Bench, target: FastTarget, name: str = "") -> None:
    """Told under this name."""
    total = wrong = 0
    line = tokens(bench, 280, 3)
    samplings = (
        Sampling(),
        Sampling(temperature=1.0, seed=4),
        Sampling(temperature=0.8, seed=5, top_k=20, top_p=0.95),
    )
    for sampling in samplings:
        asked = max(1, bench.text_tokens // len(samplings))
        plain = _said(target, line[:200], sampling, asked, draft=False)
        told = _said(target, line[:200], sampling, asked, draft=True)
        total += len(plain)
        wrong += abs(len(plain) - len(told)) + sum(one != other for one, other in zip(plain, told, strict=False))
        bench.tell(**{f"{name}text_tokens": total, f"{name}text_mismatches": wrong})


def _width(random: torch.Generator, block: int) -> int:
    return int(torch.randint(1, block + 1, (), generator=random))


def _logits(target: FastTarget, block: Sequence[int], start: int, kept: int) -> torch.Tensor:
    """Logits of a block's rows that stay: the first `kept`."""
    target.runner.table.open(start, start + 2 * target.runner.block)
    return target.runner.probe(block, start, kept)[:kept].clone()


def _said(target: FastTarget, line: Sequence[int], sampling: Sampling, budget: int, *, draft: bool) -> list[int]:
    target.reset()
    target.prefill(line[:-1])
    target.begin(line, sampling, budget=budget, draft=draft)
    said: list[int] = []
    while (result := target.cycle().read()).cut is not Cut.IDLE:
        said += result.tokens
    return said
