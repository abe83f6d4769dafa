"""The model's own multi-token head at work: one row per draft, each fed with the one before."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inference_node.models.mtp import MultiToken
from inference_node.models.target import Forwarded
from inference_node.speculate.propose import Guess, KeptDraft


class MtpDrafter:
    """Its row for token t needs token t + 1, so the last row's hidden state waits until that token is known."""

    name = "mtp"
    taps: tuple[int, ...] = ()

    def __init__(self, head: MultiToken, block: int) -> None:
        self.head, self.block = head, block
        self.pages = head.table()
        self.reset()

    def reset(self) -> None:
        self.pages.truncate(0)
        self.rows = 0  # rows of its own keys: one less than the target's, for the waiting row
        self.recent: dict[int, torch.Tensor] = {}  # position -> hidden row; enough to go back two blocks

    def absorb(self, start: int, tokens: Sequence[int], seen: Forwarded) -> None:
        n = len(tokens)
        hidden = seen.hidden[:n]
        if start > 0:  # the row that waited, and all new ones but the last
            self._extend(list(tokens), torch.cat([self.recent[start - 1][None], hidden[:-1]]))
        elif n > 1:
            self._extend(list(tokens[1:]), hidden[:-1])
        self.recent.update({start + row: hidden[row] for row in range(max(0, n - 2 * self.block - 1), n)})
        for old in [position for position in self.recent if position < start + n - 2 * self.block - 1]:
            del self.recent[old]

    def propose(self, tokens: Sequence[int], most: int, guess: Guess) -> list[int]:
        position = len(tokens) - 1  # the target's rows
        if position == 0:
            return []
        hidden, last, drafts = self.recent[position - 1][None], tokens[-1], list[int]()
        for step in range(min(most, self.block - 1)):
            hidden = self.head.run([last], hidden, self.rows + step, self.pages)
            last = guess(self.head.logits(hidden)[0], position + 1 + step)
            drafts.append(last)
        self.pages.truncate(self.rows)
        return drafts

    def truncate(self, position: int) -> None:
        self.rows = max(0, position - 1)
        self.pages.truncate(self.rows)
        self.recent = {at: row for at, row in self.recent.items() if at < position}

    def keep(self) -> KeptDraft:
        pages = self.pages.share()
        sizes = {-1 - page.id: page.bytes for page in pages if page is not None}
        waiting = {at: row for at, row in self.recent.items() if at == self.rows}
        own = sum(row.numel() * row.element_size() for row in waiting.values())
        return KeptDraft((self.rows, pages, waiting), own, sizes)

    def resume(self, kept: KeptDraft) -> None:
        self.rows, pages, recent = kept.state
        self.pages.adopt(pages)
        self.recent = dict(recent)

    def release(self, kept: KeptDraft) -> None:
        self.pages.release(kept.state[1])

    def poison(self, value: float) -> None:
        self.pages.poison(self.rows, value)

    def _extend(self, following: list[int], hidden: torch.Tensor) -> None:
        self.head.run(following, hidden, self.rows, self.pages)
        self.rows += len(following)
