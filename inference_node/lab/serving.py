"""A node that answers on a free port of the loopback, inside this process: for measurements and tests."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from inference_node.engine.engine import Engine
from inference_node.models.errors import NodeError
from inference_node.node import app_options, open_engine
from inference_node.server.app import create_app
from inference_node.settings import Settings


class Background:
    """An ASGI application under uvicorn, in a thread."""

    def __init__(self, app: Any, port: int = 0) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 30
        while not self._server.started:
            if time.monotonic() > deadline:
                raise NodeError("The server did not start within 30 s.")
            time.sleep(0.01)

    def stop(self) -> None:
        """End it without waiting for clients."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(10)
        self._socket.close()


@contextmanager
def served(settings: Settings, *, states: bool = False) -> Iterator[tuple[str, Engine]]:
    """(address, engine) of a node with these settings, loaded."""
    engine = open_engine(settings)
    try:
        health = engine.wait_until_loaded()
        if health.state.value != "ready":
            raise NodeError(health.why)
        background = Background(create_app(engine, app_options(settings, states=states)))
        try:
            yield background.url, engine
        finally:
            background.stop()
    finally:
        engine.close()
