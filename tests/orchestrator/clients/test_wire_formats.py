"""What servers really send, read into the accounting: wire/ has llama-server's as recorded, the others in their form.

llama-server: b11549 over SmolLM2. vLLM: without its own flag it tells no cached tokens, and never any times. llama-swap
passes on what llama-server says, behind a banner of its own as long as it loads the model.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.clients.inference import HttpChatModel
from review_agents.ports import BrokenAnswer, NodeAway, NodeRefused
from review_agents.records import Answer, AnswerEnd, Message, Question, Role
from review_agents.repetition import repeats_itself
from tests.support.endpoint import Endpoint, Handler, Reply

WIRE = Path(__file__).parent / "wire"


def answer_of(body: str) -> Answer:
    def reply(handler: Handler) -> None:
        handler.begin_stream()
        handler.wfile.write((WIRE / body).read_bytes())

    question = Question(messages=(Message(role=Role.USER, text="Hi"),), max_tokens=100, conversation="c")
    with Endpoint([reply]) as endpoint:
        return HttpChatModel(endpoint.url, repeats=repeats_itself, pause_s=0.01).ask(question, cancelled=lambda: False)


def test_llama_servers_text_with_what_it_had_cached_and_how_long_it_took() -> None:
    answer = answer_of("llama-server-text.sse")
    usage = answer.usage
    assert (answer.end, answer.text[:3]) == (AnswerEnd.STOP, "Hi.")
    assert (usage.prompt, usage.cached, usage.completion) == (12, 11, 7)
    assert (usage.prompt_s, usage.completion_s) == pytest.approx((0.039607, 0.463855))


def test_llama_servers_call_in_pieces_that_ends_for_want_of_room() -> None:
    answer = answer_of("llama-server-call.sse")
    (call,) = answer.calls
    assert (call.name, call.arguments, answer.end) == ("ready", '{"word": "yes"}', AnswerEnd.LENGTH)
    assert (answer.usage.prompt, answer.usage.cached, answer.usage.completion) == (243, 242, 24)


def test_vllms_thoughts_call_and_cached_tokens() -> None:
    answer = answer_of("vllm.sse")
    (call,) = answer.calls
    assert (answer.thought, answer.text) == ("The README says 3.11.", "I look.")
    assert (call.name, call.arguments, answer.end) == ("run", '{"command": "ls"}', AnswerEnd.CALLS)
    assert (answer.usage.prompt, answer.usage.cached, answer.usage.completion) == (5210, 5184, 41)
    assert answer.usage.prompt_s == 0 and answer.usage.completion_s == answer.usage.seconds, "it tells no times"


def test_vllm_that_tells_no_cached_tokens_is_read_as_none() -> None:
    usage = answer_of("vllm-without-details.sse").usage
    assert (usage.prompt, usage.cached, usage.completion) == (12, 0, 3)


def test_what_llama_swap_shows_while_it_loads_a_model_is_no_thought_of_the_model() -> None:
    answer = answer_of("llama-swap.sse")
    assert answer.thought == "A greeting." and "loading" not in answer.text
    assert answer.end is AnswerEnd.STOP and answer.usage.cached == 11 and answer.usage.prompt_s > 0


# What no server should send -------------------------------------------------------------------

GOOD = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}
DEEP = "[" * 100_000 + "]" * 100_000


def delta(**parts: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": parts, "finish_reason": "stop"}]}


ODD = {
    "choices that are a number": {"choices": 5},
    "choices that are an object": {"choices": {"a": 1}},
    "a choice that is a text": {"choices": ["x", None]},
    "a delta that is a text": {"choices": [{"delta": "x", "finish_reason": "stop"}]},
    "content that is a number": delta(content=5),
    "calls that are a text": delta(tool_calls="x"),
    "calls that are null": delta(tool_calls=[None, 5]),
    "a function that is a text": delta(tool_calls=[{"index": 0, "function": "run"}]),
    "a name that is an object": delta(tool_calls=[{"index": 0, "function": {"name": {"a": 1}, "arguments": [1]}}]),
    "details that are a list": {"usage": {"prompt_tokens": 5, "prompt_tokens_details": [1]}},
    "counts without an end": '{"usage": {"prompt_tokens": 1e999, "completion_tokens": NaN}}',
    "counts below nothing": {"usage": {"prompt_tokens": -5, "completion_tokens": -5}, "timings": {"queued_ms": -1}},
    "times in words": {"timings": {"prompt_ms": "long", "predicted_ms": [1]}},
    "times without an end": '{"timings": {"prompt_ms": NaN, "predicted_ms": Infinity, "draft_n": Infinity}}',
    "a list": [1],
    "what is no JSON": "{{{",
    "what has no bottom": DEEP,
    "an error that is a list": {"error": [1]},
}


def events(*pieces: Any) -> Reply:
    def reply(handler: Handler) -> None:
        handler.begin_stream()
        for piece in (*pieces, "[DONE]"):
            handler.event(piece)

    return reply


def asked(*replies: Reply, **pages: Any) -> Answer:
    question = Question(messages=(Message(role=Role.USER, text="Hi"),), max_tokens=100, conversation="c")
    with Endpoint(replies, **pages) as endpoint:
        model = HttpChatModel(endpoint.url, tools="native", pause_s=0.01)
        model.ability(cancelled=lambda: False)
        model.is_busy()
        return model.ask(question, cancelled=lambda: False)


@pytest.mark.parametrize("piece", ODD.values(), ids=ODD)
def test_whatever_a_server_sends_is_passed_over_or_one_of_the_known_problems(piece: Any) -> None:
    whole = piece if isinstance(piece, str) else json.dumps(piece)
    for reply in (events(piece, GOOD), lambda handler: handler.send_json(200, whole)):
        try:
            answer = asked(reply)
        except (NodeAway, BrokenAnswer):
            continue
        usage = json.loads(answer.usage.model_dump_json())
        assert all(isinstance(value, int | float) and 0 <= value < 1e9 for value in usage.values()), usage


@pytest.mark.parametrize("body", [DEEP, "[1]", '{"error": {"n_prompt_tokens": 1e999}}', '{"error": {"n_ctx": NaN}}'])
def test_so_is_the_body_of_a_refusal(body: str) -> None:
    with pytest.raises(NodeRefused, match="the node answered 401"):
        asked(lambda handler: handler.send_json(401, body))


@pytest.mark.parametrize(
    "page", [{"data": None}, {"data": 5}, {"data": [None]}, [1], {"data": [{"id": [1], "n_ctx": True}]}]
)
def test_so_are_a_servers_pages_of_itself(page: Any) -> None:
    pages = {
        "v1/models": page,
        "props": DEEP,
        "health": DEEP,
        "slots": DEEP,
        "metrics": "vllm:num_requests_running NaN",
    }
    assert asked(events(GOOD), **pages).text == "x"


def test_a_call_without_a_number_is_read_by_its_place_and_text_in_parts_as_a_whole() -> None:
    calls = [{"index": None, "id": str(at), "function": {"name": f"f{at}", "arguments": "{}"}} for at in range(2)]
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    answer = asked(events(delta(content=parts, tool_calls=calls)))
    assert (answer.text, [call.name for call in answer.calls]) == ("ab", ["f0", "f1"])
