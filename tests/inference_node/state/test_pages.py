import torch

from inference_node.kernels.plain.block_attention import SPLIT
from inference_node.state.pages import PagePool, PageTable


def table(window: int | None = None, slack: int = 0) -> PageTable:
    return PageTable(PagePool(2, 1, 4, torch.float32, torch.device("cpu")), window, slack)


def fill(pages: PageTable, first: int, end: int, value: float) -> None:
    pages.open(first, end)
    for layer in range(2):
        rows = torch.full((end - first, 1, 4), value)
        pages.write(layer, first, rows, -rows)


def read(pages: PageTable, end: int, layer: int = 0) -> list[float]:
    return [float(s.k[0, i, 0]) for s in pages.splits(layer, end) for i in range(s.valid)]


def test_rows_are_read_back_across_page_boundaries():
    pages = table()
    fill(pages, 0, SPLIT - 2, 1.0)
    fill(pages, SPLIT - 2, SPLIT + 3, 2.0)
    assert read(pages, SPLIT + 3) == [1.0] * (SPLIT - 2) + [2.0] * 5
    splits = pages.splits(1, SPLIT + 3)
    assert [(s.first, s.valid) for s in splits] == [(0, SPLIT), (SPLIT, 3)] and float(splits[1].v[0, 0, 0]) == -2.0


def test_a_shared_page_is_copied_before_it_is_written():
    pages = table()
    fill(pages, 0, 10, 1.0)
    kept = pages.share()
    fill(pages, 10, 20, 2.0)
    pages.truncate(5)
    fill(pages, 5, 12, 3.0)
    assert read(pages, 12) == [1.0] * 5 + [3.0] * 7
    pages.adopt(kept)
    assert read(pages, 10) == [1.0] * 10, "what was kept is as it was"


def test_pages_come_back_when_nobody_holds_them():
    pages = table()
    fill(pages, 0, 3 * SPLIT, 1.0)
    kept = pages.share()
    pages.truncate(0)
    assert pages.pool.free == []
    pages.release(kept)
    assert len(pages.pool.free) == 3
    fill(pages, 0, SPLIT, 1.0)
    assert len(pages.pool.free) == 2, "freed pages are used again"


def test_freed_pages_beyond_a_few_go_back_to_the_device():
    pages = table()
    fill(pages, 0, 20 * SPLIT, 1.0)
    pages.truncate(0)
    assert len(pages.pool.free) == pages.pool.spare < 20


def test_pages_out_of_the_window_are_given_back_and_those_within_the_way_back_are_not():
    pages = table(window=100, slack=16)
    for first in range(0, 4 * SPLIT, 64):
        fill(pages, first, first + 64, 1.0)
    # the last write began at 960: queries may still come from 944 and see keys from 845 on
    assert [page is None for page in pages.pages] == [True, True, True, False]
    assert pages.splits(0, 4 * SPLIT, since=4 * SPLIT - 100)[0].first == 3 * SPLIT


def test_poison_reaches_only_what_nobody_may_read():
    pages = table()
    fill(pages, 0, 20, 1.0)
    kept = pages.share()
    pages.truncate(10)
    pages.poison(10, float("nan"))
    assert read(pages, 10) == [1.0] * 10
    pages.adopt(kept)
    assert read(pages, 20) == [1.0] * 20, "a page that a checkpoint holds is left alone"
