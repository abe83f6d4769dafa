import torch
from torch.nn import functional as F

from inference_node.kernels.plain import experts
from inference_node.kernels.plain.rows import Rows, aligned

WEIGHTS = torch.randn(6, 10, 10, generator=torch.Generator().manual_seed(3))


ROWS = Rows()


def run(e: int, rows: torch.Tensor) -> torch.Tensor:
    """As the model does it: ten columns, and weights at odd addresses, make libraries treat rows unevenly."""
    return ROWS(aligned("expert", WEIGHTS[e]), lambda rows: F.linear(rows, WEIGHTS[e]), rows)


def test_a_row_is_the_weighted_sum_of_its_experts():
    rows, logits = torch.randn(8, 10), torch.randn(8, 6)
    weight, expert = experts.route(logits, 2, renormalise=True)
    total, woken = experts.mix(rows, weight, expert, 8, run)
    chosen = torch.softmax(logits, -1).topk(2)
    expected = sum(
        (chosen.values / chosen.values.sum(-1, keepdim=True))[:, rank, None]
        * torch.stack([run(int(e), row[None])[0] for e, row in zip(chosen.indices[:, rank], rows, strict=True)])
        for rank in range(2)
    )
    assert torch.allclose(total, expected, atol=1e-5)
    assert woken == len(set(chosen.indices.flatten().tolist()))


def test_ties_in_the_router_go_to_the_lowest_expert():
    _, expert = experts.route(torch.zeros(1, 6), 3, renormalise=True)
    assert expert.tolist() == [[0, 1, 2]]


def test_fillers_wake_no_expert_and_get_nothing():
    logits = torch.full((8, 6), -9.0)
    logits[0, 2] = logits[0, 4] = 9.0
    logits[1:, 5] = logits[1:, 1] = 9.0
    weight, expert = experts.route(logits, 2, renormalise=True)
    total, woken = experts.mix(torch.randn(8, 10), weight, expert, 1, run)
    assert woken == 2 and torch.equal(total[1:], torch.zeros(7, 10)) and bool((total[0] != 0).any())


def test_a_row_does_not_depend_on_which_experts_its_neighbours_wake():
    """Bug class: experts gather their rows, so a row's sum changes with the company it has."""
    rows, logits = torch.randn(8, 10), torch.randn(8, 6)
    weight, expert = experts.route(logits, 3, renormalise=True)
    whole, _ = experts.mix(rows, weight, expert, 8, run)
    for row in range(8):
        order = [row, *[(row + i) % 8 for i in range(1, 8)]]
        alone, _ = experts.mix(rows[order], weight[order], expert[order], 1, run)
        assert torch.equal(alone[0], whole[row])
