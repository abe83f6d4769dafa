"""Health, metrics, figures, and the page, in a real browser where there is one."""

import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference_node.engine.engine import Engine
from inference_node.lab.serving import Background
from inference_node.server.app import Options, create_app
from inference_node.speculate.scripted import ScriptedTarget
from tests.inference_node.engine.conftest import FACTS, says
from tests.inference_node.server.conftest import Served

Serve = Callable[..., Served]


def test_health_is_503_while_loading_then_200(serve: Serve) -> None:
    gate = threading.Event()
    served = serve()

    def load(told: Any) -> Any:
        told("reading weights", 0.25)
        gate.wait(20)
        return ScriptedTarget(says("Hi"), facts=FACTS), served.engine.template

    engine = Engine(load)
    background = Background(create_app(engine))
    try:
        with httpx.Client(base_url=background.url) as http:
            while not engine.health().progress:
                time.sleep(0.01)
            reply = http.get("/health")
            assert reply.status_code == 503
            told = {"status": "loading", "ready": False, "live": True, "why": "reading weights", "progress": 0.25}
            assert told.items() <= reply.json().items()
            assert http.get("/health/live").status_code == 200
            assert http.get("/stats").json()["model"] is None
            assert http.get("/metrics").status_code == 200
            for path in ("/v1/models", "/v1/chat/completions"):
                body = {"messages": [{"role": "user", "content": "Hi"}]}
                reply = http.get(path) if path.endswith("models") else http.post(path, json=body)
                assert (reply.status_code, reply.json()["error"]["code"]) == (503, "not_ready")
            gate.set()
            engine.wait_until_loaded(10)
            assert http.get("/health").json()["status"] == "ok"
    finally:
        gate.set()
        background.stop()
        engine.close()


def test_health_is_500_with_the_reason_after_a_device_fault(serve: Serve) -> None:
    served = serve()
    served.target.before = lambda call, _: (_ for _ in ()).throw(RuntimeError("the device is lost"))
    served.chat("Hi")
    deadline = time.monotonic() + 10
    while served.http.get("/health").status_code != 500 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "the device is lost" in served.http.get("/health").json()["why"]


def test_health_calls_a_stuck_request_stalled(serve: Serve) -> None:
    gate = threading.Event()
    served = serve(before=lambda call, _: gate.wait(20) and None if call == "begin" else None, engine={"stall_s": 0.05})
    client = threading.Thread(target=served.chat)
    client.start()
    deadline = time.monotonic() + 10
    while (reply := served.http.get("/health")).status_code != 500 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert reply.json()["status"] == "stalled"
    gate.set()
    client.join(20)
    assert served.http.get("/health").status_code == 200


def test_metrics_are_read_by_the_official_parser_and_agree_with_stats(serve: Serve) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    served = serve("hm\n</think>\n\nHello.", accepts=(1, 4, 0))
    for n in range(3):
        served.answer("x" * 200 + str(n))
    families = {family.name: family for family in text_string_to_metric_families(served.http.get("/metrics").text)}
    stats = served.http.get("/stats").json()
    value = lambda name: families[name].samples[0].value  # noqa: E731
    assert value("vllm:spec_decode_num_draft_tokens") == stats["speculation"]["drafted"]
    assert value("vllm:spec_decode_num_accepted_tokens") == stats["speculation"]["accepted"]
    per_position = [sample.value for sample in families["vllm:spec_decode_num_accepted_tokens_per_pos"].samples]
    accepted = stats["speculation"]["accepted_at"]
    assert per_position[: len(accepted)] == accepted
    assert sum(per_position) == stats["speculation"]["accepted"]
    assert value("lampnode_tau") == stats["speculation"]["tau"]
    prompt = {sample.labels["from"]: sample.value for sample in families["lampnode_prompt_tokens"].samples}
    assert prompt == {"store": stats["tokens"]["restored"], "prefill": stats["tokens"]["prefilled"]}
    why = {sample.labels["why"]: sample.value for sample in families["lampnode_prefix"].samples}
    assert why == stats["prefix"]["by_why"]
    assert len(stats["last_requests"]) == 3


def test_the_page_loads_nothing_from_elsewhere(serve: Serve) -> None:
    served = serve()
    for path in ("/", "/page.js", "/page.css"):
        reply = served.http.get(path)
        assert reply.status_code == 200
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        addresses = set(re.findall(r"https?://[^\s\"')]+", reply.text)) - {"http://www.w3.org/2000/svg"}
        assert not addresses


CHROMIUM = shutil.which("chromium")


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_shows_tau_acceptance_and_the_last_requests(serve: Serve, scheme: Any, tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    served = serve(
        "hm\n</think>\n\n" + "Hello. " * 20, accepts=(1, 4, 0, 7), cycle_s=0.002, options=Options(keys=("k",))
    )
    key = {"Authorization": "Bearer k"}
    for n in range(4):
        body = {"messages": [{"role": "user", "content": "<script>alert(1)</script>" + "x" * 200 + str(n)}]}
        assert served.post("/v1/chat/completions", body, headers=key).status_code == 200
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(color_scheme=scheme, viewport={"width": 1100, "height": 1000})
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda m: problems.append(m.text) if m.type == "error" and "401" not in m.text else None)
        page.goto(served.url)
        page.fill("#key", "k")
        page.click("button")
        page.wait_for_selector("#timeline tbody tr")
        assert not page.locator("#ask").is_visible()
        assert page.locator("#timeline tbody tr").count() == 4
        assert page.locator(".bars rect").count() == 7
        assert "tau" in page.inner_text("#tiles")
        assert page.inner_text("#status").startswith("ready")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.screenshot(path=tmp_path / f"node-{scheme}.png", full_page=True)
        page.set_viewport_size({"width": 380, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        browser.close()
    assert not problems
