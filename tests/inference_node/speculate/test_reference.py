"""The reference target, where it is not like the others: what all do is in test_seam.py."""

import math

import pytest
import torch

from inference_node.lab.oracles import Oracle
from inference_node.speculate.seam import (
    Cut,
    MisuseOfTarget,
    NodeError,
    OutOfMemory,
    Sampling,
)
from tests.inference_node.helpers import generate, prompt

START = prompt(100)


@pytest.fixture
def right(loaded, monkeypatch):
    """right(family) -> a target whose drafts are always right, and its plain greedy text of 40 tokens."""

    def of(family: str = "qwen3_5_moe", weights: str = "fp32", rollback: str = "replay"):
        target = loaded(family, "none", weights, rollback).target
        plain = generate(target, START, Sampling(), 40, draft=False)
        monkeypatch.setattr(target.pair, "drafter", Oracle("always right", [*START, *plain], 504, 8))
        return target, plain

    return of


def begun(target, budget: int = 40, **options):
    target.reset()
    target.prefill(START[:-1])
    target.begin(START, Sampling(), budget=budget, **options)
    return target


def test_prefill_in_slices_has_the_bits_of_prefill_at_once(loaded):
    target = loaded("qwen3_5_moe", "june", "bf16").target
    tokens, sampling = prompt(250, seed=2), Sampling(temperature=1.0, seed=2)
    said = generate(target, tokens, sampling, 20)
    for size in (64, 128):
        target.reset()
        for first in range(0, 249, size):
            target.prefill(tokens[first : min(first + size, 249)])
        target.begin(tokens, sampling, budget=20)
        again: list[int] = []
        while (result := target.cycle().read()).cut is not Cut.IDLE:
            again += result.tokens
        assert again == said


def test_logits_that_are_not_finite_end_the_generation_with_words_and_leave_the_state_whole(right, monkeypatch):
    target, plain = right()
    begun(target)
    target.cycle()
    with monkeypatch.context() as broken:
        broken.setattr(target.pair.model, "logits", lambda hidden: torch.full((8, 504), math.nan))
        handle = target.cycle()
    with pytest.raises(NodeError, match="not finite"):
        handle.read()
    target.begin([*START, *plain[:8]], Sampling(), budget=8)
    assert list(target.cycle().read().tokens) == plain[8:16]


def test_nothing_works_after_close(fabricated):
    from inference_node.speculate.loading import load_reference

    target = load_reference(str(fabricated("llama").target), "none", weights="fp32", block=8).target
    target.prefill([1, 2, 3])
    kept = target.checkpoint()
    target.close()
    target.close()
    kept.release()
    with pytest.raises(MisuseOfTarget, match="reset after close"):
        target.reset()


def test_memory_that_runs_out_in_a_prefill_drops_the_sequence(right, monkeypatch):
    target, plain = right()

    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with monkeypatch.context() as broken:
        broken.setattr(target.pair.model, "tile", fail)
        with pytest.raises(OutOfMemory):
            target.prefill(START)
    assert target.position == 0 and generate(target, START, Sampling(), 40) == plain


def test_timings_tell_the_parts_of_a_cycle(right):
    target, _ = right("qwen3_5_moe")
    timings = begun(target).cycle().read().timings
    assert 0 < timings.verify_s < timings.total_s and timings.draft_s + timings.commit_s < timings.total_s
