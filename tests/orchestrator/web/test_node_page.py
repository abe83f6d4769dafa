"""The page of the node, for each kind of answer that a node gives."""

import html
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from playwright.sync_api import expect

from orchestrator.services.workshop import Workshop
from orchestrator.store.session import Sessions
from orchestrator.web.app import make_app
from review_agents.ports import NodeHealth, NodeWork
from tests.factories import make_shop
from tests.orchestrator.web.conftest import HERE
from tests.support.chromium import chromium
from tests.support.site import served

Shown = Callable[[NodeHealth], str]
BUSY = NodeWork(
    state="ok", tau=2.345, tokens_per_s=81.26, accepted_share=0.5, restored_share=0.987, running=1, waiting=3,
    device="cuda", drafter="dflash",
)  # fmt: skip


class Node:
    def __init__(self, health: NodeHealth):
        self._health = health

    def health(self) -> NodeHealth:
        return self._health


def shop_with(health: NodeHealth, sessions: Sessions, folder: Path) -> Workshop:
    return make_shop(sessions, folder, node=Node(health), settings={"model_url": "http://node:8760", "model_name": "q"})


@pytest.fixture
def shown(sessions: Sessions, tmp_path: Path) -> Shown:
    def page(health: NodeHealth) -> str:
        shop = shop_with(health, sessions, tmp_path)
        with TestClient(make_app(shop, shop.settings), base_url=HERE) as client:
            return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", client.get("/node").text)).split())

    return page


def test_a_node_that_tells_its_work_is_shown_with_tau_speed_and_queue(shown: Shown) -> None:
    text = shown(NodeHealth(reachable=True, models=("q",), seconds=0.1, work=BUSY))
    for part in (
        "answers", "Says of itself ok", "Tokens/s 81.3", "tau 2.35 50 % of drafts accepted", "1 running, 3 waiting",
        "Prompt kept between turns 98.7 %", "cuda, drafts by dflash",
    ):  # fmt: skip
        assert part in text


def test_what_a_node_does_not_tell_is_called_unknown(shown: Shown) -> None:
    text = shown(NodeHealth(reachable=True, models=("q",), work=NodeWork(running=2)))
    assert "Tokens/s unknown" in text and "tau unknown" in text and "2 running, unknown waiting" in text
    assert "Says of itself" not in text and "Runs on" not in text
    assert "It tells nothing of its speed." in shown(NodeHealth(reachable=True, models=("q",)))


def test_a_node_that_loads_is_no_failure(shown: Shown) -> None:
    work = NodeWork(state="loading", why="loading weights 40 %")
    text = shown(NodeHealth(reachable=False, problem="it answered 503", work=work))
    assert "loads its model" in text and "Says of itself loading: loading weights 40 %" in text
    assert "does not answer" not in text and "503" not in text


def test_a_node_that_failed_says_why(shown: Shown) -> None:
    work = NodeWork(state="failed", why="the device is lost <b>")
    text = shown(NodeHealth(reachable=False, problem="it answered 503: The node is failed", work=work))
    assert "does not answer" in text and "it answered 503" in text and "the device is lost <b>" in text


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_holds_together_on_a_phone_in_both_themes(sessions: Sessions, tmp_path: Path, scheme: str) -> None:
    health = NodeHealth(reachable=True, models=("a-model-with-a-long-name-" * 4,), seconds=0.1, work=BUSY)
    with served(shop_with(health, sessions, tmp_path)) as site, chromium() as browser:
        context = browser.new_context(base_url=site.address, color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        for width in (1100, 360, 320):
            page.set_viewport_size({"width": width, "height": 740})
            page.goto("/node")
            expect(page.get_by_text("81.3")).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
            page.screenshot(path=tmp_path / f"node-{scheme}-{width}.png", full_page=True)
        assert problems == []
