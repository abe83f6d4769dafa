"""What servers really send, read into the accounting: wire/ has llama-server's as recorded, the others in their form.

llama-server: b11549 over SmolLM2. vLLM: without its own flag it tells no cached tokens, and never any times. llama-swap
passes on what llama-server says, behind a banner of its own as long as it loads the model.
"""

from pathlib import Path

import pytest

from orchestrator.clients.inference import HttpChatModel
from review_agents.records import Answer, AnswerEnd, Message, Question, Role
from review_agents.repetition import repeats_itself
from tests.support.endpoint import Endpoint, Handler

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
