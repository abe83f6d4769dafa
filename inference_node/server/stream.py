"""Server-sent events that end when the client leaves, and that wait a little before they promise success.

The status line says 200 only once there is something to send, or after `patience_s`: a request that is refused or fails
before its first token gets an ordinary HTTP error. While nothing comes, comments keep the connection from looking dead;
they say whether the request waits for its turn or is being read.
A client that stops reading for `send_timeout_s` is a client that has gone.
"""

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from inference_node.engine.api import NodeError
from inference_node.server import answers
from inference_node.server.answers import READING, WAITING
from inference_node.server.errors import status_and_body
from inference_node.server.running import ClientGone, unless_gone

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream(Response):
    """Sends the chunks of an async iterator. An exception before the first chunk rises to the error handlers."""

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncIterator[bytes], *, patience_s: float, send_timeout_s: float) -> None:
        self._chunks = chunks
        self._patience_s = patience_s
        self._send_timeout_s = send_timeout_s
        self.status_code = 200
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(Request(scope, receive), self._send_all(send))
        except (ClientGone, TimeoutError, OSError):
            pass  # nobody is there to be told; leaving the iterator has cancelled the request
        finally:
            await self._close()

    async def _send_all(self, send: Send) -> None:
        first: asyncio.Future[bytes] = asyncio.ensure_future(anext(self._chunks))
        started, comment = False, WAITING
        try:
            while True:
                done, _ = await asyncio.wait({first}, timeout=self._patience_s)
                if done:
                    chunk = first.result()  # StopAsyncIteration is caught below, other errors rise
                    first = asyncio.ensure_future(anext(self._chunks))
                    if chunk == READING:
                        comment = chunk
                        if not started:
                            continue  # it can still fail
                else:
                    chunk = comment
                if not started:
                    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                    started = True
                await self._send(send, chunk, more=True)
        except StopAsyncIteration:
            await self._send(send, b"", more=False)
        except NodeError as error:
            if not started:
                raise
            await self._send(send, answers.event(status_and_body(error)[1]) + answers.DONE, more=False)
        finally:
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)

    async def _send(self, send: Send, chunk: bytes, *, more: bool) -> None:
        async with asyncio.timeout(self._send_timeout_s):
            await send({"type": "http.response.body", "body": chunk, "more_body": more})

    async def _close(self) -> None:
        close = getattr(self._chunks, "aclose", None)
        if close is not None:
            await close()
