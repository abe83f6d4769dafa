"""The fast target at the seam, on the plain twins of its kernels: what the engine may rely on."""

import pytest
import torch

from inference_node.lab.oracles import Oracle
from inference_node.speculate.seam import (
    ContextFull,
    Cut,
    MisuseOfTarget,
    OutOfMemory,
    Sampling,
    Target,
)
from tests.inference_node.helpers import POISONS, generate, prompt
from tests.inference_node.speculate.test_reference import Grammar

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


def test_it_is_a_target(fast):
    target: Target = fast("qwen3_5_moe").target
    assert target.facts.engine == "fast" and target.facts.block == 8 and target.facts.drafter == "dflash"
    assert target.facts.rollback == "fold" and fast("qwen3").target.facts.rollback == "none"
    assert target.facts.known_ids == 504 and target.facts.vocab == 512


def test_the_first_token_comes_from_the_first_cycle(right):
    target, plain = right()
    first = begun(target).cycle().read()
    assert first.start == 69 and first.tokens == tuple(plain[:8]) and first.offered == first.accepted == 7
    assert target.position == 77 == first.position


def test_the_verify_shrinks_at_the_end_of_a_budget(right):
    target, plain = right()
    begun(target, budget=11)
    first, second, third = (target.cycle().read() for _ in range(3))
    assert (first.offered, first.cut) == (7, Cut.NONE)
    assert (second.offered, second.accepted, second.cut) == (2, 2, Cut.BUDGET)
    assert (third.tokens, third.cut) == ((), Cut.IDLE)
    assert list(first.tokens + second.tokens) == plain[:11] and target.position == 69 + 11


@pytest.mark.parametrize("place", [0, 3, 7, 8])
def test_a_stop_id_inside_a_block_ends_it_there(right, place):
    target, plain = right()
    stop = plain[place]
    begun(target, stop_ids=[stop])
    said, last = [], None
    while (result := target.cycle().read()).cut is not Cut.IDLE:
        said += result.tokens
        last = result
    assert said == plain[: plain.index(stop) + 1] and last.cut is Cut.STOP
    assert target.position == 69 + len(said), "the stop token has no row"


def test_reading_late_gives_the_same_as_reading_at_once(fast):
    target = fast("qwen3_5_moe").target
    said = generate(target, START, Sampling(), 30)
    begun(target, 30)
    handles = [target.cycle() for _ in range(30)]
    assert [token for handle in handles for token in handle.read().tokens] == said
    assert handles[0].read() == handles[0].read()


@pytest.mark.parametrize(("family", "rollback"), [*(("qwen3_5_moe", way) for way in ROLLBACKS), ("qwen3", "fold")])
def test_after_a_truncation_generation_goes_on_as_if_the_rest_had_never_been(right, family, rollback):
    """A stop string is seen one cycle late; the state must be what it was at the stop."""
    target, plain = right(family, rollback)
    for back in (77, 78, 84, 85, 92, 93):
        begun(target)
        for _ in range(3):
            target.cycle()
        target.truncate(back)
        assert target.position == back
        target.begin([*START, *plain][: back + 1], Sampling(), budget=8, draft=False)
        assert rest(target) == plain[back + 1 - 70 :][:8], back


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


def test_truncate_reaches_no_further_than_the_cycle_before_last(right):
    target, _ = right()
    begun(target)
    for _ in range(3):
        target.cycle()
    with pytest.raises(MisuseOfTarget, match="can reach 77 to 93"):
        target.truncate(76)


@pytest.mark.parametrize("rollback", ROLLBACKS)
def test_a_checkpoint_holds_the_whole_state_and_can_be_used_again(right, rollback):
    target, plain = right("qwen3_5_moe", rollback)
    begun(target)
    target.cycle()
    kept = target.checkpoint()
    assert kept.position == 77 and not kept.from_prefill and kept.own_bytes > 0 and kept.shared_bytes
    goes_on = [token for _ in range(2) for token in target.cycle().read().tokens]
    assert goes_on == plain[8:24], "a checkpoint does not disturb the generation"
    for _ in range(2):
        target.reset()
        target.prefill(prompt(300, seed=5))
        target.restore(kept)
        target.begin([*START, *plain[:8]], Sampling(), budget=16)
        assert rest(target) == plain[8:24]
    kept.release()
    kept.release()
    with pytest.raises(MisuseOfTarget, match="released"):
        target.restore(kept)


def test_a_checkpoint_carries_the_drafters_state_too(fast):
    """Bug class: acceptance collapses with a prefix cache, drafter state not restored (vllm#47930, z-lab#165)."""
    target = fast("qwen3_5").target
    results, again = [], []
    sampling = Sampling(temperature=0.9, seed=6)
    said = generate(target, START, sampling, 20, results=results)
    target.reset()
    target.prefill(START[:64])
    kept = target.checkpoint()
    assert kept.from_prefill
    generate(target, prompt(130, seed=8), Sampling(), 10)
    target.restore(kept)
    target.prefill(START[64:-1])
    target.begin(START, sampling, budget=20)
    while (result := target.cycle().read()).cut is not Cut.IDLE:
        again.append(result)
    assert [token for result in again for token in result.tokens] == said
    assert [result.accepted for result in again] == [result.accepted for result in results], "the same drafts"
    kept.release()


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_a_restored_prefill_has_the_bits_of_one_from_nothing(fast, weights):
    target = fast("qwen3_5_moe", "none", weights).target
    tokens, sampling = prompt(290, seed=2), Sampling(temperature=1.0, seed=2)
    said = generate(target, tokens, sampling, 12)
    for cut in (64, 256):
        target.reset()
        target.prefill(tokens[:cut])
        kept = target.checkpoint()
        target.reset()
        target.restore(kept)
        target.prefill(tokens[cut:-1])
        target.begin(tokens, sampling, budget=12)
        assert rest(target) == said
        kept.release()


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


def test_taps_asked_for_come_back_in_order(fast):
    target = fast("qwen3_5_moe", "june").target
    target.reset()
    whole = target.prefill(START, tap_layers=[3, 1])
    assert whole.taps.shape == (70, 2, 64) and whole.rows == 70
    target.reset()
    assert torch.equal(target.prefill(START, tap_layers=[1]).taps[:, 0], whole.taps[:, 1])


@pytest.mark.parametrize(
    ("rollback", "value"), [*(("fold", value) for value in POISONS), *((way, POISONS[0]) for way in ROLLBACKS[1:])]
)
def test_what_nobody_may_read_changes_no_bit_whatever_is_in_it(fast, rollback, value):
    """Bug class: stale keys and values in freed cache slots still change logits (vllm#35219)."""
    target = fast("qwen3_5_moe", "june", "bf16", rollback).target
    sampling = Sampling(temperature=1.0, seed=3, top_k=40)
    tokens, clean, dirty = prompt(250), [], []
    said = generate(target, tokens, sampling, 10, results=clean)
    assert generate(target, tokens, sampling, 10, poison=[value], results=dirty) == said
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
    assert result.timings.total_s > 0
    assert len(result.experts_woken) == 4 and all(4 <= count <= 8 for count in result.experts_woken)


@pytest.mark.parametrize("bound", [5, 400])
@pytest.mark.parametrize("draft", ["june", "ngram"])
def test_under_a_grammar_only_allowed_ids_are_said_and_text_is_the_same_without_drafts(fast, bound, draft):
    target = fast("qwen3_5_moe", draft).target
    sampling = Sampling(temperature=1.2, seed=17)
    plain = Grammar(bound)
    expected = generate(target, START, sampling, 16, draft=False, constraint=plain)
    drafted = Grammar(bound)
    assert generate(target, START, sampling, 16, constraint=drafted) == expected == drafted.said == plain.said
    assert max(expected) < bound


def test_rows_after_a_draft_that_the_grammar_refuses_are_not_verified(fast, monkeypatch):
    target = fast("qwen3", "none").target
    start = prompt(40)
    plain = generate(target, start, Sampling(), 40, draft=False, constraint=Grammar(500))
    refused = next(i for i, token in enumerate(plain[:7]) if token >= 100)
    monkeypatch.setattr(target, "host_drafter", Oracle("always right", [*start, *plain], 504, 8))
    results: list = []
    said = generate(target, start, Sampling(), 10, constraint=Grammar(100), results=results)
    assert results[0].offered == refused and max(said) < 100


class Broken(Grammar):
    def masks(self, drafts):
        if self.said:
            raise ValueError("no such rule")
        return super().masks(drafts)


def test_a_grammar_that_fails_ends_the_generation_with_its_error(fast):
    target = fast("qwen3_5_moe").target
    target.reset()
    target.prefill(START[:-1])
    target.begin(START, Sampling(), budget=20, constraint=Broken(400))
    target.cycle().read()
    with pytest.raises(ValueError, match="no such rule"):
        target.cycle().read()
    assert len(generate(target, START, Sampling(), 5)) == 5, "the next request is served"


def test_a_context_that_is_full_is_refused_with_both_numbers(fast):
    target = fast("qwen3", "none").target
    target.reset()
    with pytest.raises(ContextFull) as full:
        target.prefill([1] * 4097)
    assert full.value.asked == 4097 and full.value.context == 4096
    target.prefill(START[:-1])
    with pytest.raises(ContextFull):
        target.begin(START, Sampling(), budget=4096)
    target.begin(START, Sampling(), budget=4096 - 69)


def test_the_last_positions_of_a_context_can_be_used(fast):
    target = fast("qwen3", "june", context=100).target
    target.reset()
    target.prefill(START[:-1])
    target.begin(START, Sampling(), budget=31)
    assert len(rest(target)) == 31 and target.position == 100


def test_calls_in_the_wrong_order_are_refused(fast):
    target = fast("qwen3", "none").target
    target.reset()
    with pytest.raises(MisuseOfTarget, match="cycle without begin"):
        target.cycle()
    target.prefill(START[:-1])
    for committed in (START[:-1], [*START, 3], [*START[:50], 9, *START[51:]]):
        with pytest.raises(MisuseOfTarget, match="not the 69 rows held"):
            target.begin(committed, Sampling(), budget=1)
    with pytest.raises(MisuseOfTarget, match="budget=0"):
        target.begin(START, Sampling(), budget=0)
    with pytest.raises(MisuseOfTarget, match="token id 512"):
        target.prefill([512])
    target.begin(START, Sampling(), budget=5)
    target.cycle()
    target.truncate(69)
    with pytest.raises(MisuseOfTarget, match="cycle without begin"):
        target.cycle()


def test_a_checkpoint_of_another_target_is_refused(fast):
    one, other = fast("qwen3", "none").target, fast("qwen3", "ngram").target
    one.reset()
    with pytest.raises(MisuseOfTarget, match="another target's"):
        other.restore(one.checkpoint())


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), MemoryError()])
def test_out_of_memory_drops_the_sequence_and_the_next_request_is_served(fast, monkeypatch, error):
    target = fast("qwen3_5_moe").target
    said = generate(target, START, Sampling(), 8)

    def fail(*args, **options):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(target.runner.model.parts, "attend", fail)
        target.reset()
        target.prefill(START[:-1])
        target.begin(START, Sampling(), budget=8)
        with pytest.raises(OutOfMemory, match="no memory left"):
            target.cycle().read()
    assert target.position == 0 and generate(target, START, Sampling(), 8) == said


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
