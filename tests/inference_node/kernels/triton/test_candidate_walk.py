"""The walk over candidates, against its twin and against the selector that drafters are trained with."""

from types import SimpleNamespace

import pytest
import torch

from inference_node.kernels.plain import candidate_walk as plain
from inference_node.kernels.plain.philox import noise
from inference_node.kernels.triton import candidate_walk as fast
from inference_node.models.drafter import Selector
from tests.inference_node.kernels.triton.helpers import DEVICE, TYPES, close, is_a_kernel, normal, unwritten, whole

IDS, SEED = 90, 5


class Case:
    """Rows with candidates, each of which pulls about as hard as its logit says."""

    def __init__(self, n=5, top=6, rank=12, dtype=torch.float32):
        random = torch.Generator().manual_seed(n * top)
        places = [torch.randperm(IDS, generator=random)[:top] for _ in range(n)]
        self.candidates = torch.stack(places).to(torch.int32).to(DEVICE)
        self.logits = normal(n, top, seed=1)
        self.projected = normal(n, rank, seed=2, dtype=dtype)
        self.codes = [normal(IDS, rank, seed=seed, dtype=dtype, scale=0.6) for seed in (3, 4)]
        self.n = n

    def run(self, module, *, valid=None, heat=0.0, anchor=3, **how):
        block = torch.full((self.n + 1,), -7, dtype=torch.int32, device=DEVICE)
        block[0] = anchor
        confidence = unwritten(self.n)
        module.candidate_walk(
            self.candidates, self.logits, self.projected, *self.codes, whole(self.n if valid is None else valid),
            torch.tensor([heat], device=DEVICE), whole(SEED, 0), whole(*range(40, 40 + self.n)), block, confidence,
            **how,
        )  # fmt: skip
        return block.tolist(), confidence


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("heat", [0.0, 1.3])
@pytest.mark.parametrize("shape", [{}, {"n": 1}, {"n": 15, "top": 16, "rank": 16}, {"n": 3, "top": 1}])
def test_it_walks_as_its_twin(dtype, heat, shape):
    assert is_a_kernel(fast._walk)
    case = Case(dtype=dtype, **shape)
    (found, sure), (expected, likely) = (case.run(module, heat=heat) for module in (fast, plain))
    assert found == expected and found[0] == 3 and -7 not in found
    assert close(sure, likely, 1e-4) and (sure > 0).all() and (sure < 1 + 1e-5).all()


def test_each_choice_is_weighed_against_the_one_before():
    case = Case()
    walked = {tuple(case.run(fast, anchor=anchor)[0][1:]) for anchor in range(12)}
    assert len(walked) > 1, "the anchor alone changes the walk"


@pytest.mark.parametrize("heat", [0.0, 1.3])
def test_it_is_the_selector_that_drafters_are_trained_with(heat):
    n, hidden = 6, 10
    selector = Selector(SimpleNamespace(selector_top=4, vocab=IDS, selector_rank=12, hidden=hidden)).to(DEVICE)
    with torch.no_grad():
        for number, parameter in enumerate(selector.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=number, scale=0.7))
        states, logits = normal(n, hidden, seed=8), normal(n, IDS, seed=9)
        ids = torch.arange(IDS, device=DEVICE)

        def pick(row, scores):
            return int((scores / (heat or 1.0) + (noise(SEED, 40 + row, ids) if heat else 0.0)).argmax())

        expected = selector(states, logits, 3, pick)
        case = Case(n=n)
        best = torch.topk(logits, 4, dim=-1)
        case.candidates, case.logits = best.indices.to(torch.int32), best.values
        case.projected = selector.hidden_projection(states)
        case.codes = [selector.predecessor_codebook.detach(), selector.successor_codebook.detach()]
    assert case.run(fast, heat=heat)[0][1:] == expected


def test_ids_that_text_may_not_have_are_no_candidates():
    case = Case()
    case.candidates[1, 0] = IDS + 5  # past the codes
    case.logits[1, 0] = 1e4
    known = torch.full((3,), -1, dtype=torch.int32, device=DEVICE)
    for row in range(case.n):  # each row's best
        token = case.run(plain)[0][row + 1]
        known[token // 32] &= ~(1 << token % 32) if token % 32 < 31 else 0x7FFFFFFF
    (found, sure), (expected, likely) = (case.run(module, known=known) for module in (fast, plain))
    assert found == expected != case.run(plain)[0] and close(sure, likely, 1e-4)
    nothing, none = case.run(fast, known=torch.zeros_like(known))
    assert nothing == [3, *[0] * case.n] and not none.any()


def test_a_text_that_has_ended_is_left_alone():
    block, sure = Case().run(fast, valid=0)
    assert block == [3, *[-7] * 5] and sure.isnan().all()


def test_numbers_that_are_none_choose_nothing():
    """Bug class: an id of -1 from logits that are not finite is looked up in a table."""
    case = Case()
    case.projected[2] = float("nan")
    for module in (fast, plain):
        block, _ = case.run(module)
        assert block[3] == 0 and all(0 <= token < IDS for token in block)
