"""Runs requests on the engine from async code: events come as an async iterator, leaving early cancels."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from starlette.requests import Request as HttpRequest

from inference_node.engine.api import Ended, Event, Node, Request, Ticket

T = TypeVar("T")


@asynccontextmanager
async def running(node: Node, requests: Sequence[Request]) -> AsyncIterator[AsyncIterator[tuple[int, Event]]]:
    """Submit all requests; give their events with the request's place. Whatever still runs at the exit is cancelled.

    Raises what `Node.submit` raises; then none of the requests stays in the queue.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()

    def deliver_for(place: int) -> Callable[[Event], None]:
        def deliver(event: Event) -> None:
            loop.call_soon_threadsafe(arrived.put_nowait, (place, event))

        return deliver

    async def events() -> AsyncIterator[tuple[int, Event]]:
        left = len(requests)
        while left:
            place, event = await arrived.get()
            left -= isinstance(event, Ended)
            yield place, event

    tickets: list[Ticket] = []
    try:
        for place, request in enumerate(requests):
            tickets.append(node.submit(request, deliver_for(place)))
        yield events()
    finally:
        for ticket in tickets:
            ticket.cancel()


async def gone(http: HttpRequest) -> None:
    """Return when the client has closed its connection. The body must have been read."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


class ClientGone(Exception):
    """The client left before its answer was ready."""


async def unless_gone(http: HttpRequest, work: Awaitable[T]) -> T:
    """The work's result; when the client leaves first the work is cancelled and ClientGone raised."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(gone(http))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
