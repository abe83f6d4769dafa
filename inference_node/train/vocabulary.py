"""A smaller vocabulary for the drafter: the ids that the texts need most, and the maps as the ecosystem has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from inference_node.models.errors import NodeError
from inference_node.train.sample import Sample


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`ids` [rows] int64, ascending: the target's id of each row of the drafter's head."""

    ids: torch.Tensor
    size: int  # of the target's vocabulary
    coverage: float  # share of supervised tokens that are among them

    @property
    def d2t(self) -> torch.Tensor:
        """[rows] int64: distance from a row's number to the target's id."""
        return self.ids - torch.arange(len(self.ids))

    @property
    def t2d(self) -> torch.Tensor:
        """[size] bool: ids that are in it."""
        chosen = torch.zeros(self.size, dtype=torch.bool)
        chosen[self.ids] = True
        return chosen

    @property
    def row_of(self) -> torch.Tensor:
        """[size] int64: the row of each id, -1 for those left out."""
        rows = torch.full((self.size,), -1, dtype=torch.int64)
        rows[self.ids] = torch.arange(len(self.ids))
        return rows


def most_frequent(samples: Iterable[Sample], rows: int, size: int) -> Vocabulary:
    """The `rows` ids that most supervised tokens have; ties and what is left over go to low ids. Raises NodeError."""
    if not 1 <= rows <= size:
        raise NodeError(f"vocabulary={rows}; the target's has {size} ids.")
    counts: Counter[int] = Counter()
    for sample in samples:
        counts.update(sample.tokens[place] for place in sample.targets)
    order = sorted(range(size), key=lambda token: (-counts[token], token))[:rows]
    total = sum(counts.values())
    covered = sum(counts[token] for token in order)
    return Vocabulary(torch.tensor(sorted(order)), size, covered / total if total else 0.0)
