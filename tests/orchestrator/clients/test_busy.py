"""Whether a node works on something, as several servers tell it."""

import json
from typing import Any

import pytest

from orchestrator.clients.inference import HttpChatModel
from tests.support.endpoint import Endpoint

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
