"""Drafters: who guesses the tokens that the target then checks.

A drafter sees what the target has committed and guesses what comes next. Its guesses change how fast text comes, never
which text. `none` and `ngram` are here; `dflash` and `mtp` have files of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from inference_node.models.target import Forwarded

Guess = Callable[[torch.Tensor, int], int]
"""(logits [ids] fp32, absolute position) -> id: how a drafter's logits become a draft under the request's settings."""


@dataclass(frozen=True, slots=True)
class KeptDraft:
    """A drafter's state at a position, for a checkpoint. `pages` maps page id to bytes."""

    state: Any = None
    own_bytes: int = 0
    pages: dict[int, int] = field(default_factory=dict)


class Drafter(Protocol):
    """Follows one sequence. Calls come in the order of committed rows."""

    name: str
    block: int  # rows of a full verify: the anchor and block - 1 drafts
    taps: tuple[int, ...]  # target layers whose outputs it wants to see

    def reset(self) -> None: ...

    def absorb(self, start: int, tokens: Sequence[int], seen: Forwarded) -> None:
        """Rows start.. of these tokens are in. `seen` has their rows first, fillers after."""
        ...

    def propose(self, tokens: Sequence[int], most: int, guess: Guess) -> list[int]:
        """At most `most` drafts after `tokens`: all committed ones, the anchor last."""
        ...

    def truncate(self, position: int) -> None:
        """Rows from position on are gone."""
        ...

    def keep(self) -> KeptDraft: ...

    def resume(self, kept: KeptDraft) -> None: ...

    def release(self, kept: KeptDraft) -> None: ...


class NoDrafter:
    """Plain decoding. The block's width is kept, so that its text has the bits of a run with drafts."""

    name = "none"
    taps: tuple[int, ...] = ()

    def __init__(self, block: int) -> None:
        self.block = block

    def reset(self) -> None:
        pass

    def absorb(self, start: int, tokens: Sequence[int], seen: Forwarded) -> None:
        pass

    def propose(self, tokens: Sequence[int], most: int, guess: Guess) -> list[int]:
        return []

    def truncate(self, position: int) -> None:
        pass

    def keep(self) -> KeptDraft:
        return KeptDraft()

    def resume(self, kept: KeptDraft) -> None:
        pass

    def release(self, kept: KeptDraft) -> None:
        pass


class NgramDrafter(NoDrafter):
    """Guesses that what followed the same few tokens earlier in the sequence follows again.

    The longest match wins, then the latest. Its memory is an index from hashes of token runs to the place after them,
    filled as tokens are seen; what a truncation or a collision has made wrong is noticed when it is looked up.
    """

    name = "ngram"

    def __init__(self, block: int, lengths: Sequence[int] = (6, 4, 3, 2)) -> None:
        super().__init__(block)
        self.lengths = lengths  # longest first
        self.reset()

    def reset(self) -> None:
        self.after: dict[int, int] = {}
        self.indexed = 0  # tokens whose runs are in `after`

    def propose(self, tokens: Sequence[int], most: int, guess: Guess) -> list[int]:
        self._index(tokens)
        for length in self.lengths:
            if len(tokens) <= length:
                continue
            run = tuple(tokens[-length:])
            place = self.after.get(hash(run), len(tokens))
            if place < len(tokens) and tuple(tokens[place - length : place]) == run:
                return _continued(tokens, place, most)
        return []

    def truncate(self, position: int) -> None:
        self.indexed = min(self.indexed, position)

    def resume(self, kept: KeptDraft) -> None:
        self.reset()

    def _index(self, tokens: Sequence[int]) -> None:
        """All runs that end before the last token; the last run is the one being looked up."""
        for end in range(max(self.indexed, 1), len(tokens)):
            for length in self.lengths:
                if length <= end:
                    self.after[hash(tuple(tokens[end - length : end]))] = end
        self.indexed = max(self.indexed, len(tokens) - 1)


def _continued(tokens: Sequence[int], place: int, most: int) -> list[int]:
    """What follows from place on; past the end, what was proposed itself, so that a repetition goes on repeating."""
    drafts: list[int] = []
    while len(drafts) < most:
        at = place + len(drafts)
        drafts.append(tokens[at] if at < len(tokens) else drafts[at - len(tokens)])
    return drafts
