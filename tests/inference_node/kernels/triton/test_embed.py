import torch

from inference_node.kernels.plain import embed as plain
from inference_node.kernels.plain.linear import feed
from inference_node.kernels.triton import embed as fast
from tests.inference_node.kernels.triton.helpers import TYPES, close, is_a_kernel, normal, unwritten, whole


def test_rows_are_copied_exactly_and_others_left_alone():
    for dtype in TYPES:
        table = normal(50, 1040, seed=1, dtype=dtype)
        ids = whole(49, 0, 7, -5, 999_999)  # ids past the valid rows may be anything
        out = fast.embed(ids, table, unwritten(5, 1040, dtype=dtype), valid=whole(3))
        assert torch.equal(out[:3], table[[49, 0, 7]]) and bool(out[3:].isnan().all())
        assert torch.equal(fast.embed(ids[:3], table, unwritten(3, 1040, dtype=dtype)), table[[49, 0, 7]])
    assert is_a_kernel(fast._embed)


def test_the_first_layers_norm_is_fed():
    table, factor, ids = normal(9, 1040, seed=2), normal(1040, seed=3), whole(8, 3, 0)
    feeds = [feed(3, factor, torch.float32) for _ in range(2)]
    for function, room in ((plain.embed, feeds[0]), (fast.embed, feeds[1])):
        function(ids, table, unwritten(3, 1040), feed=room)
    assert torch.equal(feeds[0].scaled, feeds[1].scaled) and close(feeds[1].squares, feeds[0].squares, 1e-6)


def test_no_rows_is_no_work():
    assert fast.embed(whole(), normal(4, 8, seed=1), unwritten(0, 8)).shape == (0, 8)
