"""The proxy itself: one request a connection, judged, written anew for the engine, its answer handed back as it is."""

import asyncio
import contextlib
import json
import re
import secrets
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import structlog

from orchestrator.sandbox.contract import SandboxError
from orchestrator.sandbox.engine_proxy import schema, wire
from orchestrator.sandbox.engine_proxy.routes import Matched, Owned, match
from orchestrator.sandbox.engine_proxy.schema import OWNER, Policy
from orchestrator.sandbox.engine_proxy.wire import Head, Refused
from orchestrator.settings import Settings

log = structlog.get_logger(__name__)

HEAD_PATIENCE_S = 10.0
BODY_PATIENCE_S = 120.0  # between two pieces of a body
MOST_BODY_BYTES = 256 << 10
MOST_CONNECTIONS = 64
MOST_CONTAINERS = 24  # a review has one or two; a worker gone wild must not fill the machine
SWITCHING = b" 101 "


class EngineGone(Exception):
    """The engine does not answer."""


class Proxy:
    def __init__(self, policy: Policy, engine: str):
        """`engine` is the path of the engine's socket."""
        self.policy = policy
        self.engine = engine
        # The loop itself holds tasks weakly, so one that waits could be collected with its connection open.
        self.answering: set[asyncio.Task[None] | None] = set()

    async def serve(self, socket: Path, ready: Callable[[], None] = lambda: None) -> None:
        """Listen until cancelled. Whoever reaches the socket's folder may connect."""
        socket.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self.handle, socket, limit=wire.MOST_HEAD_BYTES)
        socket.chmod(0o666)
        async with server:
            ready()
            await server.serve_forever()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self.answering.add(task)
        try:
            await self.answer(reader, writer)
        except Refused as refused:
            log.warning("refused", reason=str(refused))
            write_answer(writer, refused.status, f"engine-proxy: {refused}.")
        except EngineGone as error:
            write_answer(writer, 502, f"engine-proxy: the engine at {self.engine} does not answer: {error}.")
        except (ConnectionError, TimeoutError) as error:
            log.info("a connection ended early", error=str(error))
        finally:
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(HEAD_PATIENCE_S):
                    await writer.drain()
            writer.close()
            self.answering.discard(task)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self.answering) > MOST_CONNECTIONS:
            raise Refused(f"more than {MOST_CONNECTIONS} connections", 503)
        async with asyncio.timeout(HEAD_PATIENCE_S):
            head = await wire.read_head(reader)
        if head is None:
            return
        matched = match(self.policy, head)
        body = b""
        if not matched.route.streams:
            async with asyncio.timeout(BODY_PATIENCE_S):
                given = await wire.read_body(reader, head, MOST_BODY_BYTES)
            made = matched.route.body(self.policy, given)
            body = b"" if made is None else json.dumps(made).encode()
            await self.check_made(matched, made)
        matched = await self.check_owned(matched)
        if matched.route.upgrades and head.headers.get("upgrade", "").lower() != "tcp":
            raise Refused("an exec is started with `Upgrade: tcp` only")
        await self.pass_on(matched, head, body, reader, writer)

    async def pass_on(
        self,
        matched: Matched,
        head: Head,
        body: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        from_engine, to_engine = await self.connected()
        try:
            if matched.route.streams:
                to_engine.write(request_head(head.method, matched, "application/x-tar", None))
                await send_chunks(reader, head, to_engine, self.policy.archive_bytes)
            else:
                to_engine.write(request_head(head.method, matched, "application/json", len(body)) + body)
            await to_engine.drain()
            if matched.route.upgrades and await began_stream(from_engine, writer):
                await both_ways(reader, writer, from_engine, to_engine)
            else:  # not a byte more of the client's goes to the engine: it would be a second request
                await copy(from_engine, writer)
        finally:
            to_engine.close()

    async def connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout(HEAD_PATIENCE_S):
                return await asyncio.open_unix_connection(self.engine)
        except (OSError, TimeoutError) as error:
            raise EngineGone(str(error) or "too slow") from None

    # What only the engine knows ------------------------------------------------------------

    async def check_made(self, matched: Matched, made: dict[str, Any] | None) -> None:
        """Of a container to be made: its volumes are ours, and there are not too many of it."""
        if made is None or "HostConfig" not in made:
            return
        for name in schema.volumes_of(made):
            await self.check_labels("volume", name, f"/volumes/{name}")
        ours = json.dumps({"label": [f"{OWNER}={self.policy.owner}"]})
        _, listed = await self.ask(f"/containers/json?all=1&filters={quote(ours, safe='')}")
        if isinstance(listed, list) and len(listed) >= MOST_CONTAINERS:
            raise Refused(f"there are {len(listed)} containers already", 429)

    async def check_owned(self, matched: Matched) -> Matched:
        """The request, a container named by its id: a name might be another one's by the time it is used."""
        name = matched.name
        match matched.route.owned:
            case Owned.NOTHING:
                pass
            case Owned.IMAGE:
                if name not in self.policy.images:
                    raise Refused(f"the image {name} is none of the settings'")
            case Owned.VOLUME:
                await self.check_labels("volume", name, f"/volumes/{name}")
            case Owned.EXEC:
                status, found = await self.ask(f"/exec/{name}/json")
                if status != 200 or not isinstance(found, dict):
                    raise Refused(f"there is no exec {name}", 404)
                container = str(found.get("ContainerID", ""))
                await self.check_labels("container", container, f"/containers/{container}/json")
            case _:
                found = await self.check_labels("container", name, f"/containers/{name}/json")
                if matched.route.owned is Owned.UNSTARTED and found.get("State", {}).get("Status") != "created":
                    raise Refused(f"{name} has been started, so nothing is unpacked into it")
                path = matched.path.replace(f"/containers/{name}", f"/containers/{found['Id']}", 1)
                return replace(matched, path=path)
        return matched

    async def check_labels(self, kind: str, name: str, path: str) -> dict[str, Any]:
        """What the engine says of a thing that was made through this proxy. Raises `Refused` of any other."""
        status, found = await self.ask(path)
        if status == 404 or not isinstance(found, dict):
            raise Refused(f"no such {kind}: {name}", 404)
        labels = found.get("Labels") or (found.get("Config") or {}).get("Labels") or {}
        if status != 200 or labels.get(OWNER) != self.policy.owner:
            raise Refused(f"the {kind} {name} is none of this worker's")
        return found

    async def ask(self, target: str) -> tuple[int, Any]:
        """A question of the proxy's own."""
        reader, writer = await self.connected()
        try:
            # 1.0, so that the answer comes unchunked and ends with the connection.
            writer.write(f"GET {target} HTTP/1.0\r\nHost: engine\r\n\r\n".encode())
            async with asyncio.timeout(BODY_PATIENCE_S):
                raw = await reader.read(-1)
            head, _, body = raw.partition(b"\r\n\r\n")
            return int(head.split(b" ", 2)[1]), json.loads(body)
        except (IndexError, ValueError):
            raise EngineGone("its answer cannot be read") from None
        finally:
            writer.close()


def owner_of(folder: Path) -> str:
    """This proxy's own mark, made once, beside its socket and readable by it alone."""
    file = folder / "owner"
    with contextlib.suppress(FileExistsError):
        file.touch(mode=0o600, exist_ok=False)
        file.write_text(secrets.token_hex(8))
    owner = file.read_text().strip()
    if not re.fullmatch(r"[0-9a-f]{16}", owner):
        raise SandboxError(f"{file} holds {owner[:40]!r}, expected 16 hex digits: remove the file.", retry=False)
    return owner


def run(settings: Settings, socket: Path, engine: str) -> None:
    """Until SIGTERM or SIGINT."""

    async def serve() -> None:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        policy = schema.policy_of(settings, owner_of(socket.parent))
        with contextlib.suppress(asyncio.CancelledError):
            await Proxy(policy, engine).serve(socket, lambda: log.info("listening", socket=str(socket), engine=engine))

    asyncio.run(serve())


def request_head(method: str, matched: Matched, kind: str, length: int | None) -> bytes:
    lines = [f"{method} {matched.version}{matched.path}{matched.query} HTTP/1.1", "Host: engine"]
    if method in ("POST", "PUT"):
        lines.append(f"Content-Type: {kind}")
        lines.append("Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}")
    lines += ["Connection: Upgrade", "Upgrade: tcp"] if matched.route.upgrades else ["Connection: close"]
    return "\r\n".join([*lines, "", ""]).encode()


async def send_chunks(reader: asyncio.StreamReader, head: Head, to_engine: asyncio.StreamWriter, most: int) -> None:
    pieces = wire.read_pieces(reader, head, most)
    while True:
        try:
            async with asyncio.timeout(BODY_PATIENCE_S):
                piece = await anext(pieces)
        except StopAsyncIteration:
            break
        to_engine.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        await to_engine.drain()
    to_engine.write(b"0\r\n\r\n")


async def began_stream(from_engine: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Hand the head of the engine's answer back; whether it turned the connection into a stream."""
    try:
        head = await from_engine.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise EngineGone("its answer has no end of its head") from None
    writer.write(head)
    return SWITCHING in head.split(b"\r\n", 1)[0] + b" "


async def both_ways(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    from_engine: asyncio.StreamReader,
    to_engine: asyncio.StreamWriter,
) -> None:
    """The stream lasts as long as the command; a client that closed its side may still be told things."""
    inward = asyncio.create_task(copy(reader, to_engine, half_close=True))
    try:
        await copy(from_engine, writer)
    finally:
        inward.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await inward


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, half_close: bool = False) -> None:
    while data := await reader.read(wire.READ_BYTES):
        writer.write(data)
        await writer.drain()
    if half_close and writer.can_write_eof():
        writer.write_eof()


def write_answer(writer: asyncio.StreamWriter, status: int, message: str) -> None:
    body = json.dumps({"message": message}).encode()
    reason = {400: "Bad Request", 404: "Not Found", 502: "Bad Gateway"}.get(status, "Refused")
    writer.write(
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n".encode()
        + body
    )
