"""A running server over a scripted target: real sockets, so that disconnects and streams are real."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from inference_node.engine.engine import Engine
from inference_node.lab.serving import Background
from inference_node.server.app import Options, create_app
from inference_node.speculate.scripted import ScriptedTarget
from tests.inference_node.engine.conftest import FACTS, says
from tests.inference_node.engine.toy import THINKING_TEMPLATE, toy


@dataclass
class Served:
    """A node that answers at `url`."""

    url: str
    engine: Engine
    target: ScriptedTarget
    http: httpx.Client

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.http.post(path, json=body, **options)

    def chat(self, content: str = "Hi", **body: Any) -> httpx.Response:
        body.setdefault("messages", [{"role": "user", "content": content}])
        return self.post("/v1/chat/completions", body)

    def answer(self, content: str = "Hi", **body: Any) -> dict[str, Any]:
        reply = self.chat(content, **body)
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    undo: list[Callable[[], None]] = []

    def make(
        script: Any = "Hello there.",
        *,
        template: str = THINKING_TEMPLATE,
        options: Options | None = None,
        engine: dict[str, Any] | None = None,
        **target_options: Any,
    ) -> Served:
        target_options.setdefault("facts", FACTS)
        target = ScriptedTarget(says(script) if isinstance(script, str) else script, **target_options)
        made = Engine(lambda told: (target, toy(template)), **(engine or {}))
        made.wait_until_loaded(10)
        background = Background(create_app(made, options))
        url = background.url
        client = httpx.Client(base_url=url, timeout=30)

        def stop() -> None:
            target.before = None
            client.close()
            background.stop()
            made.close()

        undo.append(stop)
        return Served(url, made, target, client)

    yield make
    for stop in reversed(undo):
        stop()
