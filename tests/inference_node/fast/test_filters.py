"""The long way from logits to tokens, against the one that chooses row by row."""

import pytest
import torch

from inference_node.fast.filters import Filters, everything, unpack
from inference_node.kernels.plain.philox import noise
from inference_node.models.errors import NodeError
from inference_node.speculate.choose import Chooser
from inference_node.speculate.seam import Sampling

CPU = torch.device("cpu")
IDS, ROWS = 500, 8
SETTINGS = [
    Sampling(),
    Sampling(temperature=1.0, top_p=0.9, seed=3),
    Sampling(temperature=0.7, top_k=20, top_p=0.95, seed=4),
    Sampling(temperature=1.3, top_k=50, top_p=0.8, min_p=0.02, seed=2**64 - 5),
    Sampling(temperature=0.9, min_p=0.1, seed=5),
    Sampling(temperature=1.0, top_k=1, seed=6),
    Sampling(temperature=1.0, top_k=4000, seed=6),
    Sampling(temperature=0.8, seed=3, presence_penalty=1.5, frequency_penalty=0.7, repetition_penalty=1.2, top_p=0.9),
    Sampling(repetition_penalty=0.8, presence_penalty=-0.5, logit_bias={4: 3.0, 9: -100.0, 17: -2.5}),
]


def chosen(filters: Filters, sampling: Sampling, logits, drafts, allowed, first: int) -> list[int]:
    """As the sampling kernel does it: the best of what stays, noise added."""
    scores = filters.scores(logits, drafts, allowed)
    cut = filters.cut(scores)
    picked = []
    for row in range(scores.shape[0]):
        scaled = scores[row] / (sampling.temperature or 1.0)
        if not sampling.greedy:
            heard = scaled + noise(sampling.seed, first + row, torch.arange(IDS))
            scaled = heard.masked_fill(scaled < cut[row], -torch.inf)
        picked.append(int(scaled.argmax()))
    return picked


@pytest.mark.parametrize("coarse", [False, True], ids=["fine", "with ties"])
@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_rows_chosen_together_are_the_rows_chosen_one_by_one(sampling, coarse):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(ROWS, IDS, generator=generator) * 3
    if coarse:
        logits = (logits * 2).round() / 2
    drafts = torch.randint(IDS, (ROWS - 1,), generator=generator)
    drafts[3] = drafts[1]  # said twice in one block
    allowed = torch.randint(-(2**31), 2**31, (ROWS, 16), generator=generator).to(torch.int32)
    holes = torch.zeros(IDS, dtype=torch.bool)
    holes[100:110] = True
    prompt, output = [5, 6, 7, 499], [6, 8, 8]
    filters = Filters(IDS, CPU, holes)
    filters.set(sampling, prompt, output)
    chooser = Chooser(sampling, IDS, CPU, prompt=prompt, output=output, holes=holes)
    expected = []
    for row in range(ROWS):
        expected.append(chooser.choose(logits[row], 70 + row, allowed[row]))
        if row < ROWS - 1:
            chooser.record(int(drafts[row]))
    assert chosen(filters, sampling, logits, drafts, allowed, 70) == expected


def test_a_rows_choice_does_not_depend_on_its_neighbours():
    generator = torch.Generator().manual_seed(2)
    row = torch.randn(IDS, generator=generator) * 2
    filters = Filters(IDS, CPU)
    filters.set(Sampling(temperature=1.0, top_p=0.9, top_k=100), [], [])
    none = torch.zeros(ROWS - 1, dtype=torch.int64)
    for place in range(ROWS):
        logits = torch.randn(ROWS, IDS, generator=generator) * 50
        logits[place] = row
        scores = filters.scores(logits, none, everything(ROWS, IDS, CPU))
        cut = filters.cut(scores)[place]
        if place == 0:
            first = cut
        assert torch.equal(cut, first)


def test_what_was_said_is_counted_as_far_as_it_was_committed():
    filters = Filters(IDS, CPU)
    filters.set(Sampling(frequency_penalty=1.0), [1], [3])
    filters.record(torch.tensor([3, 4, 4, 5]), torch.tensor(3))
    assert filters.said[[3, 4, 5]].tolist() == [2.0, 2.0, 0.0]
    filters.set(Sampling(), [], [])
    assert float(filters.said.sum()) == 0.0 and not bool(filters.in_prompt.any())


def test_a_bias_on_an_id_that_does_not_exist_is_refused():
    with pytest.raises(NodeError, match="token 500"):
        Filters(IDS, CPU).set(Sampling(logit_bias={500: 1.0}), [], [])


def test_plain_temperature_needs_no_filters_and_everything_else_does():
    assert not Filters.needed(Sampling()) and not Filters.needed(Sampling(temperature=0.7, seed=9))
    assert not Filters.needed(Sampling(top_k=20, top_p=0.9)), "greedy: no filter can change the best"
    assert all(Filters.needed(sampling) for sampling in SETTINGS[1:])


def test_packed_bits_come_lowest_first():
    assert unpack(torch.tensor([[5, -(2**31)]], dtype=torch.int32), 64)[0].nonzero()[:, 0].tolist() == [0, 2, 63]
    assert bool(unpack(everything(2, 70, CPU), 70).all())
