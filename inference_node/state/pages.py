"""Attention keys and values in pages of 256 positions.

A page holds all layers of its positions and is one split of the attention kernel. Pages are shared: a checkpoint keeps
the pages it needs, and whoever wants to write into a page that somebody else holds too gets a copy first. So going
back, branching and keeping a turn cost one page, not the sequence. Rows past a sequence's position hold whatever was
there before; readers never see them (tests fill them with NaN).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from inference_node.kernels.plain.block_attention import SPLIT, Split


@dataclass(eq=False)
class Page:
    """`rows` is [layers, 2 (k, v), kv_heads, 256, dim]. A page with no holder is free and may be taken again."""

    id: int
    rows: torch.Tensor
    holders: int = 0

    @property
    def bytes(self) -> int:
        return self.rows.numel() * self.rows.element_size()


@dataclass
class PagePool:
    """Makes pages of one shape and takes them back. A few freed pages are kept for reuse, unclean."""

    layers: int
    kv_heads: int
    dim: int
    dtype: torch.dtype
    device: torch.device
    spare: int = 8  # free pages kept; further ones go back to the device
    free: list[Page] = field(default_factory=list)
    _ids: Iterator[int] = field(default_factory=itertools.count)

    def take(self) -> Page:
        if self.free:
            page = self.free.pop()
        else:
            shape = (self.layers, 2, self.kv_heads, SPLIT, self.dim)
            page = Page(next(self._ids), torch.empty(shape, dtype=self.dtype, device=self.device))
        page.holders = 1
        return page

    def drop(self, page: Page) -> None:
        """One holder less."""
        page.holders -= 1
        if page.holders == 0 and len(self.free) < self.spare:
            self.free.append(page)


@dataclass
class PageTable:
    """The pages of one sequence. With a window, pages that no later query can see are given back."""

    pool: PagePool
    window: int | None = None  # a query at position p sees keys above p - window only
    slack: int = 0  # how far the sequence may still go back, so that a query may come from that much earlier
    pages: list[Page | None] = field(default_factory=list)  # None: given back, out of every later query's sight

    def write(self, layer: int, first: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Put rows [n, kv_heads, dim] at positions first.. . The pages must have been opened."""
        done = 0
        while done < k.shape[0]:
            index, offset = divmod(first + done, SPLIT)
            count = min(SPLIT - offset, k.shape[0] - done)
            page = self.pages[index]
            assert page is not None and page.holders == 1, "write into a page that was not opened"
            page.rows[layer, 0, :, offset : offset + count] = k[done : done + count].transpose(0, 1)
            page.rows[layer, 1, :, offset : offset + count] = v[done : done + count].transpose(0, 1)
            done += count

    def open(self, first: int, end: int) -> None:
        """Make positions first..end-1 writable: pages exist and nobody else holds them."""
        for index in range(first // SPLIT, -(-end // SPLIT)):
            if index == len(self.pages):
                self.pages.append(self.pool.take())
            page = self.pages[index]
            assert page is not None, "a page out of the window is written again"
            if page.holders > 1:
                own = self.pool.take()
                own.rows.copy_(page.rows)
                self.pool.drop(page)
                self.pages[index] = own
        if self.window is not None:
            for index in range(max(0, first - self.slack - self.window + 1) // SPLIT):
                page = self.pages[index]
                if page is not None:
                    self.pool.drop(page)
                    self.pages[index] = None

    def splits(self, layer: int, end: int, since: int = 0) -> list[Split]:
        """Splits that hold positions below end, from the one with position `since` on."""
        found = []
        for index in range(since // SPLIT, -(-end // SPLIT)):
            page = self.pages[index]
            assert page is not None, "a page in sight was given back"
            valid = min(SPLIT, end - index * SPLIT)
            found.append(Split(page.rows[layer, 0], page.rows[layer, 1], index * SPLIT, valid))
        return found

    def truncate(self, position: int) -> None:
        """Forget rows from position on. Pages wholly past it are given back."""
        kept = -(-position // SPLIT)
        for page in self.pages[kept:]:
            if page is not None:
                self.pool.drop(page)
        del self.pages[kept:]

    def share(self) -> tuple[Page | None, ...]:
        """The pages, held once more. Give them back through `release`."""
        for page in self.pages:
            if page is not None:
                page.holders += 1
        return tuple(self.pages)

    def adopt(self, pages: tuple[Page | None, ...]) -> None:
        """Continue from shared pages in place of the present ones."""
        for page in pages:
            if page is not None:
                page.holders += 1
        self.truncate(0)
        self.pages = list(pages)

    def release(self, pages: tuple[Page | None, ...]) -> None:
        for page in pages:
            if page is not None:
                self.pool.drop(page)

    def poison(self, position: int, value: float) -> None:
        """Fill every row that nobody may read: past position in own pages, and all free pages."""
        for index, page in enumerate(self.pages):
            if page is not None and page.holders == 1:
                page.rows[:, :, :, max(0, min(SPLIT, position - index * SPLIT)) :] = value
        for page in self.pool.free:
            page.rows.fill_(value)
