"""The model client against real servers in processes of their own: llama.cpp's and our node."""

import threading
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from orchestrator.clients.inference import HttpChatModel, Occupied
from orchestrator.clients.node import HttpNode
from review_agents.ports import ContextOverflow, NodeAway, Stopped
from review_agents.records import AnswerEnd, Message, Question, Role
from tests.support.model_servers import Guest, LlamaServer, ModelServer, OurNode
from tests.support.postgres import free_port
from tests.support.waiting import wait_for

STORY = "Tell a very long story about a village and each of its houses. "


def question(text: str, max_tokens: int) -> Question:
    return Question(messages=(Message(role=Role.USER, text=text),), max_tokens=max_tokens, conversation="story")


def never() -> bool:
    return False


def model(node: ModelServer, *, pause_s: float = 0.01, busy_s: float = 60.0) -> HttpChatModel:
    return HttpChatModel(f"{node.url}/v1", temperature=0.0, pause_s=pause_s, busy_s=busy_s)


def test_llama_cpps_model_that_answers_the_probe_with_a_call_gets_native_tools(taught_llama: LlamaServer) -> None:
    found = model(taught_llama).ability(cancelled=never)
    assert (found.native_tools, found.context_tokens, found.model) == (True, 8192, "smollm2-135m-instruct")


def test_a_model_that_answers_the_probe_with_prose_gets_the_plain_text_protocol(our_node: OurNode) -> None:
    assert model(our_node).ability(cancelled=never).native_tools is False


def test_what_they_tell_of_their_work_is_read(real_node: ModelServer) -> None:
    health = HttpNode(real_node.url).health()
    assert health.reachable and len(health.models) == 1 and health.work is not None and health.work.running == 0


def test_tokens_and_times_are_the_servers_own(real_node: ModelServer) -> None:
    short = question("Tell a story. " * 30, 8)
    before = real_node.written_tokens()
    first, second = (model(real_node).ask(short, cancelled=never) for _ in range(2))
    assert (first.end, first.usage.completion) == (AnswerEnd.LENGTH, 8)
    assert real_node.written_tokens() - before == 16
    assert second.usage.prompt == first.usage.prompt > 90
    assert second.usage.cached >= second.usage.prompt - 64, "our node restores slices of 64, llama.cpp single tokens"
    assert first.usage.completion_s > 0 and second.usage.prompt_s < first.usage.seconds


def test_a_cancelled_answer_is_gone_from_the_node(real_node: ModelServer) -> None:
    client = model(real_node)
    assert client.is_busy() is False
    # llama.cpp looks up between batches of up to 2048 tokens, so it is stopped as it writes; ours as it reads.
    story = question(STORY * (900 if isinstance(real_node, OurNode) else 1), 4000)
    with capture_logs() as logs, pytest.raises(Stopped):
        client.ask(story, cancelled=lambda: real_node.working() > 0)
    assert real_node.working() == 0 and client.is_busy() is False
    assert not [one for one in logs if one["log_level"] == "warning"]


def test_a_request_that_stands_behind_anothers_for_too_long_is_taken_back_and_never_runs(
    real_node: ModelServer,
) -> None:
    client, short = model(real_node, busy_s=0.5), question("Say hello.", 4)
    with Guest(real_node):
        requests = real_node.requests()
        with pytest.raises(Occupied, match="has been busy with other requests"):
            client.ask(short, cancelled=never)
        assert real_node.working() == 1
        wait_for(lambda: real_node.waiting() == 0, 5, "it still stands in the line", every_s=0.05)
    wait_for(lambda: real_node.working() == 0, 60, "it still works", every_s=0.02)
    written = real_node.written_tokens()
    assert client.ask(short, cancelled=never).usage.completion == 4
    if isinstance(real_node, LlamaServer):
        assert real_node.requests() == requests + 1
    else:
        assert real_node.written_tokens() - written == 4


def test_a_request_that_is_cancelled_as_it_waits_is_let_go_at_once_though_the_node_works_on(
    real_node: ModelServer,
) -> None:
    client = model(real_node)
    with Guest(real_node), capture_logs() as logs:
        asked = time.monotonic()
        with pytest.raises(Stopped):
            client.ask(question("Say hello.", 4), cancelled=lambda: time.monotonic() > asked + 0.5)
        assert time.monotonic() - asked < 10 and real_node.working() == 1
        wait_for(lambda: real_node.waiting() == 0, 5, "it still stands in the line", every_s=0.05)
    assert not [one for one in logs if one["log_level"] == "warning"]


def test_a_request_whose_turn_comes_is_answered_and_its_time_in_the_line_is_told_apart(real_node: ModelServer) -> None:
    client, guest = model(real_node, busy_s=30.0), Guest(real_node)
    with guest:
        leaving = threading.Timer(1.0, guest.leave)
        leaving.start()
        usage = client.ask(question("Say hello.", 4), cancelled=never).usage
        leaving.join()
    assert 0.5 < usage.waited_s <= usage.seconds and usage.completion == 4


def test_a_prompt_of_ours_that_is_read_is_not_taken_for_anothers_while_others_wait(taught_llama: LlamaServer) -> None:
    guest = Guest(taught_llama)
    second = threading.Thread(target=guest.arrive, daemon=True)

    def then_others_come() -> bool:
        if taught_llama.working() and second.ident is None:
            second.start()
        return False

    long = question(STORY * 25, 4)  # seconds of reading
    assert model(taught_llama, busy_s=0.0).ask(long, cancelled=then_others_come).usage.completion == 4
    second.join()
    guest.leave()


def test_a_conversation_that_does_not_fit_is_an_overflow_with_the_servers_counts(taught_llama: LlamaServer) -> None:
    with pytest.raises(ContextOverflow) as problem:
        model(taught_llama).ask(question("one two " * 9000, 100), cancelled=never)
    assert problem.value.context_tokens == 8192 and (problem.value.prompt_tokens or 0) > 9000


def test_a_server_that_comes_up_is_away_while_it_loads_and_then_answers(tmp_path: Path) -> None:
    server = LlamaServer(tmp_path / "llama.log", port=free_port())
    short = question("Say hello.", 4)
    try:
        with pytest.raises(NodeAway, match="went away"):
            model(server, pause_s=0.0).ask(short, cancelled=never)  # nobody listens yet
        server.start()
        said: list[str] = []
        until = time.monotonic() + 120
        while time.monotonic() < until:
            try:
                answer = model(server, pause_s=0.0).ask(short, cancelled=never)
                break
            except NodeAway as away:
                said.append(str(away))
        assert answer.usage.completion == 4
        assert any("503: Loading model" in one for one in said), said[-3:]
        assert all("503: Loading model" in one or "went away" in one for one in said), said[-3:]
    finally:
        server.kill()
