"""Whether a node works on something, as several servers tell it."""

import json
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from orchestrator.clients import inference
from orchestrator.clients.busy import READING, Work, behind_others, places
from orchestrator.clients.inference import HttpChatModel, Occupied
from review_agents.ports import Stopped
from review_agents.records import Message, Question, Role
from tests.support.endpoint import Endpoint, Handler

SLOT = {"id": 0, "n_ctx": 8192, "speculative": False}


def busy(model: str = "qwen", **pages: Any) -> bool | None:
    with Endpoint(**pages) as endpoint:
        return HttpChatModel(endpoint.url, model).is_busy()


@pytest.mark.parametrize("working", [True, False])
def test_our_node_and_llama_server_say_it_themselves(working: bool) -> None:
    assert busy(health={"status": "ok", "running": int(working)}) is working
    slots = [{**SLOT, "is_processing": False}, {**SLOT, "is_processing": working}]
    assert busy(health={"status": "ok"}, slots=slots) is working


@pytest.mark.parametrize("working", [True, False])
def test_llama_server_behind_llama_swap_is_asked_through_it(working: bool) -> None:
    slots = [{**SLOT, "is_processing": working}]
    assert busy("unsloth/GLM:Q2", health="OK", **{"upstream/unsloth/GLM:Q2/slots": slots}) is working


@pytest.mark.parametrize("working", [True, False])
@pytest.mark.parametrize(
    "metric", ["vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing"]
)
def test_others_say_it_in_their_metrics(metric: str, working: bool) -> None:
    text = f'# TYPE {metric} gauge\n{metric}{{model_name="qwen",engine="0"}} {float(working)}\n'
    assert busy(metrics=text, health="", slots={"error": {"code": 501}}) is working


def test_a_server_that_tells_nothing_is_not_known_to_be_busy() -> None:
    assert busy() is None and busy(metrics="process_cpu_seconds_total 3.5\n", health=json.dumps([])) is None


def test_a_server_that_is_gone_is_not_known_to_be_busy() -> None:
    with Endpoint() as endpoint:
        pass
    assert HttpChatModel(endpoint.url).is_busy() is None


# Whether a request of ours waits there -----------------------------------------------------------


def seen(page: str, told: Any) -> Work:
    reply = httpx.Response(200, text=told) if isinstance(told, str) else httpx.Response(200, json=told)
    work = dict(places(""))[page](reply)
    assert work is not None
    return work


def slots(*tasks: tuple[int, int] | None, told_as: type = list) -> Work:
    """Of each slot its task and the tokens that this has written; None for a free one."""
    shown: list[dict[str, Any]] = []
    for task, tokens in (one or (0, 0) for one in tasks):
        told: Any = {"n_decoded": tokens}
        shown.append({"id_task": task, "is_processing": task > 0, "next_token": [told] if told_as is list else told})
    return seen("/slots", shown)


def test_behind_our_node_a_request_waits_when_one_is_run_and_one_waits() -> None:
    idle, one, two = (seen("/health", {"running": run, "waiting": wait}) for run, wait in ((0, 0), (1, 0), (1, 1)))
    assert [work.full for work in (idle, one, two)] == [False, True, True]
    assert [behind_others(work, idle) for work in (idle, one, two)] == [False, False, True]


@pytest.mark.parametrize("told_as", [list, dict])
def test_behind_llama_server_a_request_waits_when_every_slot_has_a_task_of_others(told_as: type) -> None:
    before = slots((7, 0), None, told_as=told_as)
    assert not before.full and slots((7, 0), (8, 3), told_as=told_as).full
    assert behind_others(slots((7, 0), (8, 3), told_as=told_as), before), "7 was there before, 8 has written"
    assert not behind_others(slots((7, 40), (8, 0), told_as=told_as), before), "8 may be ours, being read"
    assert not behind_others(slots((7, 40), None, told_as=told_as), before)
    assert not behind_others(slots((7, 0), told_as=told_as), None), "what was there before is not known"


def test_a_llama_server_that_does_not_number_its_tasks_tells_nothing_of_the_line() -> None:
    work = seen("/slots", [{"id": 0, "is_processing": True}])
    assert work.running and not work.full and not behind_others(work, None)


@pytest.mark.parametrize(("name", "waits"), [("vllm:num_requests_waiting", True), ("sglang:num_queue_reqs", True),
                                              ("llamacpp:requests_deferred", False)])  # fmt: skip
def test_behind_others_a_request_waits_when_their_metrics_say_that_some_wait(name: str, waits: bool) -> None:
    running = {"vllm": "num_requests_running", "sglang": "num_running_reqs", "llamacpp": "requests_processing"}
    server = name.partition(":")[0]

    def told(waiting: int) -> Work:
        return seen("/metrics", f"{server}:{running[server]} 256\n{name} {waiting}\n")

    assert (told(0).full, behind_others(told(0), told(0))) == (False, False)
    assert (told(2).full, behind_others(told(2), told(0))) == (waits, waits)


def test_a_request_that_our_node_says_it_is_reading_does_not_wait_though_others_do() -> None:
    def reads(handler: Handler) -> None:
        handler.begin_stream()
        if len(handler.server.bodies) > 1:
            handler.wfile.write(f"{READING}\n\n".encode())
        handler.server.hung_up.wait(0.6)
        handler.event({"choices": [{"index": 0, "delta": {"content": "hello"}, "finish_reason": "stop"}]})

    question = Question(messages=(Message(role=Role.USER, text="Hi"),), max_tokens=9, conversation="x")
    with Endpoint([reads], health={"running": 1, "waiting": 1}) as endpoint:
        model = HttpChatModel(endpoint.url, "qwen", busy_s=0.3)
        with pytest.raises(Occupied):
            model.ask(question, cancelled=lambda: False)
        assert model.ask(question, cancelled=lambda: False).text == "hello"


@pytest.mark.parametrize(("stays", "taken_back"), [(True, False), (False, False), (True, True)])
def test_a_request_that_is_hung_up_on_in_the_line_and_stays_there_is_noticed(
    stays: bool, taken_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of others wait already; ours is the third, and a good node lets it go."""
    monkeypatch.setattr(inference, "LEFT_WITHIN_S", 0.4)
    health = {"running": 1, "waiting": 2}

    def waits(handler: Handler) -> None:
        handler.begin_stream()
        health["waiting"] = 3
        try:
            while not handler.server.hung_up.wait(0.02):
                handler.wfile.write(b": in the queue\n\n")
        finally:
            health["waiting"] = 3 if stays else 2

    question = Question(messages=(Message(role=Role.USER, text="Hi"),), max_tokens=9, conversation="x")
    with Endpoint([waits], health=health) as endpoint, capture_logs() as logs:
        model = HttpChatModel(endpoint.url, "qwen", busy_s=0.5 if taken_back else 60.0)
        with pytest.raises(Occupied if taken_back else Stopped):
            model.ask(question, cancelled=lambda: not taken_back and health["waiting"] == 3)
        if not stays:
            assert endpoint.hung_up.wait(3)
    warned = [one["event"] for one in logs if one["log_level"] == "warning"]
    assert warned == (["a request that was hung up on may still wait at the node"] if stays else [])


def test_a_server_that_tells_nothing_is_not_asked_again_and_one_that_was_loading_is() -> None:
    answers = {"": [404, 404, 404], "loading": [503, 404, 404]}
    for state, statuses in answers.items():
        asked: list[str] = []

        def reply(request: httpx.Request, statuses: list[int] = statuses, asked: list[str] = asked) -> httpx.Response:
            asked.append(request.url.path)
            return httpx.Response(statuses[len(asked) - 1] if len(asked) <= 3 else 404)

        model = HttpChatModel("http://node.example", transport=httpx.MockTransport(reply))
        assert model.is_busy() is None and model.is_busy() is None
        assert len(asked) == (6 if state else 3)
