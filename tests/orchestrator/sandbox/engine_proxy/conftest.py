"""A proxy of our own before a real engine, a review that was prepared through it, and a stranger beside it."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.sandbox.docker import Docker
from orchestrator.sandbox.engine_proxy.schema import policy_of
from orchestrator.sandbox.engine_proxy.server import Proxy, owner_of
from orchestrator.settings import Settings
from tests.orchestrator.sandbox.conftest import Engines
from tests.support.boxes import bundled, here
from tests.support.docker_engine import Engine

REVIEW = "guarded"


@dataclass
class Gate:
    """The proxy's socket, and what lies behind it."""

    path: str
    engine: Engine
    settings: Settings
    sandbox: Docker
    stranger: str  # id of a container that was not made through the proxy
    bodies: dict[str, Any] = field(default_factory=dict)

    def raw(self, request: bytes, *, close: bool = True) -> tuple[int, str]:
        """Status and body of the answer to these very bytes."""
        with socket.socket(socket.AF_UNIX) as way:
            way.settimeout(20)
            way.connect(self.path)
            way.sendall(request)
            if close:
                way.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := way.recv(65536):
                answer += piece
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), body.decode(errors="replace")

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, str]:
        content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Host": "engine", **({"Content-Length": str(len(content))} if content else {}), **(headers or {})}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
        return self.raw("\r\n".join([*lines, "", ""]).encode() + content)

    def containers(self) -> set[str]:
        return set(self.engine.command("ps", "-aq", "--no-trunc").split())


@pytest.fixture(scope="package")
def gate(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    folder = tmp_path_factory.mktemp("gate")
    engine = engines.get("docker")
    image = engines.image()
    path = folder / "engine.sock"
    settings = here(
        data=folder / "data",
        docker_url=f"unix://{path}",
        sandbox_image=image,
        sandbox_mounts=("/usr/share/zoneinfo:/zones",),
        sandbox_memory_bytes=256 << 20,
        sandbox_pids=64,
        sandbox_scratch_bytes=64 << 20,
    )
    with proxied(settings, path, engine.url.removeprefix("unix://")):
        stranger = engine.command("run", "-d", "--network", "none", "--name", "stranger", image, "sleep", "600").strip()
        repo = folder / "repo"
        repo.mkdir()
        (repo / "readme.txt").write_text("hello\n")
        sandbox = Docker(settings)
        try:
            bundle, known = bundled(repo, folder)
            sandbox.prepare(REVIEW, bundle, known.commit)
            yield Gate(str(path), engine, settings, sandbox, stranger)
            sandbox.drop(REVIEW)
        finally:
            engine.command("rm", "-f", stranger)


class proxied:
    """The proxy in a thread, for the time of the block."""

    def __init__(self, settings: Settings, path: Path, engine: str):
        self.proxy = Proxy(policy_of(settings, owner_of(path.parent)), engine)
        self.path = path
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(self.serve())

    async def serve(self) -> None:
        self.loop, self.task = asyncio.get_running_loop(), asyncio.current_task()
        await self.proxy.serve(self.path, self.ready.set)

    def __enter__(self) -> Proxy:
        self.thread.start()
        assert self.ready.wait(10)
        return self.proxy

    def __exit__(self, *_: object) -> None:
        assert self.task is not None
        self.loop.call_soon_threadsafe(self.task.cancel)
        self.thread.join(10)
