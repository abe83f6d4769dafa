"""A running server over a scripted target: real sockets, so that disconnects and streams are real."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn

from inference_node.engine.engine import Engine
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


class Background:
    """uvicorn in a thread, on a free port of the loopback."""

    def __init__(self, app: Any) -> None:
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)
        self.thread.start()
        deadline = time.monotonic() + 10
        while not self.server.started and time.monotonic() < deadline:
            time.sleep(0.01)

    def stop(self) -> None:
        self.server.should_exit = True
        self.server.force_exit = True
        self.thread.join(10)
        self.socket.close()


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
        url = f"http://127.0.0.1:{background.port}"
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
