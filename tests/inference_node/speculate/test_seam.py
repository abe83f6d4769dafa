"""What the engine may rely on, of every target that computes: the reference and the fast one, by the same cases."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from inference_node.lab.oracles import Oracle
from inference_node.speculate.seam import ContextFull, Cut, MisuseOfTarget, OutOfMemory, Sampling, Target
from tests.inference_node.helpers import POISONS, Grammar, generate, prompt

START = prompt(70)
SPOKEN = 34
ENGINES = ("reference", "fast")
ROLLBACKS = [
    ("reference", "replay"),
    ("reference", "snapshots"),
    ("fast", "fold"),
    ("fast", "snapshots"),
    ("fast", "replay"),
]


@dataclass(frozen=True)
class Kind:
    """One implementation, as far as tests must tell them apart."""

    engine: str
    load: Callable[..., Any]
    rollback: str
    drafter: Callable[[Any], tuple[Any, str]]  # where a target keeps the drafter that runs on the host
    step: Callable[[Any], tuple[Any, str]]  # something that every cycle calls


@pytest.fixture
def kinds(loaded, fast):
    import inference_node.speculate.reference as reference

    return {
        "reference": Kind(
            "reference", loaded, "replay", lambda target: (target.pair, "drafter"), lambda _: (reference, "run_round")
        ),
        "fast": Kind(
            "fast", fast, "fold", lambda target: (target, "host_drafter"),
            lambda target: (target.runner.model.parts, "paged_attention"),
        ),
    }  # fmt: skip


@pytest.fixture(params=ENGINES)
def kind(request, kinds) -> Kind:
    return kinds[request.param]


@pytest.fixture
def right(monkeypatch):
    """right(kind, family) -> a target whose drafts are always right, and its plain greedy text."""

    def of(kind: Kind, family: str = "qwen3_5_moe", rollback: str | None = None, weights: str = "fp32"):
        target = kind.load(family, "none", weights, rollback or kind.rollback).target
        plain = generate(target, START, Sampling(), SPOKEN, draft=False)
        monkeypatch.setattr(*kind.drafter(target), Oracle("always right", [*START, *plain], 504, 8))
        return target, plain

    return of


def begun(target: Any, budget: int = SPOKEN, **options: Any) -> Any:
    target.reset()
    target.prefill(START[:-1])
    target.begin(START, Sampling(), budget=budget, **options)
    return target


def rest(target: Any) -> list[int]:
    said: list[int] = []
    while (result := target.cycle().read()).cut is not Cut.IDLE:
        said += result.tokens
    return said


def test_it_is_a_target(kind):
    target: Target = kind.load("qwen3_5_moe").target
    facts = target.facts
    assert (facts.engine, facts.block, facts.drafter, facts.rollback) == (kind.engine, 8, "dflash", kind.rollback)
    assert kind.load("qwen3").target.facts.rollback == "none"
    assert facts.known_ids == 504 and facts.vocab == 512


def test_the_first_token_comes_from_the_first_cycle(kind, right):
    target, plain = right(kind)
    first = begun(target).cycle().read()
    assert first.start == 69 and first.tokens == tuple(plain[:8]) and first.offered == first.accepted == 7
    assert target.position == 77 == first.position


def test_the_verify_shrinks_at_the_end_of_a_budget(kind, right):
    """Bug class: cycles cut by the budget counted as if they had drafted a whole block."""
    target, plain = right(kind)
    begun(target, budget=11)
    first, second, third = (target.cycle().read() for _ in range(3))
    assert (first.offered, first.cut) == (7, Cut.NONE)
    assert (second.offered, second.accepted, second.cut) == (2, 2, Cut.BUDGET)
    assert (third.tokens, third.cut) == ((), Cut.IDLE)
    assert list(first.tokens + second.tokens) == plain[:11] and target.position == 69 + 11
    one = begun(target, budget=1).cycle().read()
    assert one.tokens == (plain[0],) and one.offered == 0 and one.cut is Cut.BUDGET


@pytest.mark.parametrize("place", [0, 3, 7, 8])
def test_a_stop_id_inside_a_block_ends_it_there(kind, right, place):
    target, plain = right(kind)
    stop = plain[place]
    begun(target, stop_ids=[stop])
    said, last = [], None
    while (result := target.cycle().read()).cut is not Cut.IDLE:
        said += result.tokens
        last = result
    assert said == plain[: plain.index(stop) + 1] and last.cut is Cut.STOP
    assert target.position == 69 + len(said), "the stop token has no row"


def test_reading_late_gives_the_same_as_reading_at_once(kind):
    target = kind.load("qwen3_5_moe").target
    said = generate(target, START, Sampling(), 30)
    begun(target, 30)
    handles = [target.cycle() for _ in range(30)]
    assert [token for handle in handles for token in handle.read().tokens] == said
    assert handles[0].read() == handles[0].read()


@pytest.mark.parametrize(
    ("engine", "family", "rollback"),
    [*((engine, "qwen3_5_moe", way) for engine, way in ROLLBACKS), *((engine, "qwen3", None) for engine in ENGINES)],
)
def test_after_a_truncation_generation_goes_on_as_if_the_rest_had_never_been(kinds, right, engine, family, rollback):
    """A stop string is seen one cycle late; the state must be what it was at the stop."""
    target, plain = right(kinds[engine], family, rollback)
    for back in (77, 78, 84, 85, 92, 93):
        begun(target)
        for _ in range(3):
            target.cycle()
        target.truncate(back)
        assert target.position == back
        target.begin([*START, *plain][: back + 1], Sampling(), budget=8, draft=False)
        assert rest(target) == plain[back + 1 - 70 :][:8], back


def test_truncate_reaches_no_further_than_the_cycle_before_last(kind, right):
    target, _ = right(kind)
    begun(target)
    for _ in range(3):
        target.cycle()
    with pytest.raises(MisuseOfTarget, match="can reach 77 to 93"):
        target.truncate(76)


@pytest.mark.parametrize(("engine", "rollback"), ROLLBACKS)
def test_a_checkpoint_holds_the_whole_state_and_can_be_used_again(kinds, right, engine, rollback):
    """Bug class: a checkpoint whose state is not that of exactly the committed length (sglang#32052)."""
    target, plain = right(kinds[engine], rollback=rollback)
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


@pytest.mark.parametrize(
    ("engine", "draft"),
    [
        *(("reference", draft) for draft in ("june", "dflash2", "mtp", "ngram")),
        *(("fast", draft) for draft in ("june", "dflash2", "mtp")),
    ],
)
def test_a_checkpoint_carries_the_drafters_state_too(kinds, engine, draft):
    """Bug class: acceptance falls with a prefix cache, drafter state lost (vllm#47930, #54163, #54360, z-lab#165)."""
    target = kinds[engine].load("qwen3_5", draft).target
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
def test_a_restored_prefill_has_the_bits_of_one_from_nothing(kind, weights):
    """Bug class: accuracy lost after a long prefix was restored (sglang#29368)."""
    target = kind.load("qwen3_5_moe", "none", weights).target
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


def test_rows_that_go_on_from_an_odd_place_have_the_bits_of_decoding(kind, right):
    """After an answer the next prompt continues wherever it ended."""
    target, plain = right(kind, "qwen3_5")
    target.reset()
    target.prefill(START[:-1])
    target.prefill([START[-1], *plain[:20]], chunked=False)
    target.begin([*START, *plain[:21]], Sampling(), budget=10)
    assert rest(target) == plain[21:31]


def test_taps_asked_for_come_back_in_order(kind):
    target = kind.load("qwen3_5_moe", "june").target
    target.reset()
    whole = target.prefill(START, tap_layers=[3, 1])
    assert whole.taps.shape == (70, 2, 64) and whole.rows == 70
    target.reset()
    assert torch.equal(target.prefill(START, tap_layers=[1]).taps[:, 0], whole.taps[:, 1])


@pytest.mark.parametrize(
    ("engine", "family", "draft", "rollback", "value"),
    [
        *(("reference", *pair, None, value) for value in POISONS
          for pair in (("qwen3_5_moe", "june"), ("qwen3", "dflash2"), ("qwen3_5", "mtp"))),
        *(("fast", "qwen3_5_moe", "june", "fold", value) for value in POISONS),
        *(("fast", "qwen3_5_moe", "june", way, POISONS[0]) for way in ("snapshots", "replay")),
        *(("fast", "qwen3_5", draft, "fold", POISONS[0]) for draft in ("mtp", "dflash2")),
    ],
)  # fmt: skip
def test_what_nobody_may_read_changes_no_bit_whatever_is_in_it(kinds, engine, family, draft, rollback, value):
    """Bug class: stale keys and values in freed cache slots still change logits (vllm#35219)."""
    kind = kinds[engine]
    target = kind.load(family, draft, "bf16", rollback or kind.rollback).target
    sampling = Sampling(temperature=1.0, seed=3, top_k=40)
    tokens, clean, dirty = prompt(250), [], []
    said = generate(target, tokens, sampling, 10, results=clean)
    assert generate(target, tokens, sampling, 10, poison=[value], results=dirty) == said
    assert [result.accepted for result in dirty] == [result.accepted for result in clean], "the same drafts"


def test_logprobs_are_given_for_each_token_when_asked_for(kind, right):
    target, _ = right(kind)
    with_them = begun(target, logprobs=3).cycle().read()
    assert [listed.token for listed in with_them.logprobs] == list(with_them.tokens)
    assert all(len(listed.top) == 3 and listed.top[0][1] == listed.logprob for listed in with_them.logprobs), "greedy"
    assert begun(target).cycle().read().logprobs == ()
    none = begun(target, logprobs=0).cycle().read()
    assert none.logprobs[0].top == () and none.logprobs[0].logprob < 0


def test_timings_and_experts_are_reported(kind, right):
    target, _ = right(kind)
    result = begun(target).cycle().read()
    assert result.timings.total_s > 0
    assert len(result.experts_woken) == 4 and all(4 <= count <= 8 for count in result.experts_woken)


@pytest.mark.parametrize("bound", [5, 400])
@pytest.mark.parametrize(("engine", "draft"), [("reference", "june"), ("fast", "june"), ("fast", "ngram")])
def test_under_a_grammar_only_allowed_ids_are_said_and_text_is_the_same_without_drafts(kinds, engine, draft, bound):
    target = kinds[engine].load("qwen3_5_moe", draft).target
    sampling = Sampling(temperature=1.2, seed=17)
    plain = Grammar(bound)
    expected = generate(target, START, sampling, 16, draft=False, constraint=plain)
    drafted = Grammar(bound)
    assert generate(target, START, sampling, 16, constraint=drafted) == expected == drafted.said == plain.said
    assert max(expected) < bound


def test_rows_after_a_draft_that_the_grammar_refuses_are_not_verified(kind, monkeypatch):
    target = kind.load("qwen3", "none").target
    start = prompt(40)
    plain = generate(target, start, Sampling(), 40, draft=False, constraint=Grammar(500))
    refused = next(i for i, token in enumerate(plain[:7]) if token >= 100)
    monkeypatch.setattr(*kind.drafter(target), Oracle("always right", [*start, *plain], 504, 8))
    results: list = []
    said = generate(target, start, Sampling(), 10, constraint=Grammar(100), results=results)
    assert results[0].offered == refused and max(said) < 100


class Broken(Grammar):
    def masks(self, drafts):
        if self.said:
            raise ValueError("no such rule")
        return super().masks(drafts)


def test_a_grammar_that_fails_ends_the_generation_with_its_error(kind):
    target = kind.load("qwen3_5_moe").target
    begun(target, 20, constraint=Broken(400)).cycle().read()
    with pytest.raises(ValueError, match="no such rule"):
        target.cycle().read()
    assert len(generate(target, START, Sampling(), 5)) == 5, "the next request is served"


def test_a_context_that_is_full_is_refused_with_both_numbers(kind):
    target = kind.load("qwen3", "none").target
    target.reset()
    with pytest.raises(ContextFull) as full:
        target.prefill([1] * 4097)
    assert full.value.asked == 4097 and full.value.context == 4096
    target.prefill(START[:-1])
    with pytest.raises(ContextFull):
        target.begin(START, Sampling(), budget=4096)
    target.begin(START, Sampling(), budget=4096 - 69)


def test_the_last_positions_of_a_context_can_be_used(kind):
    target = kind.load("qwen3", "june", context=100).target
    target.reset()
    target.prefill(START[:-1])
    target.begin(START, Sampling(), budget=31)
    assert len(rest(target)) == 31 and target.position == 100


def test_calls_in_the_wrong_order_are_refused(kind):
    target = kind.load("qwen3", "none").target
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


def test_a_checkpoint_of_another_target_is_refused(kind):
    one, other = kind.load("qwen3", "none").target, kind.load("qwen3", "ngram").target
    one.reset()
    with pytest.raises(MisuseOfTarget, match="another target's"):
        other.restore(one.checkpoint())


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), MemoryError()])
def test_out_of_memory_drops_the_sequence_and_the_next_request_is_served(kind, right, monkeypatch, error):
    target, plain = right(kind)
    begun(target)
    target.cycle().read()

    def fail(*args, **options):
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(*kind.step(target), fail)
        with pytest.raises(OutOfMemory, match="shorter prompt"):
            target.cycle().read()
    assert target.position == 0
    assert generate(target, START, Sampling(), SPOKEN) == plain
