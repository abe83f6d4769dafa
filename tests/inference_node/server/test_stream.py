"""A stream of events ends when its client leaves, at whichever moment that is."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.types import Message

from inference_node.server.stream import EventStream


async def left_after(looks: int) -> int:
    """A client leaves when the event loop has gone round so often; how many chunks were made meanwhile."""
    made = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal made
        while True:
            await asyncio.sleep(0)
            made += 1
            yield b"data: {}\n\n"

    async def receive() -> Message:
        for _ in range(looks):
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        await asyncio.sleep(0)

    stream = EventStream(chunks(), patience_s=10.0, send_timeout_s=10.0)
    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    async with asyncio.timeout(5):
        await stream(scope, receive, send)
    return made


@pytest.mark.parametrize("looks", range(60))
def test_a_client_that_leaves_at_any_moment_ends_the_stream(looks: int) -> None:
    """Bug class: a cancellation that comes as a chunk has just been sent is lost, and the answer is written to its end
    for nobody (asyncio.wait_for, Python 3.11)."""
    assert asyncio.run(left_after(looks)) <= looks + 2
