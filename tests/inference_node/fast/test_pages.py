"""Cache pages under one table for target and drafter."""

import pytest
import torch

from inference_node.fast.pages import CacheShape, Pages, Table
from inference_node.speculate.seam import OutOfMemory

CPU = torch.device("cpu")


def table(count: int = 6) -> Table:
    pages = Pages([CacheShape(1, 1, 4), CacheShape(2, 2, 8)], count, torch.float32, CPU)
    return Table(pages, torch.full((8,), -1, dtype=torch.int32))


def fill(held: Table) -> None:
    for pool in held.pages.pools:
        for index, page in enumerate(held.held):
            pool[page] = float(index + 1)


def test_kernels_see_the_pages_that_were_opened():
    held = table()
    held.open(0, 10)
    held.open(250, 600)
    assert len(held.held) == 3 and held.device[:4].tolist() == [*held.held, -1]
    held.truncate(256)
    assert len(held.held) == 1 and len(held.pages.free) == 5
    held.open(256, 257)
    assert held.device[:2].tolist() == held.held


def test_a_shared_page_is_copied_in_both_pools_before_it_is_written():
    held = table()
    held.open(0, 300)
    fill(held)
    shared = held.share(300)
    held.open(300, 301)
    assert held.held[0] == shared[0] and held.held[1] != shared[1], "only the page that is written"
    for pool in held.pages.pools:
        assert torch.equal(pool[held.held[1]], pool[shared[1]])
        pool[held.held[1]] = 9.0
        assert float(pool[shared[1]].max()) == 2.0
    assert held.device[1] == held.held[1]


def test_a_restored_sequence_reads_the_shared_pages_again():
    held = table()
    held.open(0, 300)
    shared = held.share(256)
    assert len(shared) == 1, "rows past the position are not kept"
    held.truncate(0)
    held.open(0, 10)
    held.adopt(shared)
    assert held.held == list(shared) and held.device[0] == shared[0]
    held.truncate(0)
    held.pages.drop(shared)
    assert len(held.pages.free) == 6 and held.pages.holders == [0] * 6


def test_when_all_pages_are_held_it_says_so():
    held = table(2)
    held.open(0, 512)
    with pytest.raises(OutOfMemory, match="All 2 cache pages"):
        held.open(512, 513)


def test_poison_fills_what_nobody_may_read_and_nothing_else():
    held = table()
    held.open(0, 512)
    fill(held)
    shared = held.share(100)
    held.poison(300, 7.0)
    for pool in held.pages.pools:
        assert float(pool[shared[0]].max()) == 1.0, "held by somebody else too"
        own = pool[held.held[1]]
        assert float(own[..., :44, :].max()) == 2.0 and float(own[..., 44:, :].min()) == 7.0
        assert all(float(pool[page].min()) == 7.0 for page in held.pages.free)
