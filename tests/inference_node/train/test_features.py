"""States of the target: the right layers, of the right text, with something in them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inference_node.models.errors import NodeError
from inference_node.train.features import FILLED, LocalTarget, States, by_length, check, packed
from tests.inference_node.train.conftest import random_samples

SAMPLES = random_samples((20, 33, 7))


@pytest.mark.parametrize("family", ["qwen3_5_moe", "qwen3", "llama"])
def test_features_are_the_taps_that_serving_reads(opened, loaded, family: str) -> None:
    """Known trap: tapped one layer too early or too late, because formats count the embedding or do not."""
    target = opened(family)
    source = LocalTarget(target.module, (0, 2), last=True)
    served = loaded(family, "none").target
    for sample, states in zip(SAMPLES, source.states(SAMPLES), strict=True):
        served.reset()
        taps = served.prefill(list(sample.tokens), tap_layers=(0, 2)).taps
        assert taps is not None
        theirs = taps.flatten(1)
        assert float((states.feature - theirs).abs().max()) < 1e-3 * float(theirs.abs().max())


def test_the_last_state_and_the_head_give_the_next_tokens_logits(opened) -> None:
    target = opened("llama")
    source = LocalTarget(target.module, (1,), last=True)
    tokens = torch.tensor([SAMPLES[0].tokens])
    with torch.no_grad():
        logits = target.module(input_ids=tokens).logits[0]
    last = source.states(SAMPLES[:1])[0].last
    assert last is not None and torch.allclose(last @ source.head.t(), logits, atol=1e-3)


def test_a_sample_has_the_same_states_alone_and_beside_longer_ones(opened) -> None:
    source, samples = LocalTarget(opened("llama").module, (1, 2), last=False), random_samples((33, 20, 27))
    assert list(by_length([33, 20, 27])) == [[0, 2], [1]]
    for number in (1, 2):
        alone = source.states([samples[number]])[0].feature
        beside = source.states(samples)[number].feature
        assert torch.allclose(alone, beside, atol=1e-4)


@given(st.lists(st.integers(1, 9000), max_size=60))
def test_texts_go_side_by_side_with_their_like_so_that_little_of_a_step_is_filling(lengths: list[int]) -> None:
    groups = list(by_length(lengths))
    assert sorted(number for group in groups for number in group) == list(range(len(lengths)))
    for group in groups:
        assert min(lengths[i] for i in group) >= (1 - FILLED) * max(lengths[i] for i in group)
    longest = [max(lengths[i] for i in group) for group in groups]
    assert all(after < (1 - FILLED) * before for before, after in pairwise(longest)), "no more groups than needed"


def test_states_that_are_all_zeros_are_refused() -> None:
    """Known trap: a server that returns zeros for hybrid models (vllm#46301); training on them converges."""
    good = States(torch.randn(20, 12), None)
    check(SAMPLES[:1], [good], taps=3)
    flat = good.feature.clone()
    flat[:, 4:8] = 0
    with pytest.raises(NodeError, match='"s0" at tap 1 are flat'):
        check([SAMPLES[0]] * 2, [good, replace(good, feature=flat)], taps=3)
    flat[3, 5] = float("nan")
    with pytest.raises(NodeError, match="not numbers"):
        check([SAMPLES[0]] * 2, [good, replace(good, feature=flat)], taps=3)


def test_states_of_another_length_are_refused() -> None:
    with pytest.raises(NodeError, match="20 tokens, its states 19 rows"):
        check(SAMPLES[:1], [States(torch.randn(19, 12), None)], taps=3)


def test_packed_states_stand_behind_each_other_and_end_with_zeros() -> None:
    parts = [States(torch.ones(2, 3), torch.ones(2, 4)), States(2 * torch.ones(1, 3), 2 * torch.ones(1, 4))]
    feature, last = packed(parts, 5)
    assert last is not None
    assert feature[:, 0].tolist() == [1, 1, 2, 0, 0] and last[:, 0].tolist() == [1, 1, 2, 0, 0]
