"""The fast target on the plain twins of its kernels, where it is not like the others: what all do is in
speculate/test_seam.py."""

import pytest

from inference_node.lab.oracles import Oracle
from inference_node.speculate.seam import Cut, OutOfMemory, Sampling
from tests.inference_node.helpers import generate, prompt

START = prompt(70)
ROLLBACKS = ("fold", "snapshots", "replay")


@pytest.fixture
def right(fast, monkeypatch):
    """right(family) -> a target whose drafts are always right, and its plain greedy text of 34 tokens."""

    def of(family: str = "qwen3_5_moe", rollback: str = "fold"):
        target = fast(family, "none", "fp32", rollback).target
        monkeypatch.setattr(target, "host_drafter", None)
        plain = generate(target, START, Sampling(), 34, draft=False)
        monkeypatch.setattr(target, "host_drafter", Oracle("always right", [*START, *plain], 504, 8))
        return target, plain

    return of


def begun(target, budget: int = 34, **options):
    target.reset()
    target.prefill(START[:-1])
    target.begin(START, Sampling(), budget=budget, **options)
    return target


def rest(target) -> list[int]:
    said: list[int] = []
    while (result := target.cycle().read()).cut is not Cut.IDLE:
        said += result.tokens
    return said


def test_a_truncation_may_follow_the_end_of_the_text(right):
    """The engine launches a cycle more than there is text for: that one only folds."""
    for rollback in ROLLBACKS:
        target, plain = right("qwen3_5", rollback)
        begun(target, budget=12)
        for _ in range(3):
            last = target.cycle()
        assert last.read().cut is Cut.IDLE
        target.truncate(69 + 10)
        target.begin([*START, *plain[:10]], Sampling(), budget=6)
        assert rest(target) == plain[10:16]


def test_a_longer_segment_has_the_bits_of_single_tiles(fast, monkeypatch):
    target = fast("qwen3_5_moe", "june", "bf16").target
    tokens, sampling = prompt(250, seed=2), Sampling(temperature=1.0, seed=2)
    said = generate(target, tokens, sampling, 12)
    monkeypatch.setattr(target.runner, "segment", 192)
    assert generate(target, tokens, sampling, 12) == said


def test_rows_that_go_on_from_an_odd_place_have_the_bits_of_decoding(right):
    """After an answer the next prompt continues wherever it ended."""
    target, plain = right("qwen3_5")
    for chunked in (False, True):
        begun(target)
        target.reset()
        target.prefill(START[:-1])
        target.prefill([START[-1], *plain[:20]], chunked=chunked)
        target.begin([*START, *plain[:21]], Sampling(), budget=10)
        assert rest(target) == plain[21:31]


def test_when_the_pages_are_used_up_the_sequence_is_dropped_and_the_engine_told(fast):
    target = fast("qwen3", "none", context=200).target
    kept = []
    with pytest.raises(OutOfMemory, match="cache pages"):
        for token in range(1000):
            target.reset()
            target.prefill([token % 500])
            kept.append(target.checkpoint())
    for checkpoint in kept:
        checkpoint.release()
    assert target.position == 0 and len(generate(target, START, Sampling(), 4)) == 4
