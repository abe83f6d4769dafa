"""How two kernels' results are compared. (Times need a card: `lab/tune_rows.py` and others, there.)"""

import torch

from inference_node.lab.replayed import apart


def test_results_are_apart_by_their_largest_difference_over_the_largest_value() -> None:
    expected = torch.tensor([1.0, -4.0, 2.0], dtype=torch.bfloat16)
    assert apart(expected, expected) == 0.0
    assert apart(torch.tensor([1.0, -4.0, 1.0]), expected) == 0.25
