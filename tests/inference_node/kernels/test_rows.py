import torch
from torch.nn import functional as F

from inference_node.kernels.plain.rows import Rows


def test_a_function_whose_rows_depend_on_their_place_is_run_row_by_row():
    """Bug class: products whose row bits change with its index or the count (llama.cpp#25618, #26358, #27407)."""
    rows = Rows()

    def by_place(x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(x.shape[0])[:, None] * 1e-7 * x

    x = torch.randn(8, 5)
    assert torch.equal(rows("by place", by_place, x), x), "run singly, each row is row 0"
    assert rows.run_singly == ("by place",)


def test_an_independent_function_runs_at_once():
    calls = []

    def double(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.shape[0])
        return x * 2

    rows, x = Rows(), torch.randn(8, 5)
    rows("double", double, x)
    calls.clear()
    assert torch.equal(rows("double", double, x), x * 2)
    assert calls == [8]


def test_a_difference_in_the_sign_of_zero_counts():
    """Bug class: matrix unit and -0.0, differences between paths that == does not see (llama.cpp#26744)."""
    rows = Rows()

    def signed_by_place(x: torch.Tensor) -> torch.Tensor:
        result = x * 0.0
        result[1:] = -0.0
        return result

    rows("zeros", signed_by_place, torch.ones(4, 3))
    assert rows.run_singly == ("zeros",)


def test_results_may_be_several_tensors_and_of_whole_numbers():
    rows, x = Rows(), torch.randn(8, 6)
    best, index = rows("best", lambda x: tuple(x.max(dim=-1)), x)
    assert torch.equal(best, x.max(-1).values) and torch.equal(index, x.max(-1).indices)


def test_library_products_with_odd_row_counts_come_out_independent_of_place():
    """Seen with MKL on two threads: 5, 7 and 10 rows are not. Whatever this machine does, the result must be."""
    weight = torch.randn(96, 64)
    for count in (1, 2, 3, 5, 7, 8, 10, 16):
        rows = Rows()
        x = torch.randn(count, 64)
        straight = rows("product", lambda x: F.linear(x, weight), x)
        turned = rows("product", lambda x: F.linear(x, weight), x.roll(1, 0)).roll(-1, 0)
        assert torch.equal(straight, turned), count
