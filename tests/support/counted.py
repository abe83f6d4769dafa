"""A client's transport that counts what goes over the wire, so that no request can be forgotten."""

from collections import Counter
from types import TracebackType
from typing import Self

import httpx


class CountedTransport(httpx.AsyncBaseTransport):
    """For one client at a time. `chats` has how many questions were sent, by the status of their answer."""

    def __init__(self) -> None:
        self.chats: Counter[str] = Counter()
        self._inner: httpx.AsyncHTTPTransport | None = None

    async def __aenter__(self) -> Self:
        self._inner = httpx.AsyncHTTPTransport()
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        if self._inner is not None:
            await self._inner.__aexit__(kind, error, trace)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        assert self._inner is not None
        chat = request.url.path.endswith("/chat/completions")
        if chat:
            self.chats["sent"] += 1
        response = await self._inner.handle_async_request(request)
        if chat:
            self.chats[str(response.status_code)] += 1
        return response
