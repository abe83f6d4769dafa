"""The egress proxy's rules, with real sockets on loopback and a resolver that the test controls."""

import ipaddress
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.sandbox import egress
from orchestrator.sandbox.contract import SandboxError
from tests.support.waiting import wait_for

RULES = egress.rules(("pypi.org", "*.pythonhosted.org", "mirror.example:8443"), ())
LOOPBACK = ("127.0.0.0/8", "::1/128")


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("pypi.org", 443),
        ("PyPI.org", 443),
        ("pypi.org.", 443),
        ("files.pythonhosted.org", 443),
        ("a.b.pythonhosted.org", 443),
        ("mirror.example", 8443),
    ],
)
def test_allowed_names_pass(host: str, port: int):
    RULES.check_name(host, port)


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("pypi.org", 80),
        ("pypi.org", 8443),
        ("mirror.example", 443),
        ("evil-pypi.org", 443),
        ("pypi.org.evil.example", 443),
        ("pythonhosted.org", 443),
        ("evilpythonhosted.org", 443),
        ("pypi.org..", 444),
    ],
)
def test_other_names_and_ports_are_refused(host: str, port: int):
    with pytest.raises(egress.Refused, match="not among the allowed hosts"):
        RULES.check_name(host, port)


@pytest.mark.parametrize("host", ["pypi.org@evil.example", "pypi.org\0.evil.example", "", "p\u00fcpi.org", "x" * 300])
def test_what_is_no_host_name_is_refused(host: str):
    with pytest.raises(egress.Refused, match="no host name"):
        RULES.check_name(host, 443)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "1.1",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "0x7f000001",
        "::1",
        "[::1]",
        "[fe80::1%eth0]",
        "::ffff:1.1.1.1",
    ],
)
def test_addresses_in_any_spelling_are_refused_even_when_listed(host: str):
    with pytest.raises(egress.Refused, match="only host names"):
        egress.Rules((host, *RULES.hosts)).check_name(host, 443)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.1",
        "172.17.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "203.0.113.80",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%2",
        "fd00::1",
        "ff02::1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "2002:7f00:0001::",
        "64:ff9b::a00:1",
        "2001:0:4136:e378:8000:63bf:f5ff:fffe",
    ],
)
def test_addresses_that_are_not_public_are_refused(address: str):
    with pytest.raises(egress.Refused, match="not public"):
        RULES.check_address("pypi.org", address)


@pytest.mark.parametrize("address", ["151.101.0.223", "2a04:4e42::223", "64:ff9b::9765:df"])
def test_public_addresses_pass(address: str):
    RULES.check_address("pypi.org", address)


def test_private_ranges_pass_when_the_operator_allows_them_and_only_those():
    rules = egress.rules((), ("10.1.0.0/16", "203.0.113.80", "fd00::/8"))
    for address in ("10.1.2.3", "203.0.113.80", "fd12::1", "::ffff:10.1.2.3"):
        rules.check_address("mirror", address)
    for address in ("10.2.0.1", "203.0.113.81", "fe80::1"):
        with pytest.raises(egress.Refused):
            rules.check_address("mirror", address)


def test_configured_package_index_is_allowed_with_its_port():
    rules = egress.rules((), (), "https://user:word@index.example:8443/simple")
    rules.check_name("index.example", 8443)
    egress.rules((), (), "https://index.example/simple").check_name("index.example", 443)
    with pytest.raises(egress.Refused):
        rules.check_name("index.example", 443)


@pytest.mark.parametrize(("hosts", "ranges"), [(("pypi.org:https",), ()), ((), ("10.0.0.0/99",)), ((), ("intranet",))])
def test_settings_that_cannot_be_read_are_refused_by_name(hosts: tuple[str, ...], ranges: tuple[str, ...]):
    with pytest.raises(SandboxError, match="LAMPLIGHTER_EGRESS_"):
        egress.rules(hosts, ranges)


# Served for real -----------------------------------------------------------------------------


@pytest.fixture
def upstream() -> Iterator[int]:
    """A server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=echo, args=(client,), daemon=True).start()

        def echo(client: socket.socket) -> None:
            with client:
                while data := client.recv(65536):
                    client.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


class Logged:
    def __init__(self, port: int, *, most_bytes: int = 1 << 20, addresses: dict[str, list[str]] | None = None):
        self.asked: list[tuple[str, str]] = []
        known = {"allowed.example": ["127.0.0.1"], **(addresses or {})}
        self.resolved: list[str] = []

        def resolve(host: str, _: int) -> list[str]:
            self.resolved.append(host)
            if host not in known:
                raise OSError("no such name")
            return known[host]

        hosts = [f"{name}:{port}" for name in ("allowed.example", "unknown.example", *known)]
        self.proxy = egress.Proxy(
            egress.rules(hosts, ("127.0.0.0/8",)),
            most_bytes=most_bytes,
            log=lambda host, refusal: self.asked.append((host, refusal)),
            resolve=resolve,
        )


def ask(listener: egress.Listener, request: bytes) -> socket.socket:
    client = socket.create_connection(listener.socket.getsockname(), timeout=5)
    client.sendall(request)
    return client


def established(client: socket.socket) -> bool:
    """Read the proxy's answer and nothing behind it."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += client.recv(1) or b"the proxy closed the connection\r\n\r\n"
    return head.startswith(b"HTTP/1.1 200")


def answer(client: socket.socket) -> bytes:
    """All that comes until the proxy closes."""
    data = b""
    try:
        while piece := client.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    client.close()
    return data


def connect(host: str) -> bytes:
    return f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


def test_tunnel_carries_both_directions_whole(upstream: int):
    logged = Logged(upstream, most_bytes=100 << 20)
    with logged.proxy.listen(("127.0.0.1", 0)) as listener:
        client = ask(listener, connect(f"allowed.example:{upstream}") + b"early")
        assert established(client)
        assert client.recv(5) == b"early"
        content = bytes(range(256)) * 20_000
        threading.Thread(target=client.sendall, args=(content,), daemon=True).start()
        back = b""
        while len(back) < len(content):
            back += client.recv(65536)
        assert back == content
        client.close()
    assert logged.asked == [(f"allowed.example:{upstream}", "")]


def test_name_is_resolved_once_so_rebinding_cannot_pass(upstream: int):
    logged = Logged(upstream)
    with logged.proxy.listen(("127.0.0.1", 0)) as listener:
        client = ask(listener, connect(f"allowed.example:{upstream}"))
        assert established(client)
        client.close()
    assert logged.resolved == ["allowed.example"]


def test_one_private_address_among_public_ones_is_enough_to_refuse(upstream: int):
    logged = Logged(upstream, addresses={"mixed.example": ["151.101.0.223", "10.0.0.1"]})
    with logged.proxy.listen(("127.0.0.1", 0)) as listener:
        said = answer(ask(listener, connect(f"mixed.example:{upstream}")))
    assert said.startswith(b"HTTP/1.1 403") and b"10.0.0.1" in said
    assert "not public" in logged.asked[0][1]


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (b"GET http://allowed.example/ HTTP/1.1\r\n\r\n", b"only CONNECT"),
        (b"POST / HTTP/1.1\r\n\r\n", b"only CONNECT"),
        (b"CONNECT allowed.example HTTP/1.1\r\n\r\n", b"needs host:port"),
        (b"CONNECT allowed.example:0 HTTP/1.1\r\n\r\n", b"needs host:port"),
        (b"CONNECT allowed.example:99999 HTTP/1.1\r\n\r\n", b"needs host:port"),
        (b"CONNECT :443 HTTP/1.1\r\n\r\n", b"needs host:port"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", b"no HTTP request"),
        (b"CONNECT a b c d\r\n\r\n", b"no HTTP request"),
        (b"x" * 40_000, b"too long"),
    ],
)
def test_what_is_no_proper_connect_is_refused(upstream: int, request_: bytes, why: bytes):
    with Logged(upstream).proxy.listen(("127.0.0.1", 0)) as listener:
        said = answer(ask(listener, request_))
    assert said.startswith(b"HTTP/1.1 403") and why in said


def test_name_that_does_not_resolve_and_port_that_is_closed_are_failures_not_refusals(upstream: int):
    logged = Logged(upstream)
    with logged.proxy.listen(("127.0.0.1", 0)) as listener:
        assert answer(ask(listener, connect(f"unknown.example:{upstream}"))).startswith(b"HTTP/1.1 502")
    assert "no such name" in logged.asked[0][1]


def test_share_of_bytes_ends_the_tunnel_and_refuses_the_next(upstream: int):
    logged = Logged(upstream, most_bytes=100_000)
    with logged.proxy.listen(("127.0.0.1", 0)) as listener:
        client = ask(listener, connect(f"allowed.example:{upstream}"))
        assert established(client)
        threading.Thread(target=send_quietly, args=(client, b"x" * 300_000), daemon=True).start()
        assert len(answer(client)) < 100_000
        assert b"used up" in answer(ask(listener, connect(f"allowed.example:{upstream}")))


def send_quietly(client: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        client.sendall(data)


def test_endless_requests_fill_neither_log_nor_memory(upstream: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(egress, "MOST_NOTES", 5)
    logged = Logged(upstream)
    for number in range(20):
        for _ in range(2):
            logged.proxy.note(f"host{number}:443", "refused", "in words")
    assert len(logged.asked) == len(set(logged.asked)) == 5 and len(logged.proxy.refusals) == 5


def test_label_that_no_resolver_takes_is_a_failure(upstream: int):
    with pytest.raises(OSError, match="no name that can be looked up"):
        egress.addresses("x" * 100 + ".pythonhosted.org", 443)


def test_client_that_says_nothing_and_leaves_harms_nobody(upstream: int):
    logged = Logged(upstream)
    with logged.proxy.listen(("127.0.0.1", 0)) as listener:
        ask(listener, b"").close()
        ask(listener, b"CONNECT allowed").close()
        client = ask(listener, connect(f"allowed.example:{upstream}"))
        assert established(client)
        client.close()


def test_threads_of_ended_tunnels_end(upstream: int):
    logged = Logged(upstream)
    before = threading.active_count()
    with logged.proxy.listen(("127.0.0.1", 0)) as listener:
        for _ in range(20):
            client = ask(listener, connect(f"allowed.example:{upstream}"))
            assert established(client)
            client.close()
    wait_for(lambda: threading.active_count() <= before, 5, every_s=0.01)


def test_proxy_serves_on_a_unix_socket_too(upstream: int, tmp_path: Path):
    with Logged(upstream).proxy.listen(tmp_path / "egress.sock"):
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(5)
        client.connect(str(tmp_path / "egress.sock"))
        client.sendall(connect(f"allowed.example:{upstream}") + b"hello")
        assert established(client)
        assert client.recv(5) == b"hello"
        client.close()


def test_listener_tells_its_url(upstream: int):
    with Logged(upstream).proxy.listen(("127.0.0.1", 0)) as listener:
        assert listener.url == f"http://127.0.0.1:{listener.socket.getsockname()[1]}"


def test_ipv4_inside_ipv6_is_seen():
    assert egress.unwrapped(ipaddress.ip_address("::ffff:1.2.3.4")) == ipaddress.ip_address("1.2.3.4")
    assert egress.unwrapped(ipaddress.ip_address("2002:102:304::")) == ipaddress.ip_address("1.2.3.4")
