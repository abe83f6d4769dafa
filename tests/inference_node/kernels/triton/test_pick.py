"""The choice of tokens from scores in memory, against its twin."""

import math

import pytest
import torch

from inference_node.kernels.plain import pick as plain
from inference_node.kernels.triton import pick as fast
from tests.inference_node.kernels.triton.helpers import is_a_kernel, normal, whole

IDS = 5000  # two whole tiles and a part of one


def both(scores, cut, heat, seed=(7, -3), first=40):
    rows = scores.shape[0]
    found = []
    for module in (plain, fast):
        choice = torch.full((rows,), -7, dtype=torch.int32, device=scores.device)
        best = torch.full((rows,), math.nan, device=scores.device)
        position = torch.arange(first, first + rows, dtype=torch.int32, device=scores.device)
        module.pick(scores, cut, torch.tensor([heat], device=scores.device), whole(*seed), position, choice, best)
        found.append((choice.tolist(), best.tolist()))
    return found


@pytest.mark.parametrize("heat", [0.0, 0.7])
def test_the_kernel_chooses_what_its_twin_chooses(heat):
    scores = normal(4, IDS, seed=1) * 3
    cut = torch.tensor([-math.inf, 2.0, 6.0, 9.0], device=scores.device)
    twin, kernel = both(scores, cut, heat)
    assert kernel == twin
    assert is_a_kernel(fast._tiles) and is_a_kernel(fast._rows)


def test_ties_go_to_the_lowest_id_inside_a_tile_and_among_tiles():
    scores = normal(3, IDS, seed=2)
    scores[0, [4999, 17, 2048, 18]] = 9.0
    scores[1, [4098, 2049]] = 9.0
    scores[2, IDS - 1] = 9.0
    twin, kernel = both(scores, torch.full((3,), -math.inf, device=scores.device), 0.0)
    assert kernel == twin and kernel[0] == [17, 2049, IDS - 1]


def test_what_may_not_be_said_is_not_said_and_nothing_left_shows_in_the_score():
    scores = torch.full((2, IDS), -math.inf, device=normal(1, 1, seed=0).device)
    scores[0, 4321] = -50.0
    for heat in (0.0, 1.0):
        twin, kernel = both(scores, torch.full((2,), -math.inf, device=scores.device), heat)
        assert kernel == twin and kernel[0][0] == 4321 and kernel[1][1] == -math.inf


def test_a_row_does_not_depend_on_its_neighbours():
    scores = normal(5, IDS, seed=3)
    cut = torch.full((5,), 0.5, device=scores.device)
    _, whole_block = both(scores, cut, 0.9)
    scores[[0, 1, 3, 4]] = math.nan
    _, alone = both(scores, cut, 0.9)
    assert alone[0][2] == whole_block[0][2] and alone[1][2] == whole_block[1][2]


def test_a_place_of_another_shape_is_refused():
    scores = normal(2, 10, seed=0)
    good = torch.zeros(2, device=scores.device)
    with pytest.raises(ValueError, match=r"cut is \(3,\)"):
        fast.pick(scores, torch.zeros(3, device=scores.device), good[:1], whole(0, 0), whole(1, 2), whole(0, 0), good)
