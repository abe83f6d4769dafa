"""The worker's egress proxy: CONNECT only, to allow-listed host names, and to nowhere else.

Sandboxes have no network. While an install step's command with egress runs, its step runner takes
connections of proxy clients on a loopback port inside and carries them as streams over its own
stdio to this proxy (see channel.py). Why not a bound Unix socket: a named volume cannot carry the
worker's socket when the worker is itself a container, gVisor refuses host sockets, and a socket in
the box would be open to commands without egress too. The same rules serve the worker's own git
fetches through `listen`.

What protects whom:
- only host names of the allow-list, only their ports (443 unless an entry says `host:port`);
- no IP literals; the name is resolved here and the connection goes to the address that was
  checked, so rebinding cannot pass;
- addresses that are not public are refused unless in `allow_ranges` (a company mirror);
- bytes are counted in both directions and the step ends up refused when it used up its share;
- each host that was asked for is logged, refused ones with the reason.
"""

import ipaddress
import re
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from orchestrator.sandbox.contract import SandboxError

HTTPS = 443
LONGEST_REQUEST = 16 << 10
CONNECT_TIMEOUT_S = 20.0
IDLE_TIMEOUT_S = 300.0
CHUNK = 1 << 16
MOST_NOTES = 1000  # of one step, in the log and for a command

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Client(Protocol):
    """A connected socket, or something used like one."""

    def recv(self, most: int, /) -> bytes: ...

    def sendall(self, data: bytes, /) -> None: ...

    def close(self) -> None: ...


class Refused(Exception):
    """The request breaks a rule; the text is for the log and for the client."""


@dataclass(frozen=True)
class Rules:
    """Where connections may go.

    hosts           names, `*.name` for names below it, each optionally with `:port`
    allow_ranges    address ranges that are not public and still allowed
    """

    hosts: tuple[str, ...]
    allow_ranges: tuple[Network, ...] = ()

    def check_name(self, host: str, port: int) -> None:
        """Raises `Refused`."""
        if not re.fullmatch(r"[A-Za-z0-9._:%\[\]-]{1,253}", host):
            raise Refused(f"{host!r} is no host name")
        if is_address(host):
            raise Refused(f"{host} is an address; only host names are allowed")
        name = host.lower().rstrip(".")
        for entry in self.hosts:
            allowed, _, allowed_port = entry.lower().partition(":")
            if port != int(allowed_port or HTTPS):
                continue
            if name == allowed or (allowed.startswith("*.") and name.endswith(allowed[1:])):
                return
        raise Refused(f"{host}:{port} is not among the allowed hosts (LAMPLIGHTER_EGRESS_HOSTS)")

    def check_address(self, host: str, text: str) -> None:
        """Raises `Refused`."""
        address = unwrapped(ipaddress.ip_address(text.partition("%")[0]))
        if address.is_global and not address.is_multicast:
            return
        if any(address.version == span.version and address in span for span in self.allow_ranges):
            return
        raise Refused(
            f"{host} resolves to {address}, which is not public (allow it by LAMPLIGHTER_EGRESS_ALLOW_RANGES)"
        )


def rules(hosts: Iterable[str], allow_ranges: Iterable[str], pip_index: str = "") -> Rules:
    """Rules from settings; the configured index's own host is allowed. Raises `SandboxError` on nonsense."""
    allowed = list(hosts)
    index = urlsplit(pip_index)
    if index.hostname and index.scheme == "https":
        allowed.append(f"{index.hostname}:{index.port or HTTPS}")
    for entry in allowed:
        port = entry.partition(":")[2]
        if port and not port.isdigit():
            raise SandboxError(f"LAMPLIGHTER_EGRESS_HOSTS: {entry!r} is no host or host:port.")
    try:
        spans = tuple(ipaddress.ip_network(span, strict=False) for span in allow_ranges)
    except ValueError as error:
        raise SandboxError(f"LAMPLIGHTER_EGRESS_ALLOW_RANGES: {error}.") from None
    return Rules(tuple(allowed), spans)


def is_address(host: str) -> bool:
    """Also the spellings that resolvers take for addresses: 0x7f.1, 2130706433, [::1]."""
    bare = host.strip("[]").partition("%")[0]
    if ":" in bare:
        return True
    try:
        socket.inet_aton(bare)
    except OSError:
        return False
    return True


def unwrapped(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one that merely carries it (mapped, 6to4, NAT64, Teredo)."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            return address.ipv4_mapped
        if address.sixtofour:
            return address.sixtofour
        if address.teredo:
            return address.teredo[1]
        if address in ipaddress.ip_network("64:ff9b::/96"):
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


@dataclass
class Share:
    """Bytes that one step may still move, both directions together."""

    left: int
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, count: int) -> None:
        """Raises `Refused` when the step has used up its share."""
        with self.lock:
            self.left -= count
            if self.left < 0:
                raise Refused("the step has used up the bytes it may move")


class Proxy:
    """Serves the proxy clients of one step, or of the worker's git.

    log         called with (host:port, "" or why it was refused), once for each such pair
    refusals    requests of the running command that came to nothing, with the reason; whoever starts
                the next command clears it
    """

    def __init__(
        self,
        allowed: Rules,
        *,
        most_bytes: int,
        log: Callable[[str, str], None] = lambda host, refusal: None,
        resolve: Callable[[str, int], list[str]] | None = None,
    ):
        self.rules = allowed
        self.share = Share(most_bytes)
        self.refusals: list[str] = []
        self.log = log
        self.logged: set[tuple[str, str]] = set()
        self.resolve = resolve or addresses

    def serve(self, client: Client) -> None:
        """One client connection, until one side ends it. Never raises."""
        asked = "?"
        try:
            request = read_request(client)
            asked = request.target
            host, port = destination(request)
            self.rules.check_name(host, port)
            self.share.take(0)
            upstream = self.connect(host, port)
        except Refused as refusal:
            self.note(asked, str(refusal), str(refusal))
            refuse(client, 403, str(refusal))
            return
        except OSError as error:
            self.note(asked, f"failed: {error}", f"{asked} cannot be reached: {error}")
            refuse(client, 502, str(error))
            return
        self.note(asked)
        with upstream, suppress(OSError, Refused):
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            self.carry(client, upstream, request.rest)
        client.close()

    def note(self, asked: str, refusal: str = "", in_words: str = "") -> None:
        """For log and command; bounded, because a command may ask as often as it likes."""
        if in_words and len(self.refusals) < MOST_NOTES:
            self.refusals.append(in_words)
        if (asked, refusal) not in self.logged and len(self.logged) < MOST_NOTES:
            self.logged.add((asked, refusal))
            self.log(asked, refusal)

    def connect(self, host: str, port: int, *, timeout_s: float = CONNECT_TIMEOUT_S) -> socket.socket:
        """Resolve once, check every address, and connect to a checked one. Raises `Refused`, OSError."""
        places = self.resolve(host, port)
        for address in places:
            self.rules.check_address(host, address)
        problem: OSError = OSError(f"{host} has no address")
        for address in places:
            try:
                upstream = socket.create_connection((address, port), timeout=timeout_s)
            except OSError as error:
                problem = error
                continue
            upstream.settimeout(IDLE_TIMEOUT_S)
            return upstream
        raise problem

    def carry(self, client: Client, upstream: socket.socket, first: bytes) -> None:
        """Both directions at once; the end of either ends both."""

        def up() -> None:
            data = first
            with suppress(OSError, Refused):
                while True:
                    if data:
                        self.share.take(len(data))
                        upstream.sendall(data)
                    data = client.recv(CHUNK)
                    if not data:
                        break
            with suppress(OSError):
                upstream.shutdown(socket.SHUT_RDWR)

        sender = threading.Thread(target=up, name="egress-up", daemon=True)
        sender.start()
        try:
            while data := upstream.recv(CHUNK):
                self.share.take(len(data))
                client.sendall(data)
        finally:
            client.close()
            with suppress(OSError):
                upstream.shutdown(socket.SHUT_RDWR)
            sender.join()

    def listen(self, address: Path | tuple[str, int]) -> "Listener":
        """Serve on a Unix socket (a path) or a loopback port (host, 0) until the listener is closed."""
        return Listener(self, address)


class Listener:
    """Accepts clients in a thread of its own. A context manager; `url` is for http_proxy and git."""

    def __init__(self, proxy: Proxy, address: Path | tuple[str, int]):
        self.proxy = proxy
        self.socket = socket.socket(socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET)
        self.socket.bind(str(address) if isinstance(address, Path) else address)
        self.socket.listen(64)
        threading.Thread(target=self.accept, name="egress-listener", daemon=True).start()

    @property
    def url(self) -> str:
        host, port = self.socket.getsockname()[:2]
        return f"http://{host}:{port}"

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.socket.accept()
            except OSError:
                return
            client.settimeout(IDLE_TIMEOUT_S)
            threading.Thread(target=self.proxy.serve, args=(Connection(client),), name="egress", daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Connection:
    """A socket as a client. Closing it also wakes a thread that waits in `recv`."""

    def __init__(self, connected: socket.socket):
        self.socket = connected
        self.recv = connected.recv
        self.sendall = connected.sendall

    def close(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


# The wire ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    rest: bytes  # what the client sent after the head already


def read_request(client: Client) -> Request:
    head = b""
    while b"\r\n\r\n" not in head:
        data = client.recv(4096)
        if not data:
            raise Refused("the client closed the connection before it asked for anything")
        head += data
        if len(head) > LONGEST_REQUEST:
            raise Refused("the request's head is too long")
    head, _, rest = head.partition(b"\r\n\r\n")
    words = head.split(b"\r\n")[0].decode("latin-1").split(" ")
    if len(words) != 3:
        raise Refused("no HTTP request")
    return Request(words[0], words[1][:300], rest)


def destination(request: Request) -> tuple[str, int]:
    if request.method != "CONNECT":
        raise Refused(f"only CONNECT is served, not {request.method}: use an https address")
    host, _, port = request.target.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise Refused("CONNECT needs host:port")
    return host, int(port)


def refuse(client: Client, status: int, reason: str) -> None:
    body = f"lamplighter egress: {reason}\n".encode()
    head = f"HTTP/1.1 {status} Refused by the egress proxy\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with suppress(OSError):
        client.sendall(head.encode() + body)
    client.close()


def addresses(host: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:  # a label that is too long
        raise OSError(f"{host[:100]} is no name that can be looked up") from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
