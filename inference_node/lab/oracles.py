"""Drafters that know the text, or know that they do not: for checks and benches, at any acceptance wished for."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inference_node.speculate.propose import Guess, NoDrafter

WAYS = ("always right", "always wrong", "right then wrong", "random")


class Oracle(NoDrafter):
    """Proposes from `text`, the whole sequence that plain decoding gives, in one of WAYS."""

    def __init__(self, way: str, text: Sequence[int], ids: int, block: int, seed: int = 0) -> None:
        super().__init__(block)
        if way not in WAYS:
            raise ValueError(f'way="{way}"; known are {", ".join(WAYS)}')
        self.name = way
        self.way, self.text, self.ids = way, list(text), ids
        self.random = torch.Generator().manual_seed(seed)
        self.cycles = 0

    def propose(self, tokens: Sequence[int], most: int, guess: Guess) -> list[int]:
        self.cycles += 1
        known = self.text[len(tokens) : len(tokens) + most]
        known += self._noise(most - len(known))
        if self.way == "always right":
            return known
        if self.way == "random":
            return self._noise(most)
        right = 0 if self.way == "always wrong" else self.cycles % self.block
        return [*known[:right], *((token + 1) % self.ids for token in known[right:])]

    def _noise(self, count: int) -> list[int]:
        return torch.randint(self.ids, (max(0, count),), generator=self.random).tolist()
