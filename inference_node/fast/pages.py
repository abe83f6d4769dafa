"""Where the fast engine keeps what grows with a sequence: cache pages of one size, and the table of those in use.

A page is 256 positions of everything that grows with the sequence: keys and values of the target's attention layers
and of the drafter's. Both lie under the same page number in two pools, so one table, one count of holders and one
truncation serve both. Kernels read the table, so a sequence may lie anywhere. A page that a checkpoint holds too is
copied before it is written. What does not grow is in recurrent.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from inference_node.kernels.plain.kv_write import PAGE
from inference_node.speculate.seam import OutOfMemory


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Of one pool."""

    layers: int
    kv_heads: int
    dim: int

    def page(self) -> tuple[int, ...]:
        return (self.layers, 2, self.kv_heads, PAGE, self.dim)


class Pages:
    """All cache pages of a node. They never move, because captured graphs know their addresses."""

    def __init__(self, shapes: Sequence[CacheShape], count: int, dtype: torch.dtype, device: torch.device) -> None:
        """shapes: of the target's pool, and of the drafter's when there is one."""
        self.pools = [torch.empty((count, *shape.page()), dtype=dtype, device=device) for shape in shapes]
        self.count = count
        self.holders = [0] * count
        self.free = deque(range(count))

    @property
    def bytes_each(self) -> int:
        return sum(pool[0].numel() * pool.element_size() for pool in self.pools)

    def take(self) -> int:
        if not self.free:
            raise OutOfMemory(
                f"All {self.count} cache pages are held by this sequence and by states kept between turns. The "
                "sequence was dropped. Send a shorter prompt, or serve with a smaller --prefix-bytes."
            )
        page = self.free.popleft()
        self.holders[page] = 1
        return page

    def hold(self, pages: Sequence[int]) -> None:
        for page in pages:
            self.holders[page] += 1

    def drop(self, pages: Sequence[int]) -> None:
        for page in pages:
            self.holders[page] -= 1
            if self.holders[page] == 0:
                self.free.append(page)

    def copy(self, page: int) -> int:
        """A page of the same content with one holder."""
        own = self.take()
        for pool in self.pools:
            pool[own].copy_(pool[page])
        return own


@dataclass
class Table:
    """The pages of the live sequence, on the host and where kernels read them."""

    pages: Pages
    device: torch.Tensor  # int32 [most pages of a sequence]
    held: list[int] = field(default_factory=list)

    def open(self, first: int, end: int) -> None:
        """Make positions first..end-1 writable."""
        changed = len(self.held)
        for index in range(first // PAGE, -(-end // PAGE)):
            if index == len(self.held):
                self.held.append(self.pages.take())
            elif self.pages.holders[self.held[index]] > 1:
                own = self.pages.copy(self.held[index])
                self.pages.drop([self.held[index]])
                self.held[index] = own
                changed = min(changed, index)
        self._tell(changed)

    def truncate(self, position: int) -> None:
        """Give pages back that lie wholly past position."""
        kept = -(-position // PAGE)
        self.pages.drop(self.held[kept:])
        del self.held[kept:]

    def share(self, position: int) -> tuple[int, ...]:
        """The pages that hold rows below position, held once more."""
        shared = tuple(self.held[: -(-position // PAGE)])
        self.pages.hold(shared)
        return shared

    def adopt(self, shared: Sequence[int]) -> None:
        """Continue from shared pages in place of the present ones."""
        self.pages.hold(shared)
        self.truncate(0)
        self.held = list(shared)
        self._tell(0)

    def poison(self, position: int, value: float) -> None:
        """Fill every row that nobody may read: past position in own pages, and all free pages."""
        for pool in self.pages.pools:
            for index, page in enumerate(self.held):
                if self.pages.holders[page] == 1:
                    pool[page, :, :, :, max(0, min(PAGE, position - index * PAGE)) :] = value
            for page in self.pages.free:
                pool[page].fill_(value)

    def _tell(self, since: int) -> None:
        if since < len(self.held):
            told = torch.tensor(self.held[since:], dtype=torch.int32)
            self.device[since : len(self.held)].copy_(told, non_blocking=True)
