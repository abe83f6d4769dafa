"""What a request must pass before any endpoint sees it: its size, the host it names, the key."""

import secrets
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inference_node.server.errors import Refused, reply

OPEN = frozenset(("/health", "/health/live", "/", "/page.js", "/page.css"))
"""Paths without a key: they hold no text of anybody's. The page asks for the key and reads /stats with it."""


class Guard:
    """ASGI middleware. Plain ASGI, so that it does not stand between a stream and its client's disconnect."""

    def __init__(
        self, app: ASGIApp, *, keys: Sequence[str] = (), hosts: Sequence[str] = (), max_body_bytes: int = 64 << 20
    ) -> None:
        """hosts: names that requests may use for this node, against web pages that point theirs at it; () is any."""
        self._app = app
        self._keys = [key.encode() for key in keys]
        self._hosts = frozenset(host.lower() for host in hosts)
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refused = self._host(headers) or self._key(scope["path"], headers) or self._declared_size(headers)
        if refused is not None:
            await reply(refused)(scope, receive, send)
            return
        seen, told = 0, False

        async def counted() -> Message:
            nonlocal seen
            if seen > self._max_body_bytes:
                return {"type": "http.disconnect"}  # whoever reads further gets no more of it
            message = await receive()
            seen += len(message.get("body", b""))
            return message

        async def answer(message: Message) -> None:
            nonlocal told
            if seen <= self._max_body_bytes:
                await send(message)
            elif not told:
                told = True
                await reply(self._too_large())(scope, receive, send)

        await self._app(scope, counted, answer)

    def _host(self, headers: Headers) -> Refused | None:
        if not self._hosts:
            return None
        host = headers.get("host", "").lower()
        name = host if host.startswith("[") and host.endswith("]") else host.rpartition(":")[0] or host
        if name in self._hosts:
            return None
        return Refused(
            f'The node is asked for as "{name}", but answers to {", ".join(sorted(self._hosts))}. '
            "Set LAMPNODE_ALLOWED_HOSTS to the names that clients use.",
            status=421,
        )

    def _key(self, path: str, headers: Headers) -> Refused | None:
        if not self._keys or path in OPEN:
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        given_bytes = (given.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")).encode()
        if any(secrets.compare_digest(given_bytes, key) for key in self._keys):
            return None
        return Refused(
            "This node needs its API key: send it as `Authorization: Bearer KEY`.", status=401, code="invalid_api_key"
        )

    def _declared_size(self, headers: Headers) -> Refused | None:
        declared = headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > self._max_body_bytes:
            return self._too_large()
        return None

    def _too_large(self) -> Refused:
        return Refused(f"The request is larger than {self._max_body_bytes} bytes.", status=413)
