"""Labels, anchors and masks of packed samples."""

from __future__ import annotations

from itertools import islice, zip_longest

import torch
from hypothesis import given
from hypothesis import strategies as st

from inference_node.train import arm as arms
from inference_node.train.batch import STRIDE, batches, candidates, groups, pack, rows_for
from inference_node.train.sample import Sample
from tests.inference_node.train.conftest import random_samples

ARM = arms.made({"block": 8, "rows": 128, "anchors": 40})


def batch_of(samples: list[Sample], seed: int = 0, **arm: object):
    return pack(samples, arms.made({**ARM.model_dump(), **arm}), torch.Generator().manual_seed(seed))


def test_slot_k_is_to_say_the_token_at_the_anchors_place_plus_k() -> None:
    """Known trap: labels shifted by one."""
    batch = batch_of(random_samples((50, 60)))
    for block in range(int(batch.real.sum())):
        place = int(batch.anchor[block])
        for slot in range(8):
            if batch.wanted[block, slot]:
                assert int(batch.labels[block, slot]) == int(batch.tokens[place + slot])
    assert not batch.wanted[:, 0].any(), "the anchor is given"


def test_the_last_token_of_a_prompt_is_an_anchor_and_the_one_before_it_is_not() -> None:
    sample = Sample("a", tuple(range(20, 40)), ((6, 20),))
    assert candidates(sample) == list(range(5, 19))


def test_nothing_outside_the_sample_or_unsupervised_counts() -> None:
    samples = [
        Sample("a", tuple(range(100, 130)), ((4, 10), (20, 30))),
        Sample("b", tuple(range(200, 220)), ((3, 20),)),
    ]
    batch = batch_of(samples)
    supervised = [place for place in samples[0].targets] + [30 + place for place in samples[1].targets]
    assert set(batch.place[batch.wanted].tolist()) <= set(supervised)
    same = batch.document[batch.place] == batch.document[batch.anchor][:, None]
    assert bool(same[batch.wanted].all())


def test_blocks_that_only_fill_up_count_for_nothing() -> None:
    batch = batch_of(random_samples((12,)))
    assert int(batch.real.sum()) == 8 and not batch.wanted[~batch.real].any()


def test_anchors_are_in_order() -> None:
    """Unsorted ones take flex attention's sparsity away (Speculators#823)."""
    batch = batch_of(random_samples((60, 60)))
    assert bool((batch.anchor[batch.real].diff() > 0).all())


@given(st.integers(0, 10**6))
def test_a_random_prefix_leaves_at_least_one_slot_and_shows_them_from_the_left(seed: int) -> None:
    masked = batch_of(random_samples((100,)), seed, corruption="prefix").masked
    shown = (~masked).long().sum(-1)
    assert int(shown.min()) >= 1 and int(shown.max()) <= 7
    assert bool((masked[:, 1:].long() >= masked[:, :-1].long()).all())


@given(st.integers(0, 10**6))
def test_uniform_corruption_leaves_at_least_one_slot(seed: int) -> None:
    masked = batch_of(random_samples((100,)), seed, corruption="uniform").masked
    assert int(masked.sum(-1).min()) >= 1 and not masked[:, 0].any()


def test_a_step_is_the_same_whether_the_run_began_there_or_came_by() -> None:
    samples = random_samples((20, 40, 60, 30, 50))
    through = list(islice(batches(samples, ARM), 7))
    later = list(islice(batches(samples, ARM, 4), 3))
    for one, other in zip(through[4:], later, strict=True):
        assert torch.equal(one.tokens, other.tokens) and torch.equal(one.anchor, other.anchor)
    assert not torch.equal(through[0].anchor, through[3].anchor)


def test_every_sample_that_fits_comes_once_an_epoch() -> None:
    samples = random_samples((20, 40, 60, 30, 50, 200))
    found: list[str] = []
    for batch in batches(samples, ARM):
        found += [sample.id for sample in batch.samples]
        if len(found) >= 5:
            break
    assert sorted(found[:5]) == ["s0", "s1", "s2", "s3", "s4"], "the one of 200 tokens does not fit 128 rows"


@given(st.lists(st.integers(1, 128), max_size=30), st.integers(1, 9))
def test_samples_stand_together_in_order_as_many_as_fit(lengths: list[int], most: int) -> None:
    samples = [Sample(str(i), (0,) * length, ()) for i, length in enumerate(lengths)]
    found = list(groups(samples, 128, most))
    assert [sample for group in found for sample in group] == samples
    for group, after in zip_longest(found, found[1:]):
        tokens = sum(len(sample.tokens) for sample in group)
        assert tokens <= 128 and 0 < len(group) <= most
        assert after is None or len(group) == most or tokens + len(after[0].tokens) > 128


def test_rows_are_the_arms_and_grow_in_strides_only_for_longer_texts() -> None:
    """Attention is compiled for each number of rows: texts a little longer must not each cost a minute."""
    assert rows_for(ARM, random_samples((128, 5))) == rows_for(ARM, []) == 128
    assert [rows_for(ARM, random_samples((length,))) for length in (129, STRIDE, STRIDE + 1)] == [
        STRIDE, STRIDE, 2 * STRIDE,
    ]  # fmt: skip
