"""Refusals and failures in OpenAI's shape: {"error": {"message", "type", "code", "param", ...}}."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from inference_node.engine.api import ContextFull, NodeError, NotReady, OutOfMemory, PromptTooLong, QueueFull

log = logging.getLogger("lamplighter.node.server")


ERROR_SHAPE = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "code": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "param": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "n_prompt_tokens": {"type": "integer"},
                "n_ctx": {"type": "integer"},
            },
        }
    },
}


class Refused(NodeError):
    """A request that is not served, with the field that is to blame where there is one."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


class Failed(NodeError):
    """A bug of ours ended the request; the engine's log has it."""

    def __init__(self) -> None:
        super().__init__("The node failed on this request; its log says why.")


class JsonReply(Response):
    """JSON in ASCII: text that no encoding can carry cannot break the reply that quotes it."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()


def status_and_body(error: Exception) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers that tell a client about an error. What is no NodeError is a bug and says only that."""
    match error:
        case Refused():
            kind = {401: "authentication_error", 404: "not_found_error"}.get(error.status, "invalid_request_error")
            return error.status, body(str(error), kind, error.code, param=error.param), {}
        case PromptTooLong():
            counts = {"n_prompt_tokens": error.prompt_tokens, "n_ctx": error.context}
            return 400, _too_long(str(error), counts), {}
        case ContextFull():
            return 400, _too_long(str(error), {"n_prompt_tokens": error.asked, "n_ctx": error.context}), {}
        case QueueFull():
            headers = {"Retry-After": str(error.retry_after_s)}
            return 429, body(str(error), "rate_limit_error", "queue_full"), headers
        case NotReady():
            return 503, body(str(error), "unavailable_error", "not_ready"), {"Retry-After": "5"}
        case OutOfMemory():
            message = f"{error} The memory was given back; a shorter request may be served now."
            return 503, body(message, "server_error", "out_of_memory"), {"Retry-After": "1"}
        case NodeError() if not isinstance(error, Failed):
            return 400, body(str(error), "invalid_request_error", None), {}
    return 500, body(str(Failed()), "server_error", "internal_error"), {}


def body(message: str, kind: str, code: str | None, *, param: str | None = None, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": code, "param": param, **more}}


def reply(error: Exception) -> JsonReply:
    status, content, headers = status_and_body(error)
    return JsonReply(content, status, headers)


def install(app: FastAPI) -> None:
    """Every error that leaves the app has the one shape."""

    @app.exception_handler(NodeError)
    async def told(_: Request, error: NodeError) -> Response:
        return reply(error)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> Response:
        return reply(in_words(error.errors()))

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
        return JsonReply(body(str(error.detail), kind, None), error.status_code, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return reply(error)


def in_words(problems: Sequence[Mapping[str, Any]]) -> Refused:
    """One refusal from what the shapes found wrong: the field, what was found, what was expected."""
    problem = problems[0]
    where = [str(part) for part in problem["loc"] if part != "body"]
    # A union reports one problem per shape it tried; the path then ends with that shape's name, which nobody sent.
    path = ".".join(part for part in where if "[" not in part and part not in SHAPES)
    if problem["type"] == "json_invalid":
        return Refused(f"The request is not JSON: {problem.get('ctx', {}).get('error', problem['msg'])}.")
    if problem["type"] == "extra_forbidden":
        return Refused(f'"{path}" is no parameter of this endpoint.', param=path, code="unknown_parameter")
    message = str(problem["msg"]).removeprefix("Value error, ")
    if not path and problem["type"] != "value_error":
        return Refused("The body must be a JSON object, sent with Content-Type: application/json.")
    if not path:
        return Refused(f"{message}.")
    found = "" if problem["type"] in ("missing", "value_error") else f" (found {_short(problem.get('input'))})"
    return Refused(f"{path}: {message}{found}.", param=path)


SHAPES = ("str", "list", "NamedTool", "int", "dict")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _too_long(message: str, counts: Mapping[str, int]) -> dict[str, Any]:
    """llama-server's type and counts, OpenAI's code: clients look for either to shorten their history and try again."""
    return body(message, "exceed_context_size_error", "context_length_exceeded", param="messages", **counts)
