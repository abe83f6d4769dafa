"""A SOCKS5 door for git, on loopback: it resolves and connects itself, and only to public addresses.

git would resolve a name, follow a redirect and connect without asking. Through this door every connection of a
fetch, also after a redirect, is judged by the address that is really connected to, so a name that changes its
answer between check and use gains nothing. Bytes are capped, because a server decides how much it sends.
"""

import contextlib
import ipaddress
import os
import select
import socket
import sys
import threading
from collections.abc import Sequence
from types import TracebackType

CONNECT_S = 20.0
CHUNK = 1 << 16
SOCKS = 5
GRANTED, FAILED, NOT_ALLOWED = 0, 1, 2

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Ranges = Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]


def public(address: Address, allowed: Ranges = ()) -> bool:
    """Whether it may be connected to: a public unicast address, or one in a range that the operator allows."""
    if any(address in network for network in allowed if network.version == address.version):
        return True
    hidden = _hidden_ipv4(address)
    if hidden is not None:
        return public(hidden, allowed)
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _hidden_ipv4(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv6 one stands for (mapped, 6to4, Teredo, NAT64), which is what is reached."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in ipaddress.IPv6Network("64:ff9b::/96"):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


class Outward:
    """Open as a context manager around one git command.

    `refused` names, in words, what was not let through, and `failed` what could not be reached.
    """

    def __init__(self, *, allowed: Ranges, bytes_cap: int):
        self._allowed = allowed
        self._left = bytes_cap
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ended = threading.Event()
        self.refused: list[str] = []
        self.failed: list[str] = []

    @property
    def spent(self) -> bool:
        """Whether a connection was ended because too many bytes came."""
        return self._left < 0

    @property
    def url(self) -> str:
        """For curl: h means that names are resolved here."""
        return f"socks5h://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> "Outward":
        threading.Thread(target=self._accept, daemon=True, name="outward").start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._listener.close()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                ready, _, _ = select.select([self._listener], [], [], 0.5)
                if ready:
                    client, _ = self._listener.accept()
                    threading.Thread(target=self._serve, args=(client,), daemon=True).start()
            except (OSError, ValueError):  # closed by __exit__
                return

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                client.settimeout(CONNECT_S)
                host, port = _greeting(client)
            except (OSError, ValueError):
                _answer(client, FAILED)
                return
            try:
                server = self._connect(host, port)
            except PermissionError as error:
                self.refused.append(str(error))
                _answer(client, NOT_ALLOWED)
                return
            except (OSError, ValueError) as error:
                self.failed.append(_in_words(host, port, error))
                _answer(client, FAILED)
                return
            with server:
                _answer(client, GRANTED)
                self._relay(client, server)

    def _connect(self, host: str, port: int) -> socket.socket:
        """Connect to the first good address of the host. Raises PermissionError when it has none."""
        failure: OSError = PermissionError(f'"{host}" has no address')
        for family, kind, protocol, _, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            address = ipaddress.ip_address(str(where[0]).partition("%")[0])
            if not public(address, self._allowed):
                failure = PermissionError(f'"{host}" is at {address}, a private address')
                continue
            try:
                server = socket.socket(family, kind, protocol)
                server.settimeout(CONNECT_S)
                server.connect(where)
                return server
            except OSError as error:
                failure = error
        raise failure

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        other = {client: server, server: client}
        while not self._ended.is_set():
            ready, _, _ = select.select([client, server], [], [], 1.0)
            for side in ready:
                try:
                    data = side.recv(CHUNK)
                    self._left -= len(data)
                    if not data or self._left < 0:
                        return
                    other[side].sendall(data)
                except OSError:
                    return


def _in_words(host: str, port: int, error: OSError | ValueError) -> str:
    if isinstance(error, socket.gaierror | ValueError):  # ValueError: no name at all, such as an empty label
        return f'no machine is known by the name "{host}"'
    if isinstance(error, TimeoutError):
        return f'"{host}" does not answer on port {port}'
    return f'"{host}" cannot be reached on port {port}: {error.strerror or error}'


def _greeting(client: socket.socket) -> tuple[str, int]:
    """The host and port that are asked for. Raises ValueError for anything but a CONNECT without a password."""
    version, methods = _exactly(client, 2)
    if version != SOCKS or 0 not in _exactly(client, methods):
        raise ValueError("not SOCKS5 without a password")
    client.sendall(bytes([SOCKS, 0]))
    version, command, _, kind = _exactly(client, 4)
    if version != SOCKS or command != 1:
        raise ValueError("not a CONNECT")
    if kind == 1:
        host = socket.inet_ntop(socket.AF_INET, _exactly(client, 4))
    elif kind == 4:
        host = socket.inet_ntop(socket.AF_INET6, _exactly(client, 16))
    elif kind == 3:
        host = _exactly(client, _exactly(client, 1)[0]).decode("ascii")
    else:
        raise ValueError(f"address kind {kind}")
    return host, int.from_bytes(_exactly(client, 2), "big")


def _answer(client: socket.socket, code: int) -> None:
    with contextlib.suppress(OSError):
        client.sendall(bytes([SOCKS, code, 0, 1, 0, 0, 0, 0, 0, 0]))


def _exactly(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = client.recv(count - len(data))
        if not more:
            raise ValueError("ended early")
        data += more
    return data


def through(door: int, host: str, port: int) -> None:
    """Join stdin and stdout to a connection made by the door on that loopback port: ssh's ProxyCommand."""
    with socket.create_connection(("127.0.0.1", door)) as server:
        name = host.encode("ascii")
        server.sendall(bytes([SOCKS, 1, 0, SOCKS, 1, 0, 3, len(name)]) + name + port.to_bytes(2, "big"))
        _exactly(server, 2)
        if _exactly(server, 10)[1] != GRANTED:
            raise SystemExit(f"no connection to {host}")
        while True:
            ready, _, _ = select.select([0, server.fileno()], [], [])
            for side in ready:
                data = os.read(side, CHUNK)
                if not data:
                    return
                if side == 0:
                    server.sendall(data)
                else:
                    os.write(1, data)


if __name__ == "__main__":
    through(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
