"""The engine over a target without a model: order, cancelling, failures, what is taken back and what is kept."""

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from inference_node.engine.api import (
    EmptyPrompt,
    Ended,
    NotReady,
    OutOfMemory,
    Piece,
    PromptTooLong,
    QueueFull,
    Reason,
    Started,
    State,
    UnknownToken,
    Why,
    tools_grammar,
)
from inference_node.engine.calls import ToolForm, tool_from
from inference_node.engine.engine import Engine
from inference_node.speculate.scripted import ScriptedTarget, scripted_facts
from inference_node.speculate.seam import CHUNK
from tests.inference_node.engine.conftest import FACTS, Bench, says
from tests.inference_node.engine.toy import END, ids, toy

Make = Callable[..., Bench]


def test_an_answer_ends_with_the_end_of_turn_token(bench: Make) -> None:
    text, ending = bench("Hello there.").say()
    assert text == "Hello there."
    assert (ending.reason, ending.stopped_by) == (Reason.STOP, END)
    assert ending.completion == (*ids("Hello there."), END)
    assert ending.kept == ending.completion


def test_the_budget_ends_an_answer_with_length(bench: Make) -> None:
    text, ending = bench("Hello there.").say(max_tokens=5)
    assert (text, ending.reason, len(ending.completion)) == ("Hello", Reason.LENGTH, 5)


def test_the_context_limits_an_answer_that_names_no_budget(bench: Make) -> None:
    made = bench("x" * 500, facts=scripted_facts(vocab=320, known_ids=265, stop_ids=(END,), context=100))
    text, ending = made.say("a" * 60)
    assert ending.reason is Reason.LENGTH
    assert len(text) == 100 - 59


@pytest.mark.parametrize("accepts", [(0,), (1,), (2, 0, 5), (7,)])
@pytest.mark.parametrize("stop", ["STOP", "S", "OP th", "."])
def test_a_stop_string_ends_the_text_whatever_a_cycle_commits(bench: Make, accepts: tuple[int, ...], stop: str) -> None:
    script = "Say it STOP then more. And more"
    text, ending = bench(script, accepts=accepts).say(stop=(stop,))
    assert text == script.partition(stop)[0]
    assert (ending.reason, ending.stopped_by) == (Reason.STOP, stop)
    assert toy().decode(ending.kept) == text
    assert toy().decode(ending.completion) == text + stop


def test_an_engine_reads_one_cycle_behind(bench: Make) -> None:
    """facts/engines.md 5.3: finish checks off the critical path."""
    made = bench("a long enough answer", accepts=(1,))
    made.say()
    calls = [call for call in made.target.calls if call in ("cycle", "read")]
    assert calls[:5] == ["cycle", "cycle", "read", "cycle", "read"]
    assert all("cycle" in pair for pair in pairwise(calls[:-1]))


def test_tokens_and_logprobs_come_with_their_text(bench: Make) -> None:
    client = bench("Hé!").send(logprobs=0)
    client.ending()
    said = [token for event in client.events if isinstance(event, Piece) for token in event.tokens]
    assert [token.id for token in said] == ids("Hé!")
    assert all(token.logprob == -0.5 for token in said)
    for event in client.events:
        if isinstance(event, Piece):
            assert event.text.encode() == b"".join(token.bytes for token in event.tokens)


def test_events_come_in_order_and_the_end_is_the_last(bench: Make) -> None:
    client = bench("Hello").send()
    client.ending()
    assert isinstance(client.events[0], Started)
    assert isinstance(client.events[-1], Ended)
    assert all(isinstance(event, Piece) for event in client.events[1:-1])


def test_prompts_that_cannot_be_served_are_refused_at_once(bench: Make) -> None:
    made = bench()
    with pytest.raises(EmptyPrompt):
        made.send([])
    with pytest.raises(UnknownToken, match="300"):
        made.send([5, 300])
    with pytest.raises(UnknownToken, match="-1"):
        made.send([-1])
    with pytest.raises(PromptTooLong) as refused:
        made.send([5] * 2049)
    assert (refused.value.prompt_tokens, refused.value.context) == (2049, 2048)
    assert made.say()[0] == "Hello there."


def test_a_full_queue_refuses_with_a_time_to_come_back(bench: Make) -> None:
    """llama.cpp#23652: without a limit requests share what there is until one aborts all."""
    gate = threading.Event()
    made = bench(queue_limit=2, before=lambda call, n: gate.wait(10) if call == "begin" else None)
    first = made.send()
    while made.engine.health().running == 0:
        time.sleep(0.005)
    waiting = [made.send(), made.send()]
    with pytest.raises(QueueFull) as refused:
        made.send()
    assert refused.value.retry_after_s >= 1
    gate.set()
    assert {client.ending().reason for client in [first, *waiting]} == {Reason.STOP}
    assert made.engine.stats().refused_full == 1


def test_one_clients_many_requests_do_not_starve_another(bench: Make) -> None:
    gate = threading.Event()
    made = bench(before=lambda call, n: gate.wait(10) if call == "begin" else None)
    order: list[str] = []
    greedy = [made.send(client="greedy") for _ in range(6)]
    late = made.send(client="late")
    for name, clients in (("greedy", greedy), ("late", [late])):
        for client in clients:
            wrapped = client.arrived.put
            client.arrived.put = lambda event, name=name, wrapped=wrapped: (  # type: ignore[method-assign]
                order.append(name) if isinstance(event, Ended) else None,
                wrapped(event),
            )
    gate.set()
    for client in [*greedy, late]:
        client.ending()
    assert order.index("late") <= 2


def test_a_cancel_is_noticed_within_one_cycle(bench: Make) -> None:
    """engines.md 6.5: notice within one cycle."""
    made = bench("x" * 1500, cycle_s=0.01)
    client = made.send()
    client.wait_for(Piece)
    cycles = made.target.calls.count("cycle")
    assert client.ticket is not None
    client.ticket.cancel()
    ending = client.ending()
    assert ending.reason is Reason.CANCELLED
    assert made.target.calls.count("cycle") - cycles <= 3  # one being read, one ahead, one by the race of this test
    client.ticket.cancel()  # again, after the end: harmless


def test_a_cancel_while_the_prompt_is_read_stops_at_the_next_slice(bench: Make) -> None:
    """ik_llama.cpp#1020: a server that could not be cancelled during prefill."""
    made = bench(prefill_s_per_token=0.001, slice_rows=64)
    client = made.send("p" * 2000)
    client.wait_for(Started)
    assert client.ticket is not None
    client.ticket.cancel()
    assert client.ending().reason is Reason.CANCELLED
    assert made.target.calls.count("prefill") < 10
    reuse = made.say("p" * 2000)[1].reuse
    assert reuse.restored > 0  # what was computed is kept for the next try


def test_a_waiting_request_that_is_cancelled_never_touches_the_running_one(bench: Make) -> None:
    """engines.md 6.5: never let a queued client's disconnect touch the running one."""
    made = bench("x" * 300, cycle_s=0.002)
    running = made.send()
    running.wait_for(Piece)
    queued = made.send("other")
    assert queued.ticket is not None
    queued.ticket.cancel()
    assert queued.ending().reason is Reason.CANCELLED
    assert running.ending().reason is Reason.STOP
    assert running.text == "x" * 300


def test_a_caller_that_raises_is_a_caller_that_has_gone(bench: Make) -> None:
    made = bench("x" * 1000, cycle_s=0.001)
    from inference_node.engine.api import Request

    def broken(event: Any) -> None:
        raise RuntimeError("gone")

    made.engine.submit(Request(prompt=tuple(ids("Hi"))), broken)
    text, _ = made.say()
    assert text == "x" * 1000
    assert made.engine.stats().endings[Reason.CANCELLED] == 1


@pytest.mark.parametrize("call", ["restore", "reset", "prefill", "begin", "cycle", "read", "truncate", "checkpoint"])
@pytest.mark.parametrize("error", [OutOfMemory("no room"), RuntimeError("a bug")])
def test_a_failure_at_any_call_ends_that_request_and_the_next_is_served(
    bench: Make, call: str, error: Exception
) -> None:
    """NousResearch/hermes-agent and others: one out-of-memory request wedged the whole server."""
    made = bench("Hello STOP there", accepts=(7,))
    made.say("p" * 200, stop=("STOP",))  # something is stored now
    failed: list[str] = []

    def fail_once(name: str, _: int) -> None:
        if name == call and not failed:
            failed.append(name)
            raise error

    made.target.before = fail_once
    client = made.send("p" * 200 + "q" * 100, stop=("STOP",))
    ending = client.ending()
    if failed:
        told = isinstance(error, OutOfMemory)
        retried = told and call in ("restore", "prefill", "begin", "cycle", "read")
        if ending.reason is Reason.FAILED:
            assert ending.error is error
        else:
            assert retried or call in ("checkpoint", "truncate")
            assert client.text == "Hello "
    made.target.before = None
    text, ending = made.say("p" * 200 + "q" * 100, stop=("STOP",))
    assert (text, ending.reason) == ("Hello ", Reason.STOP)
    assert made.engine.health().state is State.READY


def test_out_of_memory_empties_the_store_and_tries_once_more(bench: Make) -> None:
    made = bench("Hello")
    made.say("p" * 300)
    thrown: list[int] = []

    def once(call: str, _: int) -> None:
        if call == "prefill" and not thrown:
            thrown.append(1)
            raise OutOfMemory("no room")

    made.target.before = once
    text, ending = made.say("p" * 300 + "q" * 300)
    assert (text, ending.reason) == ("Hello", Reason.STOP)
    assert made.engine.stats().out_of_memory == 1
    assert made.engine.stats().store.evicted == {Why.MEMORY: 2}


def test_a_device_that_does_not_recover_fails_the_engine_with_its_reason(bench: Make) -> None:
    made = bench("Hello")
    made.target.before = lambda call, _: (_ for _ in ()).throw(RuntimeError("the device is lost"))
    client = made.send()
    assert client.ending().reason is Reason.FAILED
    while made.engine.health().state is not State.FAILED:
        time.sleep(0.005)
    assert "the device is lost" in made.engine.health().why
    with pytest.raises(NotReady, match="the device is lost"):
        made.send()


def test_a_stalled_request_is_told(bench: Make) -> None:
    """am17an/llama.cpp#20: a slot stayed wedged for 14 hours and nothing said so."""
    gate = threading.Event()
    made = bench(stall_s=0.05, before=lambda call, n: gate.wait(10) if call == "begin" else None)
    client = made.send()
    deadline = time.monotonic() + 5
    while made.engine.health().stalled_s == 0.0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert made.engine.health().stalled_s > 0.05
    gate.set()
    client.ending()
    assert made.engine.health().stalled_s == 0.0


def test_requests_are_refused_with_the_reason_until_the_model_is_loaded() -> None:
    gate = threading.Event()
    target = ScriptedTarget(says("Hi"), facts=FACTS)

    def load(told: Any) -> Any:
        told("reading weights", 0.5)
        gate.wait(10)
        return target, toy()

    engine = Engine(load)
    deadline = time.monotonic() + 5
    while engine.health().progress == 0.0 and time.monotonic() < deadline:
        time.sleep(0.005)
    health = engine.health()
    assert (health.state, health.why, health.progress) == (State.LOADING, "reading weights", 0.5)
    with pytest.raises(NotReady, match="reading weights"):
        _ = engine.facts
    gate.set()
    assert engine.wait_until_loaded(10).state is State.READY
    engine.close()
    assert engine.health().state is State.CLOSED
    assert target.calls[-1] == "close"


def test_a_model_that_does_not_load_is_told_and_stays_told() -> None:
    def load(told: Any) -> Any:
        raise ValueError("tensor x is missing")

    engine = Engine(load)
    health = engine.wait_until_loaded(10)
    assert (health.state, health.why) == (State.FAILED, "ValueError: tensor x is missing")
    engine.close()


def test_closing_ends_the_running_request_and_refuses_the_waiting_ones(bench: Make) -> None:
    made = bench("x" * 2000, cycle_s=0.005)
    running = made.send()
    running.wait_for(Piece)
    waiting = made.send()
    made.engine.close()
    assert running.ending().reason is Reason.CANCELLED
    ending = waiting.ending()
    assert ending.reason is Reason.FAILED
    assert isinstance(ending.error, NotReady)


# Speculation's figures


def test_tau_counts_full_cycles_and_cut_ones_apart(bench: Make) -> None:
    """Cycles cut by a budget or a stop did not draft a full block: they would pull tau down."""
    _, ending = bench("x" * 100, accepts=(3,)).say(max_tokens=21)
    figures = ending.speculation
    assert figures.full_cycles + figures.cut_by_budget + figures.cut_by_stop == figures.cycles
    assert figures.tau == 4.0
    assert figures.cut_by_budget > 0
    assert figures.tau_all == pytest.approx(20 / figures.cycles)
    assert figures.accept_length == pytest.approx(21 / figures.cycles)
    assert figures.accepted_at[:3] == (figures.full_cycles + figures.cut_by_budget - 1,) * 3 or figures.accepted_at
    assert sum(figures.offered_at) == figures.drafted
    assert sum(figures.accepted_at) == figures.accepted


def test_totals_are_the_sums_over_requests(bench: Make) -> None:
    made = bench("Hello there.", accepts=(2,))
    endings = [made.say("a" * n)[1] for n in (10, 100, 100)]
    made.say("a" * 5)
    stats = made.engine.stats()
    assert stats.endings == {Reason.STOP: 4}
    assert stats.prompt_tokens == 215
    assert stats.speculation.cycles == 4 * endings[0].speculation.cycles
    assert len(stats.past) == 4
    assert all(past.arrived_s <= past.began_s <= (past.first_token_s or 0) <= past.ended_s for past in stats.past)


# Grammars


def test_under_a_grammar_the_answer_follows_it_whatever_the_model_says(bench: Make) -> None:
    tool = tool_from("f", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    made = bench("<tool_call>\n<function=g>\n<parameter=n>\n7\n</parameter>\n</function>\n</tool_call> and more")
    grammar = tools_grammar((tool,), ToolForm.XML, must_call=True, many=False, specials=made.engine.template.specials)
    text, ending = made.say(grammar=grammar)
    assert text == "<tool_call>\n<function=f>\n<parameter=n>\n7\n</parameter>\n</function>\n</tool_call>"
    assert ending.reason is Reason.STOP


# The prefix store, driven by requests


def test_the_next_turn_prefills_its_new_tokens_only(bench: Make) -> None:
    """llama.cpp keeps none while generating, so its next turn reads the previous answer again (engines.md 2.1)."""
    made = bench("An answer.")
    prompt = ids("u" * 300)
    _, first = made.say(prompt)
    assert (first.reuse.restored, first.reuse.why) == (0, Why.EMPTY)
    turn = [*prompt, *first.kept, *ids("v" * 50)]
    _, second = made.say(turn)
    assert second.reuse.restored == len(prompt) + len(first.kept) - 1
    assert second.reuse.why is Why.WHOLE
    assert (second.reuse.prefilled, second.reuse.new) == (51, 50)
    assert second.reuse.share == pytest.approx(51 / 50)
    assert not second.reuse.exact  # the checkpoint was made by decoding


def test_a_new_conversation_restarts_after_the_shared_system_prompt(bench: Make) -> None:
    """vllm#42317, #51198, #51250: no hits, because the one checkpoint landed past the shared part."""
    made = bench("Fine.")
    system = ids("s" * 500)
    made.say([*system, *ids("a" * 100)], boundaries=(0, 500))
    _, ending = made.say([*system, *ids("b" * 100)], boundaries=(0, 500))
    assert ending.reuse.restored == 500 // CHUNK * CHUNK
    assert ending.reuse.exact
    assert (ending.reuse.known, ending.reuse.parted_at) == (500, 500)


def test_checkpoints_of_a_prompt_sit_at_multiples_of_chunk_before_messages(bench: Make) -> None:
    made = bench("Fine.")
    kept: list[int] = []
    made.target.before = lambda call, _: kept.append(made.target.position) if call == "checkpoint" else None
    made.say(ids("s" * 700), boundaries=(0, 100, 130, 400, 690))
    assert kept[:-1] == [64, 128, 384, 640]


def test_a_stop_string_inside_a_block_is_taken_back_before_the_state_is_kept(bench: Make) -> None:
    made = bench("Hello. And this was never said", accepts=(7,))
    prompt = ids("u" * 100)
    _, first = made.say(prompt, stop=(".",))
    assert toy().decode(first.kept) == "Hello"
    _, second = made.say([*prompt, *first.kept, END, *ids("next")])
    assert second.reuse.restored == len(prompt) + len(first.kept) - 1


@pytest.mark.parametrize("accepts", [(0,), (1,), (7,)])
@pytest.mark.parametrize("stop", [".", "o.", "llo.", "ello. A"])
def test_what_is_kept_after_a_stop_string_does_not_depend_on_the_drafter(
    bench: Make, accepts: tuple[int, ...], stop: str
) -> None:
    """contracts-node.md: for one sequence of requests on one store, text never depends on drafter or width."""
    made = bench("Hello. And more", accepts=accepts)
    prompt = ids("u" * 100)
    _, first = made.say(prompt, stop=(stop,))
    _, second = made.say([*prompt, *first.kept, END, *ids("next")])
    kept_at = len(prompt) + len(first.kept) - 1
    assert second.reuse.restored == (kept_at if len(stop) <= 2 else 64)


BYTES = (ids("é")[0], ids("é")[1], ids("漢")[0], ids("🙂")[0])  # tokens that are part of a character


@settings(max_examples=40, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    said=st.lists(st.sampled_from([*"eé漢🙂 a", *BYTES, END]), min_size=1, max_size=24),
    stops=st.lists(st.sampled_from(["e", "é", "\ufffd", "ea", "漢", "🙂 ", "a é"]), min_size=1, max_size=3),
    patterns=st.tuples(*[st.lists(st.integers(0, 7), min_size=1, max_size=4)] * 2),
)
@example(said=["a", "é"], stops=["é"], patterns=([0], [7]))
@example(said=["a", BYTES[0], "e"], stops=["e"], patterns=([0], [7]))
@example(said=["a", BYTES[0]], stops=["\ufffd"], patterns=([0], [7]))
def test_a_stop_string_of_any_bytes_leaves_the_same_state_whatever_a_cycle_commits(
    bench: Make, said: list[str | int], stops: list[str], patterns: tuple[list[int], list[int]]
) -> None:
    """Found by half an hour of the soak: the first byte of a character can be the first of a stop string, too."""
    tokens = [token for part in said for token in ([part] if isinstance(part, int) else ids(part))]
    prompt = ids("u" * 100)
    found = []
    for accepts in patterns:
        made = bench(lambda _: [*tokens, *[END] * 999], accepts=tuple(accepts))
        text, first = made.say(prompt, stop=tuple(stops))
        assert first.reason is Reason.STOP, first.error
        assert not any(stop in text for stop in stops)
        _, second = made.say([*prompt, *first.kept, *ids("next")], max_tokens=2)
        found.append((text, first.kept, second.reuse.restored))
        made.engine.close()
    assert found[0] == found[1]


def test_a_cancelled_answer_still_serves_the_next_turn(bench: Make) -> None:
    """engines.md 6.5: free nothing the next turn wants."""
    made = bench("x" * 1500, cycle_s=0.002)
    prompt = ids("u" * 200)
    client = made.send(prompt)
    client.wait_for(Piece)
    assert client.ticket is not None
    client.ticket.cancel()
    first = client.ending()
    _, second = made.say([*prompt, *first.kept, *ids("go on")], max_tokens=3)
    assert second.reuse.restored == len(prompt) + len(first.kept) - 1


def test_an_exactly_repeated_prompt_runs_its_last_chunk_again(bench: Make) -> None:
    """sglang#21158: an identical prompt with zero hits."""
    made = bench("Fine.")
    prompt = ids("u" * 300)
    made.say(prompt)
    _, again = made.say(prompt)
    assert again.reuse.restored == 299 // CHUNK * CHUNK
    assert (again.reuse.known, again.reuse.new, again.reuse.share) == (300, 0, None)


@pytest.mark.parametrize("suffix", [1, 40, 63, 64, 65, 376, 1296])
def test_a_long_suffix_after_a_shared_prefix_still_hits(bench: Make, suffix: int) -> None:
    """sglang#22935: 0.992 hits for a 40-token suffix and none for 376 or 1296."""
    made = bench("Fine.")
    prompt = ids("u" * 320)
    made.say([*prompt, *ids("a" * 30)], boundaries=(320,))
    _, ending = made.say([*prompt, *ids("b" * suffix)], boundaries=(320,))
    assert ending.reuse.restored == 320


def test_cycles_that_jump_over_a_boundary_still_leave_a_checkpoint(bench: Make) -> None:
    """sglang#37817: speculative steps jumped over the tracking interval and no checkpoint was made."""
    made = bench("x" * 400, accepts=(7, 6, 5))
    prompt = ids("u" * 100)
    _, first = made.say(prompt, max_tokens=333)
    _, second = made.say([*prompt, *first.kept, *ids("?")], max_tokens=3)
    assert second.reuse.restored == len(prompt) + 333 - 1


def test_generated_tokens_are_part_of_the_key(bench: Make) -> None:
    """sglang#16521: a state was found by its prompt alone, though generated tokens were in it."""
    made = bench(says("one answer", "two answer", "fine"))
    prompt = ids("u" * 100)
    _, first = made.say(prompt)
    made.say(prompt)
    _, third = made.say([*prompt, *first.kept, *ids("next")])
    assert third.reuse.restored == len(prompt) + len(first.kept) - 1
    other = [*prompt, *ids("six answer"), END, *ids("next")]
    _, fourth = made.say(other)
    assert fourth.reuse.restored == 64
    assert fourth.reuse.parted_at == 100


def test_a_store_that_is_off_still_says_so(bench: Make) -> None:
    """llama.cpp#20153 and many others: a silent full re-prefill; here each has a reason."""
    made = bench("Fine.", prefix_bytes=0)
    made.say("u" * 300)
    _, ending = made.say("u" * 300)
    assert (ending.reuse.restored, ending.reuse.why) == (0, Why.OFF)
    assert "checkpoint" not in made.target.calls


def test_every_checkpoint_is_given_back_in_the_end(bench: Make) -> None:
    """sglang#16067, #20182, #23496, #26941: leaked slots."""
    made = bench("Fine.", prefix_bytes=20_000)
    alive: list[Any] = []
    real = made.target.checkpoint

    def counted() -> Any:
        point = real()
        alive.append(point)
        return point

    made.target.checkpoint = counted  # type: ignore[method-assign]
    for n in range(30):
        made.say(chr(97 + n % 26) * 200 + "x" * n, boundaries=(50, 100, 150))
    assert sum(not point.released for point in alive) == made.engine.stats().store.checkpoints
    made.engine.close()
    assert all(point.released for point in alive)
