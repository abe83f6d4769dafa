"""The reference target at the seam: what the engine may rely on."""

import math

import pytest
import torch

from inference_node.lab.oracles import Oracle
from inference_node.speculate import reference
from inference_node.speculate.seam import (
    ContextFull,
    Cut,
    MisuseOfTarget,
    NodeError,
    OutOfMemory,
    Sampling,
    Target,
)
from tests.inference_node.helpers import POISONS, generate, prompt

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


def test_it_is_a_target(loaded):
    target: Target = loaded("qwen3_5_moe").target
    assert target.facts.engine == "reference" and target.facts.block == 8 and target.facts.drafter == "dflash"
    assert target.facts.rollback == "replay" and loaded("qwen3").target.facts.rollback == "none"


def test_the_first_token_comes_from_the_first_cycle(right):
    target, plain = right()
    first = begun(target).cycle().read()
    assert first.start == 99 and first.tokens == tuple(plain[:8]) and first.offered == first.accepted == 7
    assert target.position == 107 == first.position


def test_the_verify_shrinks_at_the_end_of_a_budget(right):
    """Bug class: cycles cut by the budget counted as if they had drafted a whole block."""
    target, plain = right()
    begun(target, budget=11)
    first, second, third = (target.cycle().read() for _ in range(3))
    assert (first.offered, first.cut) == (7, Cut.NONE)
    assert (second.offered, second.accepted, second.cut) == (2, 2, Cut.BUDGET)
    assert (third.tokens, third.cut) == ((), Cut.IDLE)
    assert list(first.tokens + second.tokens) == plain[:11] and target.position == 99 + 11


@pytest.mark.parametrize("place", [0, 3, 7, 8])
def test_a_stop_id_inside_a_block_ends_it_there(right, place):
    target, plain = right()
    stop = plain[place]
    begun(target, stop_ids=[stop])
    said, last = [], None
    while (result := target.cycle().read()).cut is not Cut.IDLE:
        said += result.tokens
        last = result
    first = plain.index(stop)
    assert said == plain[: first + 1] and last.cut is Cut.STOP
    assert target.position == 99 + len(said), "the stop token has no row"


def test_a_budget_of_one_verifies_one_row(right):
    target, plain = right()
    result = begun(target, budget=1).cycle().read()
    assert result.tokens == (plain[0],) and result.offered == 0 and result.cut is Cut.BUDGET


def test_reading_late_gives_the_same_as_reading_at_once(right):
    target, plain = right()
    begun(target)
    handles = [target.cycle() for _ in range(6)]
    assert [token for handle in handles for token in handle.read().tokens] == plain
    assert handles[0].read() == handles[0].read()


@pytest.mark.parametrize("family", ["qwen3_5_moe", "qwen3"])
@pytest.mark.parametrize("rollback", ["replay", "snapshots"])
def test_after_a_truncation_generation_goes_on_as_if_the_rest_had_never_been(right, family, rollback):
    """A stop string is seen one cycle late; the state must be what it was at the stop."""
    target, plain = right(family, rollback=rollback)
    for back in range(99 + 8, 99 + 25):
        begun(target)
        for _ in range(3):
            target.cycle()
        target.truncate(back)
        committed = [*START, *plain][: back + 1]
        target.begin(committed, Sampling(), budget=8, draft=False)
        said = [token for _ in range(8) for token in target.cycle().read().tokens]
        assert said == plain[back + 1 - 100 :][:8], back


def test_truncate_reaches_no_further_than_the_cycle_before_last(right):
    target, _ = right()
    begun(target)
    for _ in range(3):
        target.cycle()
    with pytest.raises(MisuseOfTarget, match="can reach 107 to 123"):
        target.truncate(106)


def test_a_checkpoint_holds_the_whole_state_and_can_be_used_again(right):
    """Bug class: a checkpoint whose state is not that of exactly the committed length (sglang#32052)."""
    target, plain = right()
    begun(target)
    target.cycle()
    kept = target.checkpoint()
    assert kept.position == 107 and not kept.from_prefill and kept.own_bytes > 0 and kept.shared_bytes
    for _ in range(2):
        target.reset()
        target.prefill(prompt(300, seed=5))
        target.restore(kept)
        target.begin([*START, *plain[:8]], Sampling(), budget=16)
        assert [token for _ in range(2) for token in target.cycle().read().tokens] == plain[8:24]
    kept.release()
    kept.release()
    with pytest.raises(MisuseOfTarget, match="released"):
        target.restore(kept)


@pytest.mark.parametrize("draft", ["june", "dflash2", "mtp", "ngram"])
def test_a_checkpoint_carries_the_drafters_state_too(loaded, draft):
    """Bug class: acceptance falls with a prefix cache, drafter state lost (vllm#47930, #54163, #54360, z-lab#165)."""
    target = loaded("qwen3_5", draft, "fp32").target
    results, again = [], []
    sampling = Sampling(temperature=0.9, seed=6)
    said = generate(target, START, sampling, 20, results=results)
    target.reset()
    target.prefill(START[:64])
    kept = target.checkpoint()
    assert kept.from_prefill
    generate(target, prompt(200, seed=8), Sampling(), 20)
    target.restore(kept)
    target.prefill(START[64:-1])
    target.begin(START, sampling, budget=20)
    while (result := target.cycle().read()).cut is not Cut.IDLE:
        again.append(result)
    assert [token for result in again for token in result.tokens] == said
    assert [result.accepted for result in again] == [result.accepted for result in results], "the same drafts"
    kept.release()


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
@pytest.mark.parametrize("family", ["qwen3_5_moe", "qwen3"])
def test_a_restored_prefill_has_the_bits_of_one_from_nothing(loaded, family, weights):
    """Bug class: accuracy lost after a long prefix was restored (sglang#29368)."""
    target = loaded(family, "none", weights).target
    tokens, sampling = prompt(290, seed=2), Sampling(temperature=1.0, seed=2)
    said = generate(target, tokens, sampling, 20)
    for cut in (64, 256):
        target.reset()
        target.prefill(tokens[:cut])
        kept = target.checkpoint()
        target.reset()
        target.restore(kept)
        target.prefill(tokens[cut:-1])
        target.begin(tokens, sampling, budget=20)
        assert [token for _ in range(20) for token in target.cycle().read().tokens] == said
        kept.release()


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


def test_prefill_that_is_not_chunked_has_the_bits_of_decoding(right):
    target, plain = right("qwen3_5", "bf16")
    begun(target)
    target.cycle()
    target.reset()
    target.prefill(START[:-1])
    target.prefill([START[-1], *plain[:7]], chunked=False)
    target.begin([*START, *plain[:8]], Sampling(), budget=16, draft=False)
    assert [token for _ in range(16) for token in target.cycle().read().tokens] == plain[8:24]


def test_taps_asked_for_come_back_in_order(loaded):
    target = loaded("qwen3_5_moe", "june").target
    target.reset()
    whole = target.prefill(START, tap_layers=[3, 1])
    assert whole.taps.shape == (100, 2, 64) and whole.rows == 100
    target.reset()
    assert torch.equal(target.prefill(START, tap_layers=[1]).taps[:, 0], whole.taps[:, 1])


@pytest.mark.parametrize("value", POISONS)
@pytest.mark.parametrize(("family", "draft"), [("qwen3_5_moe", "june"), ("qwen3", "dflash2"), ("qwen3_5", "mtp")])
def test_rows_that_nobody_may_read_change_no_bit_whatever_is_in_them(loaded, family, draft, value):
    """Bug class: stale keys and values in freed cache slots still change logits (vllm#35219)."""
    target = loaded(family, draft, "bf16").target
    sampling = Sampling(temperature=1.0, seed=3)
    tokens, clean, dirty = prompt(250), [], []
    said = generate(target, tokens, sampling, 24, results=clean)
    assert generate(target, tokens, sampling, 24, poison=[value], results=dirty) == said
    assert [result.accepted for result in dirty] == [result.accepted for result in clean], "the same drafts"


def test_logprobs_are_given_for_each_token_when_asked_for(right):
    target, _ = right()
    with_them = begun(target, logprobs=3).cycle().read()
    assert [listed.token for listed in with_them.logprobs] == list(with_them.tokens)
    assert all(len(listed.top) == 3 and listed.top[0][1] == listed.logprob for listed in with_them.logprobs), "greedy"
    assert begun(target).cycle().read().logprobs == ()
    none = begun(target, logprobs=0).cycle().read()
    assert none.logprobs[0].top == () and none.logprobs[0].logprob < 0


def test_timings_and_experts_are_reported(right):
    target, _ = right("qwen3_5_moe")
    result = begun(target).cycle().read()
    timings = result.timings
    assert 0 < timings.verify_s < timings.total_s and timings.draft_s + timings.commit_s < timings.total_s
    assert len(result.experts_woken) == 4 and all(4 <= count <= 8 for count in result.experts_woken)


class Grammar:
    """Allows ids below a bound, and one forbidden at the third row of each walk."""

    def __init__(self, bound: int, words: int = 16) -> None:
        self.bound, self.words = bound, words
        self.said: list[int] = []
        self.walked: list[tuple[int, ...]] = []

    def masks(self, drafts):
        self.walked.append(tuple(drafts))
        rows = 1 + next((i for i, token in enumerate(drafts) if token >= self.bound), len(drafts))
        bits = torch.zeros(self.words * 32, dtype=torch.int64)
        bits[: self.bound] = 1
        words = (bits.view(self.words, 32) << torch.arange(32)).sum(-1)
        return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).expand(min(rows, len(drafts) + 1), -1)

    def advance(self, tokens):
        assert all(token < self.bound for token in tokens)
        self.said += tokens


@pytest.mark.parametrize("bound", [5, 100, 400])
def test_under_a_grammar_only_allowed_ids_are_said_and_text_is_the_same_without_drafts(loaded, bound):
    target = loaded("qwen3_5_moe", "june", "fp32").target
    sampling = Sampling(temperature=1.2, seed=17)
    plain = Grammar(bound)
    expected = generate(target, START, sampling, 20, draft=False, constraint=plain)
    drafted = Grammar(bound)
    assert generate(target, START, sampling, 20, constraint=drafted) == expected == drafted.said == plain.said
    assert max(expected) < bound


def test_rows_after_a_draft_that_the_grammar_refuses_are_not_verified(loaded, monkeypatch):
    target = loaded("qwen3", "none", "fp32").target
    start = prompt(40)
    plain = generate(target, start, Sampling(), 40, draft=False, constraint=Grammar(500))
    refused = next(i for i, token in enumerate(plain[:7]) if token >= 100)
    monkeypatch.setattr(target.pair, "drafter", Oracle("always right", [*start, *plain], 504, 8))
    results: list = []
    said = generate(target, start, Sampling(), 10, constraint=Grammar(100), results=results)
    assert results[0].offered == refused and max(said) < 100


def test_a_context_that_is_full_is_refused_with_both_numbers(loaded):
    target = loaded("qwen3", "none", "fp32").target
    target.reset()
    with pytest.raises(ContextFull) as full:
        target.prefill([1] * 4097)
    assert full.value.asked == 4097 and full.value.context == 4096
    target.prefill(START[:-1])
    with pytest.raises(ContextFull):
        target.begin(START, Sampling(), budget=4096)
    target.begin(START, Sampling(), budget=4096 - 99)


def test_calls_in_the_wrong_order_are_refused(loaded):
    target = loaded("qwen3", "none", "fp32").target
    target.reset()
    with pytest.raises(MisuseOfTarget, match="cycle without begin"):
        target.cycle()
    target.prefill(START[:-1])
    for committed in (START[:-1], [*START, 3], [*START[:50], 9, *START[51:]]):
        with pytest.raises(MisuseOfTarget, match="not the 99 rows held"):
            target.begin(committed, Sampling(), budget=1)
    with pytest.raises(MisuseOfTarget, match="budget=0"):
        target.begin(START, Sampling(), budget=0)
    with pytest.raises(MisuseOfTarget, match="token id 512"):
        target.prefill([512])
    target.begin(START, Sampling(), budget=5)
    target.cycle()
    target.truncate(99)
    with pytest.raises(MisuseOfTarget, match="cycle without begin"):
        target.cycle()


def test_a_checkpoint_of_another_target_is_refused(loaded):
    one, other = loaded("qwen3", "none", "fp32").target, loaded("qwen3", "ngram", "fp32").target
    one.reset()
    with pytest.raises(MisuseOfTarget, match="another target's"):
        other.restore(one.checkpoint())


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), MemoryError()])
def test_out_of_memory_drops_the_sequence_and_the_next_request_is_served(right, monkeypatch, error):
    target, plain = right()
    begun(target)
    target.cycle()

    def fail(*_):
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(reference, "run_round", fail)
        handle = target.cycle()
    with pytest.raises(OutOfMemory, match="shorter prompt"):
        handle.read()
    assert target.position == 0
    with monkeypatch.context() as broken:
        broken.setattr(target.pair.model, "tile", fail)
        with pytest.raises(OutOfMemory):
            target.prefill(START)
    assert generate(target, START, Sampling(), 40) == plain


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
