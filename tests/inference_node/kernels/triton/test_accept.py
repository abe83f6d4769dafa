"""Accepting, on the device: equal to the twin for random cycles, and the cases by name."""

import random

import pytest
import torch

from inference_node.kernels.plain import accept as plain
from inference_node.kernels.plain.accept import FIELDS, RECORD, Cut, Field, Told
from inference_node.kernels.triton import accept as fast
from tests.inference_node.kernels.triton.helpers import is_a_kernel, whole

MASK = 77


def settle(module, block, choices, stops=(), imposed=None, **fields):
    """Block, control, positions and the record's row after one call."""
    control = [0] * FIELDS
    given = {"START": 10, "VALID": len(block), "BUDGET": 100, "WIDTH": len(block)} | fields
    for name, value in given.items():
        control[Field[name]] = value
    tensors = whole(*block), whole(*control), whole(*[-7] * len(block))
    record = whole(*[-5] * 3 * (RECORD + len(block))).view(3, -1).clone()
    module.accept(
        tensors[0], whole(*choices), whole(*stops), tensors[1], tensors[2], record, MASK,
        None if imposed is None else whole(*imposed),
    )  # fmt: skip
    return *tensors, record


def committed(result, cycle=0):
    row = result[3][cycle % 3].tolist()
    return row[RECORD : RECORD + row[Told.COMMITTED]], Cut(row[Told.CUT]), row[Told.ACCEPTED]


@pytest.mark.parametrize("module", [plain, fast], ids=["plain", "triton"])
class TestOneCycle:
    def test_accepts_up_to_the_first_difference_and_adds_the_targets_own(self, module):
        result = settle(module, [5, 1, 2, 3], [1, 2, 9, 8])
        assert committed(result) == ([1, 2, 9], Cut.NONE, 2)
        block, control, positions, _ = (part.tolist() for part in result)
        assert block == [9, MASK, MASK, MASK] and positions == [13, 14, 15, 16]
        assert control[Field.START] == 13 and control[Field.FOLD] == 3 and control[Field.SLOT] == 1

    def test_the_budget_ends_the_text(self, module):
        result = settle(module, [5, 1, 2], [1, 2, 3], BUDGET=2)
        assert committed(result) == ([1, 2], Cut.BUDGET, 2)
        assert result[1][Field.VALID] == 0 and result[1][Field.ENDED] == Cut.BUDGET

    def test_a_stop_id_inside_the_accepted_drafts_ends_it_there(self, module):
        result = settle(module, [5, 1, 2, 3], [1, 2, 3, 4], stops=(2, 50))
        assert committed(result) == ([1, 2], Cut.STOP, 3)
        assert result[1][Field.ENDED] == Cut.STOP and result[0][0] == 2

    def test_a_stop_id_past_the_committed_tokens_is_none(self, module):
        assert committed(settle(module, [5, 1, 2], [7, 2, 2], stops=(2,))) == ([7], Cut.NONE, 0)

    def test_nothing_verified_changes_only_the_turn(self, module):
        block, control, _, record = settle(module, [5, 1], [-9, -9], VALID=0, ENDED=2, CYCLE=4)
        assert block.tolist() == [5, 1] and control[Field.START] == 10 and control[Field.FOLD] == 0
        assert control[Field.CYCLE] == 5 and record[1][Told.CUT] == Cut.IDLE

    def test_imposed_acceptance_takes_the_targets_choices(self, module):
        assert committed(settle(module, [5, 1, 2], [7, 8, 9], imposed=(0, 2), CYCLE=1), 1) == ([7, 8, 9], Cut.NONE, 2)


def test_random_cycles_are_the_twins():
    assert is_a_kernel(fast._accept)
    dice = random.Random(3)
    for _ in range(60):
        rows = dice.choice([1, 5, 8])
        valid = dice.randint(0, rows)
        block = [dice.randint(0, 3) for _ in range(rows)]
        choices = [dice.choice([*block[j + 1 : j + 2], dice.randint(0, 3)]) if j < valid else -99 for j in range(rows)]
        how = {
            "stops": dice.choice([(), (3,), (2, 9)]), "imposed": dice.choice([None, None, (2, 0, 5)]),
            "VALID": valid, "BUDGET": dice.randint(max(valid, 1), 9), "WIDTH": dice.randint(1, rows),
            "CYCLE": dice.randint(0, 9), "SLOT": dice.randint(0, 1),
        }  # fmt: skip
        found, expected = settle(fast, block, choices, **how), settle(plain, block, choices, **how)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), (block, choices, how)
