"""POST /states: what a trainer on another machine reads of this node's model. Served only where it was asked for.

asked     {"tokens": [...], "taps": [...], "form": "bf16" | "fp8", "model": fingerprint that is expected}
answered  a safetensors body (models/states.py) and the header X-States-SHA256
too large 413 with both numbers, before anything is computed: an answer is held whole, in several forms
busy      429 with Retry-After, when as many answers are under way as may be: they are large
"""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from inference_node.engine.api import QueueFull, StatesRead, StatesRequest, states_form
from inference_node.server.asking import Door
from inference_node.server.errors import Failed, Refused
from inference_node.server.routes import door, refusals
from inference_node.server.running import ClientGone, unless_gone
from inference_node.server.wire import Wire

router = APIRouter()

PART = 1 << 20
BUSY_S = 1
"""What a trainer is told to wait when all places are taken: about the time of one answer."""


class Places:
    """So many answers at once. Used on the event loop alone."""

    def __init__(self, most: int) -> None:
        self._free = self._most = most

    def take(self) -> None:
        if not self._free:
            raise QueueFull(waiting=self._most, retry_after_s=BUSY_S)
        self._free -= 1

    def give_back(self) -> None:
        self._free += 1


class StatesWire(Wire):
    tokens: list[int] = Field(min_length=1)
    taps: list[int] = Field(min_length=1, max_length=64)
    form: str = Field("bf16", pattern="^(" + "|".join(states_form.FORMS) + ")$")
    model: str = ""  # empty: whatever is served


Here = Annotated[Door, Depends(door)]


@router.post("/states", response_class=Response, responses=refusals(400, 409, 413, 429))
async def states(body: StatesWire, http: Request, here: Here) -> Response:
    """Outputs of some layers over a text."""
    served = str(here.options.states_model)
    if body.model and body.model != served:
        raise Refused(
            f"The model here has the fingerprint {served}, the one asked for {body.model}. Serve the same files that "
            "the trainer reads.",
            status=409,
            param="model",
            code="other_model",
        )
    _check_size(here, body)
    places: Places = http.app.state.places
    places.take()
    try:
        content, checksum = await unless_gone(http, _content(here, body, http.client.host if http.client else ""))
    except ClientGone:
        places.give_back()
        return Response(status_code=499)  # nobody reads it
    except BaseException:
        places.give_back()
        raise
    return Parts(content, checksum, places, here.options.send_timeout_s)


async def _content(here: Door, body: StatesWire, client: str) -> tuple[bytes, str]:
    """A body and its checksum."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[StatesRead] = loop.create_future()

    def arrived(read: StatesRead) -> None:
        if not answer.done():
            answer.set_result(read)

    def deliver(read: StatesRead) -> None:
        loop.call_soon_threadsafe(arrived, read)

    request = StatesRequest(tuple(body.tokens), tuple(body.taps), client)
    ticket = here.node.read_states(request, deliver)
    try:
        read = await answer
    finally:
        ticket.cancel()
    rows = read.rows
    if rows is None:
        raise read.error or Failed()

    def encoded() -> tuple[bytes, str]:
        content = states_form.encode(
            rows, form=body.form, model=here.options.states_model, tokens=body.tokens, taps=body.taps
        )
        return content, states_form.sha256(content)

    return await run_in_threadpool(encoded)  # a second and more for a long text: other clients are answered meanwhile


def _check_size(here: Door, body: StatesWire) -> None:
    """Raises Refused for states that are too large for one answer."""
    each = 2 * here.node.facts.hidden * len(body.taps)
    asked, most = each * len(body.tokens), here.options.states_bytes
    if asked > most:
        raise Refused(
            f"The states of {len(body.tokens)} tokens at {len(body.taps)} layers are {asked} bytes; an answer may hold "
            f"{most} (LAMPNODE_STATES_BYTES here). Ask for {most // each} tokens at most, or for fewer layers.",
            status=413,
            param="tokens",
            code="states_too_large",
        )


class Parts(Response):
    """A large body in parts, so that no more of it waits to be sent than the client takes; then the place is free."""

    def __init__(self, content: bytes, checksum: str, places: Places, send_timeout_s: float) -> None:
        self._places, self._send_timeout_s = places, send_timeout_s
        super().__init__(content, media_type="application/octet-stream", headers={states_form.CHECKSUM: checksum})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            content = memoryview(self.body)
            for start in range(0, len(content), PART):
                part = {"type": "http.response.body", "body": bytes(content[start : start + PART]), "more_body": True}
                async with asyncio.timeout(self._send_timeout_s):
                    await send(part)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (TimeoutError, OSError):
            pass  # a client that takes nothing is a client that has gone; the connection ends with the body cut
        finally:
            self._places.give_back()
