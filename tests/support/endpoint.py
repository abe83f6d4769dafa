"""An OpenAI-compatible endpoint that says what a test tells it to: a real server on a real socket.

with Endpoint(answers=[text("hello"), refusal(503)]) as endpoint:
    HttpChatModel(endpoint.url).ask(...)
endpoint.bodies      # what was asked
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

Reply = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Server"

    def log_message(self, *_: Any) -> None:
        pass

    def send_json(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def event(self, piece: Any) -> None:
        self.wfile.write(f"data: {piece if isinstance(piece, str) else json.dumps(piece)}\n\n".encode())
        self.wfile.flush()

    def do_GET(self) -> None:
        found = self.server.pages.get(self.path)
        self.send_json(404, {"error": {"message": "no such path"}}) if found is None else self.send_json(200, found)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        self.server.headers.append(dict(self.headers))
        answers = self.server.answers
        reply = answers.pop(0) if len(answers) > 1 else answers[0]
        try:
            reply(self)
        except (BrokenPipeError, ConnectionResetError):
            self.server.hung_up.set()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    answers: list[Reply]
    bodies: list[dict[str, Any]]
    headers: list[dict[str, str]]
    pages: dict[str, Any]
    hung_up: threading.Event


class Endpoint:
    """The last of the answers is given again and again."""

    def __init__(self, answers: Sequence[Reply] = (), **pages: Any):
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.answers = list(answers) or [text("hello")]
        self._server.bodies, self._server.headers = [], []
        self._server.hung_up = threading.Event()
        models = {"object": "list", "data": [{"id": "test-model", "object": "model"}]}
        self._server.pages = {"/v1/models": models, **{f"/{name}": page for name, page in pages.items()}}
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> "Endpoint":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def give(self, answers: Sequence[Reply]) -> None:
        """From now on these."""
        self._server.answers = list(answers)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return self._server.bodies

    @property
    def headers(self) -> list[dict[str, str]]:
        return self._server.headers

    @property
    def hung_up(self) -> threading.Event:
        return self._server.hung_up


# Replies ------------------------------------------------------------------------------------

USAGE = {"prompt_tokens": 120, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 100}}


def streamed(*deltas: Any, finish: str = "stop", usage: Any = USAGE, **last: Any) -> Reply:
    def reply(handler: Handler) -> None:
        handler.begin_stream()
        handler.wfile.write(b": reading\n\n")
        for delta in deltas:
            handler.event({"model": "test-model", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        handler.event({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}], **last})
        handler.event({"choices": [], "usage": usage})
        handler.event("[DONE]")

    return reply


def text(content: str, **more: Any) -> Reply:
    return streamed(
        {"role": "assistant"}, *({"content": content[at : at + 9]} for at in range(0, len(content), 9)), **more
    )


def tool_call(name: str, arguments: Any, **more: Any) -> Reply:
    """As OpenAI streams it: the name first, then pieces of the arguments."""
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments)
    head = {"index": 0, "id": "abc", "type": "function", "function": {"name": name, "arguments": ""}}
    pieces = [{"index": 0, "function": {"arguments": raw[at : at + 5]}} for at in range(0, len(raw), 5)]
    deltas = [{"tool_calls": [piece]} for piece in (head, *pieces)]
    return streamed({"role": "assistant", "content": None}, *deltas, finish="tool_calls", **more)


def refusal(status: int, message: str = "no", *, headers: Mapping[str, str] | None = None, **more: Any) -> Reply:
    error = {"message": message, "type": "x", **more}
    return lambda handler: handler.send_json(status, {"error": error}, headers)


def nothing_for(seconds: float) -> Reply:
    """A stream that says nothing but comments."""

    def reply(handler: Handler) -> None:
        handler.begin_stream()
        for _ in range(int(seconds / 0.05)):
            handler.wfile.write(b": still reading\n\n")
            handler.wfile.flush()
            if handler.server.hung_up.wait(0.05):
                return

    return reply
