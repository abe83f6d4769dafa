"""What the service reads from nodes: our own, and the three others that it may stand before."""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from inference_node.engine.engine import Engine
from inference_node.lab.serving import Background
from inference_node.server.app import Options, create_app
from inference_node.speculate.scripted import ScriptedTarget
from orchestrator.clients.node import HttpNode
from tests.inference_node.engine.conftest import FACTS, says
from tests.inference_node.engine.toy import THINKING_TEMPLATE, toy

MODELS = json.dumps({"object": "list", "data": [{"id": "qwen"}]})

# As each server shows them, shortened to some of its families.
VLLM = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="qwen"} 30.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="qwen"} 10.0
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="qwen"} 600.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="qwen"} 150.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="qwen"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="qwen"} 1.0
"""
SGLANG = """# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{model_name="qwen"} 3.5
# TYPE sglang:spec_accept_rate gauge
sglang:spec_accept_rate{model_name="qwen"} 0.4
# TYPE sglang:gen_throughput gauge
sglang:gen_throughput{model_name="qwen"} 86.5
"""
LLAMA = """# TYPE llamacpp:predicted_tokens_seconds gauge
llamacpp:predicted_tokens_seconds 41.5
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 0
"""


@contextmanager
def server(pages: Mapping[str, tuple[int, str]]) -> Iterator[str]:
    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = pages.get(self.path, (404, "not here"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=listening.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}"
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def test_our_own_node_tells_its_state_tau_and_speed() -> None:
    target = ScriptedTarget(says("hm\n</think>\n\nHello there."), facts=FACTS, accepts=(3,), cycle_s=0.001)
    engine = Engine(lambda told: (target, toy(THINKING_TEMPLATE)))
    engine.wait_until_loaded(10)
    node = Background(create_app(engine, Options(keys=("k",))))
    try:
        before = HttpNode(f"{node.url}/v1", "k").health()
        assert before.reachable and before.work is not None
        assert (before.work.state, before.work.tau, before.work.tokens_per_s) == ("ok", None, None)
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        httpx.post(f"{node.url}/v1/chat/completions", json=body, headers={"Authorization": "Bearer k"})
        work = HttpNode(node.url, "k").health().work
        speculation = engine.stats().speculation
        assert work is not None and work.tau == speculation.tau and work.tau is not None and work.tau > 1
        assert work.tokens_per_s is not None and work.tokens_per_s > 0
        assert work.accepted_share == speculation.accepted / speculation.drafted
        assert (work.running, work.waiting, work.device, work.drafter) == (0, 0, FACTS.device, FACTS.drafter)
        refused = HttpNode(node.url, "wrong").health()
        assert not refused.reachable and "401" in refused.problem and refused.work is None
    finally:
        node.stop()
        engine.close()


def test_a_node_that_loads_says_how_far_it_is() -> None:
    gate = threading.Event()

    def load(told: object) -> object:
        told("loading weights", 0.4)  # type: ignore[operator]
        gate.wait(20)
        return ScriptedTarget(says("x"), facts=FACTS), toy(THINKING_TEMPLATE)

    engine = Engine(load)  # type: ignore[arg-type]
    node = Background(create_app(engine))
    try:
        while not engine.health().progress:
            time.sleep(0.01)
        found = HttpNode(node.url).health()
        assert not found.reachable and "503" in found.problem and "loading weights" in found.problem
        assert found.work is not None and (found.work.state, found.work.why) == ("loading", "loading weights")
    finally:
        gate.set()
        node.stop()
        engine.close()


@pytest.mark.parametrize(
    ("metrics", "tau", "speed", "share", "requests"),
    [
        (VLLM, 1 + 150 / 40, None, 0.25, (2, 1)),
        (SGLANG, 3.5, 86.5, 0.4, (None, None)),
        (LLAMA, None, 41.5, None, (1, 0)),
    ],
    ids=["vllm", "sglang", "llama-server"],
)
def test_other_servers_are_read_by_their_own_names_and_the_rest_is_unknown(
    metrics: str, tau: float | None, speed: float | None, share: float | None, requests: tuple[int | None, int | None]
) -> None:
    with server({"/v1/models": (200, MODELS), "/metrics": (200, metrics)}) as url:
        found = HttpNode(url).health()
    assert found.reachable and found.models == ("qwen",) and found.work is not None
    assert found.work.tau == tau
    assert (found.work.tokens_per_s, found.work.accepted_share) == (speed, share)
    assert (found.work.running, found.work.waiting) == requests
    assert found.work.state == ""


@pytest.mark.parametrize(
    "pages",
    [
        {},
        {"/stats": (200, "<html>somebody else's statistics</html>"), "/metrics": (200, "{not metrics")},
        {"/stats": (200, '{"health": 5}'), "/metrics": (200, "python_info 1.0\n")},
        {"/stats": (200, "[]"), "/metrics": (500, "")},
        {"/stats": (200, "null"), "/metrics": (401, "")},
    ],
)
def test_a_server_that_tells_nothing_of_its_work_is_still_a_node(pages: Mapping[str, tuple[int, str]]) -> None:
    with server({"/v1/models": (200, MODELS), **pages}) as url:
        found = HttpNode(url).health()
    assert found.reachable and found.models == ("qwen",) and found.work is None


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((200, "hello"), "no list of models"),
        ((200, '{"data": 5}'), "no list of models"),
        ((200, "[]"), "no list of models"),
        ((404, "gone"), "404"),
        ((500, '{"error": {"message": "the device is lost"}}'), "the device is lost"),
        ((500, '{"error": "text"}'), "500"),
    ],
)
def test_an_answer_that_is_no_list_of_models_is_told(answer: tuple[int, str], problem: str) -> None:
    with server({"/v1/models": answer}) as url:
        found = HttpNode(url).health()
    assert not found.reachable and problem in found.problem and found.models == ()


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://no-such-host.invalid", "nonsense", "http://[::1"])
def test_a_node_that_does_not_answer_is_told(url: str) -> None:
    found = HttpNode(url).health()
    assert not found.reachable and found.problem.startswith("it does not answer")
