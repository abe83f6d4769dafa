"""How many drafts a verify is given, chosen on the device in every cycle.

Each row of a verify costs time, on a mixture more than elsewhere because a wrong row wakes experts of its own. A draft
counts only if all drafts before it are right. So with s[i] the probability that the first i drafts are all right and
c[w] the time of a cycle whose verify has w rows, in decode steps, a cycle of w rows gains 1 + s[1] + ... + s[w-1]
tokens. The best w makes

    gain(w) - speed * c[w]                speed: tokens per decode step lately, over cycles that are over

largest: that is the rule "one more row while its survival exceeds its marginal cost times the current speed-up", also
where the cost curve has steps. s is the running product of the drafter's confidences, calibrated: how often a draft of
about that confidence, all before it being right, was right itself. Nothing here changes which text comes out.

Checked by: tests/inference_node/fast/test_width.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

BINS = 16
PRIOR = 32.0
"""Drafts that a bin is taken to have seen before the first one, right as often as the drafter said."""

MEMORY = 0.98
"""Weight that a cycle keeps in the running speed after the next one."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds, measured on this machine. verify[w - 1] is that of w rows; draft that of a draft pass."""

    verify: tuple[float, ...]
    draft: float

    def cycles(self, *, drafts: bool) -> list[float]:
        """A whole cycle with 1, 2, ... rows, in plain decode steps."""
        draft = self.draft if drafts else 0.0
        return [(seconds + draft) / self.verify[0] for seconds in self.verify]

    @classmethod
    def by_bytes(cls, block: int, *, per_row: float, draft: float = 0.12) -> Costs:
        """A guess for before anything is measured: each further row costs a share of a decode step."""
        return cls(tuple(1.0 + per_row * row for row in range(block)), draft)


class Width:
    """`rows`: None verifies whole blocks ("off"), a number that many rows at most; `adaptive` chooses up to it."""

    def __init__(self, block: int, device: torch.device, *, rows: int | None = None, adaptive: bool = False) -> None:
        self.most = min(rows or block, block) - 1
        self.adaptive = adaptive
        self.costs = torch.empty(block, device=device)
        self.tokens = torch.ones((), device=device)  # committed, by MEMORY
        self.spent = torch.ones((), device=device)  # decode steps, by MEMORY
        middle = (torch.arange(BINS, device=device) + 0.5) / BINS
        self.seen = torch.full((BINS,), PRIOR, device=device)
        self.right = PRIOR * middle
        self.chances = torch.ones(block - 1, device=device)  # what the last offer believed of each draft
        self.places = torch.arange(block - 1, device=device)
        self.measured(Costs.by_bytes(block, per_row=0.15))

    @torch.inference_mode()
    def measured(self, costs: Costs) -> None:
        """From now on with these costs. The running speed starts anew: it was counted in the old ones."""
        self.costs.copy_(torch.tensor(costs.cycles(drafts=True)))
        self.tokens.fill_(1.0)
        self.spent.fill_(1.0)

    def offer(self, confidence: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
        """Drafts to verify, int64 []. confidence fp32 [block - 1]; left: tokens that may still be committed."""
        most = (left - 1).clamp(0, self.most)
        if not self.adaptive:
            return most
        confidence = torch.nan_to_num(confidence, nan=0.0).clamp(0.0, 1.0)
        self.chances.copy_((self.right / self.seen)[_bin(confidence)])
        gain = torch.cat([self.places.new_ones(1, dtype=torch.float32), self.chances.cumprod(0)]).cumsum(0)
        worth = gain - self.tokens / self.spent * self.costs
        return torch.minimum(worth.argmax(), most)

    def learn(
        self, confidence: torch.Tensor, offered: torch.Tensor, accepted: torch.Tensor, committed: torch.Tensor
    ) -> None:
        """What a cycle came to. A draft is judged when all before it were right; a cycle that committed nothing is not
        counted."""
        if not self.adaptive:
            return
        counts = (committed > 0).to(torch.float32)
        judged = ((self.places <= accepted) & (self.places < offered)).to(torch.float32)
        place = _bin(torch.nan_to_num(confidence, nan=0.0).clamp(0.0, 1.0))
        here = (place[:, None] == torch.arange(BINS, device=place.device)).to(torch.float32)  # no atomics in sums
        self.seen.add_((here * judged[:, None]).sum(0) * counts)
        self.right.add_((here * (judged * (self.places < accepted))[:, None]).sum(0) * counts)
        keep = 1.0 - counts * (1.0 - MEMORY)
        self.tokens.mul_(keep).add_(committed * (1.0 - MEMORY))
        self.spent.mul_(keep).add_(self.costs[offered.clamp(0, self.most)] * counts * (1.0 - MEMORY))


def width(asked: str, block: int, device: torch.device) -> Width:
    """What `--width` says: off, a number of rows, or adaptive."""
    if asked == "adaptive":
        return Width(block, device, adaptive=True)
    return Width(block, device, rows=None if asked == "off" else int(asked))


def survival(accepted: Sequence[int], block: int) -> list[float]:
    """Share of cycles that accepted at least 1, 2, ... drafts. Of fixed-width cycles only: a narrow one hides what a
    wide one would have accepted."""
    cycles = max(1, len(accepted))
    return [sum(count > place for count in accepted) / cycles for place in range(block - 1)]


def _bin(confidence: torch.Tensor) -> torch.Tensor:
    return (confidence * BINS).to(torch.int64).clamp(max=BINS - 1)
