"""The model client against real servers: what is sent, what is read, and what each kind of failure becomes."""

import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from orchestrator.clients.inference import HttpChatModel, seconds_until
from review_agents.ports import BrokenAnswer, ContextOverflow, NodeAway, NodeRefused, Stopped
from review_agents.records import AnswerEnd, Message, Question, Role, Tool, ToolCall
from review_agents.repetition import repeats_itself
from tests.support.endpoint import Endpoint, nothing_for, refusal, streamed, text, tool_call


def never() -> bool:
    return False


def model(endpoint: Endpoint, **given: Any) -> HttpChatModel:
    return HttpChatModel(endpoint.url, "test-model", **{"pause_s": 0.01, "tools": "native", **given})


def question(**changed: Any) -> Question:
    return Question(**{"messages": (Message(role=Role.USER, text="Hi"),), "max_tokens": 99, **changed})


RUN = Tool(name="run", description="Run it", parameters={"type": "object", "properties": {}})


# What is sent --------------------------------------------------------------------------------


def test_max_tokens_and_seed_are_always_sent_and_tools_only_where_there_are_some() -> None:
    with Endpoint() as endpoint:
        model(endpoint).ask(question(seed=7), cancelled=never)
        model(endpoint).ask(question(tools=(RUN,)), cancelled=never)
    first, second = endpoint.bodies
    assert (first["max_tokens"], first["seed"], first["model"]) == (99, 7, "test-model")
    assert "tools" not in first and "tool_choice" not in first
    assert second["tools"][0]["function"]["name"] == "run"


def test_calls_and_their_results_keep_their_ids_on_the_wire() -> None:
    history = (
        Message(role=Role.ASSISTANT, calls=(ToolCall(id="call_1", name="run", arguments="{}"),)),
        Message(role=Role.TOOL, text="ok", call_id="call_1", name="run"),
    )
    with Endpoint() as endpoint:
        model(endpoint).ask(question(messages=history), cancelled=never)
    sent = endpoint.bodies[0]["messages"]
    assert sent[0]["tool_calls"][0]["id"] == sent[1]["tool_call_id"] == "call_1"


def test_half_characters_out_of_a_repo_do_not_break_a_request() -> None:
    with Endpoint() as endpoint:
        model(endpoint).ask(question(messages=(Message(role=Role.USER, text="a\ud83db"),)), cancelled=never)
    assert endpoint.bodies[0]["messages"][0]["content"] == "a?b"


def test_the_key_goes_in_the_header_and_nowhere_else() -> None:
    with Endpoint() as endpoint:
        client = model(endpoint, key="s3cret")
        client.ask(question(), cancelled=never)
        assert "s3cret" not in client.ability(cancelled=never).model_dump_json()
    assert endpoint.headers[0]["Authorization"] == "Bearer s3cret" and "s3cret" not in str(endpoint.bodies)


# What is read --------------------------------------------------------------------------------


def test_text_calls_thoughts_and_counts_are_put_together_from_the_stream() -> None:
    with Endpoint([text("good morning"), tool_call("run", {"command": "ls -l"}),
                   streamed({"reasoning_content": "Hm."}, {"content": "A"}, finish="length")]) as endpoint:  # fmt: skip
        client = model(endpoint)
        spoken, called, cut = (client.ask(question(), cancelled=never) for _ in range(3))
    assert (spoken.text, spoken.end) == ("good morning", AnswerEnd.STOP)
    assert (spoken.usage.prompt, spoken.usage.cached, spoken.usage.completion) == (120, 100, 7)
    assert called.end is AnswerEnd.CALLS
    assert (called.calls[0].name, called.calls[0].arguments) == ("run", '{"command": "ls -l"}')
    assert (cut.thought, cut.text, cut.end) == ("Hm.", "A", AnswerEnd.LENGTH)


def test_timings_of_llama_server_and_our_node_go_into_the_accounting() -> None:
    timings = {"cache_n": 900, "prompt_n": 100, "prompt_ms": 250.0, "predicted_n": 40, "predicted_ms": 2000.0,
               "draft_n": 60, "draft_n_accepted": 33}  # fmt: skip
    with Endpoint([text("x", usage=None, timings=timings)]) as endpoint:
        usage = model(endpoint).ask(question(), cancelled=never).usage
    assert (usage.prompt, usage.cached, usage.completion) == (1000, 900, 40)
    assert (usage.prompt_s, usage.completion_s, usage.drafted, usage.accepted) == (0.25, 2.0, 60, 33)


def test_a_server_that_does_not_stream_is_read_all_the_same() -> None:
    whole = {"model": "m", "choices": [{"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
             "usage": {"prompt_tokens": 3, "completion_tokens": 1}}  # fmt: skip
    with Endpoint([lambda handler: handler.send_json(200, whole)]) as endpoint:
        assert model(endpoint).ask(question(), cancelled=never).text == "hello"


# What it can do ------------------------------------------------------------------------------


def test_an_endpoint_that_answers_the_probe_with_a_call_has_native_tools() -> None:
    with Endpoint(
        [tool_call("ready", {"word": "yes"})], props={"default_generation_settings": {"n_ctx": 8192}}
    ) as endpoint:
        found = model(endpoint, tools="auto").ability(cancelled=never)
    assert (found.native_tools, found.context_tokens, found.model) == (True, 8192, "test-model")


@pytest.mark.parametrize("reply", [text("yes"), refusal(400, "tools are not supported by this model"),
                                   refusal(500, "jinja template error: tools")])  # fmt: skip
def test_an_endpoint_that_does_not_gets_the_plain_text_protocol(reply: Any) -> None:
    with Endpoint([reply]) as endpoint:
        assert model(endpoint, tools="auto").ability(cancelled=never).native_tools is False


def test_the_context_of_a_model_behind_llama_swap_is_read_through_it_once_it_is_loaded() -> None:
    props = {"default_generation_settings": {"n_ctx": 16384}}
    with Endpoint([text("yes")], **{"upstream/test-model/props": props}) as endpoint:
        assert model(endpoint, tools="auto").ability(cancelled=never).context_tokens == 16384


def test_the_context_is_read_from_what_the_server_says_of_its_model() -> None:
    models = {"data": [{"id": "other"}, {"id": "test-model", "max_model_len": 32768}]}
    with Endpoint(**{"v1/models": models}) as endpoint:
        assert model(endpoint).ability(cancelled=never).context_tokens == 32768


# What goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"message": "request (9001 tokens) exceeds the available context size (8192 tokens), try increasing it",
               "n_prompt_tokens": 9001, "n_ctx": 8192}),
        (400, {"message": "This model's maximum context length is 4096 tokens. However, you requested 5000."}),
        (400, {"message": "the prompt is too long", "code": "context_length_exceeded"}),
        (400, {"message": "x", "type": "exceed_context_size_error"}),
    ],
)  # fmt: skip
def test_an_overflow_is_recognised_in_the_words_of_several_servers(status: int, error: dict[str, Any]) -> None:
    with Endpoint([refusal(status, **error)]) as endpoint, pytest.raises(ContextOverflow) as problem:
        model(endpoint).ask(question(), cancelled=never)
    assert len(endpoint.bodies) == 1, "an overflow is not sent again as it is"
    assert problem.value.prompt_tokens == error.get("n_prompt_tokens")


@pytest.mark.parametrize(
    "message", ["max_tokens must be at most 4096", "not enough memory for this request", "bad role"]
)
def test_other_refusals_are_no_overflow(message: str) -> None:
    with Endpoint([refusal(400, message)]) as endpoint, pytest.raises(NodeRefused, match=message):
        model(endpoint).ask(question(), cancelled=never)


@pytest.mark.parametrize("status", [429, 502, 503])
def test_a_node_that_is_busy_or_loading_is_asked_again(status: int) -> None:
    with Endpoint([refusal(status, "loading model"), refusal(status), text("here")]) as endpoint:
        assert model(endpoint).ask(question(), cancelled=never).text == "here"
    assert len(endpoint.bodies) == 3


def test_a_node_that_stays_busy_is_away() -> None:
    with Endpoint([refusal(503, "loading model")]) as endpoint, pytest.raises(NodeAway, match="loading model"):
        model(endpoint).ask(question(), cancelled=never)


@pytest.mark.parametrize("as_date", [False, True])
def test_a_busy_node_is_asked_again_when_it_wants_to_be(as_date: bool) -> None:
    after = format_datetime(datetime.now(UTC) + timedelta(seconds=2.5), usegmt=True) if as_date else "1"
    with Endpoint([refusal(429, "busy", headers={"Retry-After": after}), text("here")]) as endpoint:
        began = time.monotonic()
        assert model(endpoint).ask(question(), cancelled=never).text == "here"
        assert 0.9 < time.monotonic() - began < 5


def test_a_node_that_is_busy_for_longer_than_a_client_waits_is_away_at_once() -> None:
    with Endpoint([refusal(503, "loading", headers={"Retry-After": "600"})]) as endpoint:
        with pytest.raises(NodeAway, match="503: loading"):
            model(endpoint).ask(question(), cancelled=never)
        assert len(endpoint.bodies) == 1


@pytest.mark.parametrize(
    "after", ["soon", "", "-5", "1e9", "Thu, 99 Foo 2026 99:99:99 GMT", "Fri, 01 Jan 1999 00:00:00 GMT"]
)
def test_a_retry_after_that_says_nothing_is_as_good_as_none(after: str) -> None:
    assert seconds_until(after) == 0


def test_a_node_that_is_not_there_is_away() -> None:
    with Endpoint() as endpoint:
        pass
    with pytest.raises(NodeAway, match="does not answer"):
        model(endpoint).ability(cancelled=never)


def test_a_stream_that_breaks_off_is_asked_again_and_not_taken_for_an_answer() -> None:
    def half(handler: Any) -> None:
        handler.begin_stream()
        handler.event({"choices": [{"index": 0, "delta": {"content": "half"}, "finish_reason": None}]})

    with Endpoint([half, text("whole")]) as endpoint:
        assert model(endpoint).ask(question(), cancelled=never).text == "whole"


def test_a_server_that_fails_on_a_call_is_asked_once_more_with_another_seed() -> None:
    broken = refusal(500, "Failed to parse tool call arguments as JSON")
    with Endpoint([broken]) as endpoint, pytest.raises(BrokenAnswer, match="parse tool call"):
        model(endpoint).ask(question(seed=5), cancelled=never)
    assert [body["seed"] for body in endpoint.bodies] == [5, 6]


@pytest.mark.parametrize(("status", "words"), [(401, "wrong key"), (404, "no such model")])
def test_a_wrong_key_or_model_is_refused_with_the_servers_words(status: int, words: str) -> None:
    with Endpoint([refusal(status, words)]) as endpoint, pytest.raises(NodeRefused, match=f"{status}: {words}"):
        model(endpoint).ask(question(), cancelled=never)


def test_a_text_that_runs_in_circles_is_ended_by_the_client() -> None:
    deltas = [{"content": "and so on and on "}] * 3000
    with Endpoint([streamed(*deltas)]) as endpoint:
        answer = model(endpoint, repeats=repeats_itself).ask(question(), cancelled=never)
    assert answer.end is AnswerEnd.LOOP and len(answer.text) < 20_000
    assert answer.usage.completion == len(answer.text) // len("and so on and on ")  # the server's count never came


def test_the_node_must_have_let_go_of_a_text_that_was_ended_for_running_in_circles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from structlog.testing import capture_logs

    from orchestrator.clients import inference

    monkeypatch.setattr(inference, "GONE_WITHIN_S", 0.4)
    circles = streamed(*[{"content": "and so on and on "}] * 3000)
    with Endpoint([circles], slots=[{"id": 0, "is_processing": True}]) as endpoint, capture_logs() as logs:
        model(endpoint, repeats=repeats_itself).ask(question(), cancelled=never)
    assert any("hung up on" in one["event"] for one in logs)


def test_a_cancelled_request_ends_at_once_and_the_server_notices() -> None:
    cancelled = threading.Event()
    with Endpoint([nothing_for(20)], slots=[{"id": 0, "is_processing": False}]) as endpoint:
        threading.Timer(0.3, cancelled.set).start()
        began = time.monotonic()
        with pytest.raises(Stopped):
            model(endpoint).ask(question(), cancelled=cancelled.is_set)
        assert time.monotonic() - began < 3
        assert endpoint.hung_up.wait(3)


def test_a_node_that_goes_on_with_a_cancelled_request_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from structlog.testing import capture_logs

    from orchestrator.clients import inference

    monkeypatch.setattr(inference, "GONE_WITHIN_S", 0.4)
    cancelled = threading.Event()
    with Endpoint([nothing_for(20)], slots=[{"id": 0, "is_processing": True}]) as endpoint, capture_logs() as logs:
        threading.Timer(0.1, cancelled.set).start()
        with pytest.raises(Stopped):
            model(endpoint).ask(question(), cancelled=cancelled.is_set)
    assert any("still works on a request that was hung up on" in line["event"] for line in logs)
