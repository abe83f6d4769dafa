"""One HTTP/1.1 request, read so strictly that the engine cannot read another one out of the same bytes.

Nothing of a request's head is passed on as it came: `server` writes a new one from what was understood.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

MOST_HEAD_BYTES = 16 << 10
MOST_CHUNK_BYTES = 4 << 20
READ_BYTES = 64 << 10
REQUEST_LINE = re.compile(rb"(GET|HEAD|POST|PUT|DELETE|PATCH|OPTIONS) (/[!-~]{0,2000}) HTTP/1\.1")
HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}):[ \t]*([\x20-\x7e\t]*?)[ \t]*")
LENGTH = re.compile(r"0|[1-9][0-9]{0,11}")
CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,7}")


class Refused(Exception):
    """The request does not pass; the message says why."""

    def __init__(self, message: str, status: int = 403):
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Head:
    """`length` is the body's Content-Length; None when it comes in chunks."""

    method: str
    target: str
    headers: Mapping[str, str]  # names in lower case
    length: int | None


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """None when the connection was closed without a word. Raises `Refused`."""
    try:
        text = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise Refused("the request ends within its head", 400) from None
    except asyncio.LimitOverrunError:
        raise Refused(f"the head of the request is longer than {MOST_HEAD_BYTES} bytes", 431) from None
    if len(text) > MOST_HEAD_BYTES:
        raise Refused(f"the head of the request is longer than {MOST_HEAD_BYTES} bytes", 431)
    return parse_head(text[:-4])


def parse_head(text: bytes) -> Head:
    first, *lines = text.split(b"\r\n")
    line = REQUEST_LINE.fullmatch(first)
    if line is None:
        raise Refused("the request line is not one of HTTP/1.1 with a plain path", 400)
    headers: dict[str, str] = {}
    for each in lines:
        header = HEADER.fullmatch(each)
        if header is None:
            raise Refused("a header line is malformed", 400)
        name = header[1].decode().lower()
        if name in headers:
            raise Refused(f"the header {name} comes twice", 400)
        headers[name] = header[2].decode()
    return Head(line[1].decode(), line[2].decode(), headers, body_length(headers))


def body_length(headers: Mapping[str, str]) -> int | None:
    if "transfer-encoding" in headers:
        if "content-length" in headers:
            raise Refused("the request has both a length and chunks", 400)
        if headers["transfer-encoding"] != "chunked":
            raise Refused("a transfer encoding other than chunked", 400)
        return None
    length = headers.get("content-length", "0")
    if not LENGTH.fullmatch(length):
        raise Refused("the Content-Length is no plain number", 400)
    return int(length)


async def read_body(reader: asyncio.StreamReader, head: Head, most: int) -> bytes:
    """A body that is small and has a length. Raises `Refused`."""
    if head.length is None:
        raise Refused("this request must have a Content-Length and no chunks", 411)
    if head.length > most:
        raise Refused(f"the body has {head.length} bytes, at most {most} are accepted", 413)
    try:
        return await reader.readexactly(head.length)
    except asyncio.IncompleteReadError:
        raise Refused("the body is shorter than its Content-Length", 400) from None


async def read_pieces(reader: asyncio.StreamReader, head: Head, most: int) -> AsyncIterator[bytes]:
    """A body of any framing, piece by piece. Raises `Refused` on the way."""
    total = 0
    pieces = read_chunks(reader) if head.length is None else read_length(reader, head.length)
    async for piece in pieces:
        total += len(piece)
        if total > most:
            raise Refused(f"the body has more than {most} bytes", 413)
        yield piece


async def read_length(reader: asyncio.StreamReader, left: int) -> AsyncIterator[bytes]:
    while left:
        piece = await reader.read(min(left, READ_BYTES))
        if not piece:
            raise Refused("the body is shorter than its Content-Length", 400)
        left -= len(piece)
        yield piece


async def read_chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """No extensions and no trailers: nothing of ours sends them."""
    try:
        while True:
            size_line = (await reader.readuntil(b"\r\n"))[:-2]
            if not CHUNK_SIZE.fullmatch(size_line) or int(size_line, 16) > MOST_CHUNK_BYTES:
                raise Refused("a chunk's size is malformed or too large", 400)
            piece = await reader.readexactly(int(size_line, 16))
            if await reader.readexactly(2) != b"\r\n":
                raise Refused("a chunk does not end where it says, or a trailer follows", 400)
            if not piece:
                return
            yield piece
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise Refused("the chunks end too early", 400) from None


def query_of(target: str) -> tuple[str, dict[str, str]]:
    """Path and query of a request's target. Raises `Refused` where two readers could disagree."""
    path, _, query = target.partition("?")
    if "%" in path or "//" in path or "#" in target or "/." in path or ";" in target:
        raise Refused("the path is not written plainly", 400)
    found: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name, equals, value = part.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z0-9_]+", name):
            raise Refused("the query is malformed", 400)
        if any(name.lower() == other.lower() for other in found):
            raise Refused(f"the query names {name} twice", 400)
        found[name] = unquoted(value)
    return path, found


def unquoted(value: str) -> str:
    if re.search(r"%(?![0-9A-Fa-f]{2})", value):
        raise Refused("the query is malformed", 400)
    plain = value.replace("+", " ").encode()
    raw = re.sub(rb"%([0-9A-Fa-f]{2})", lambda code: bytes([int(code[1], 16)]), plain)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise Refused("the query is no UTF-8", 400) from None
    if not text.isprintable():
        raise Refused("the query has control characters", 400)
    return text
