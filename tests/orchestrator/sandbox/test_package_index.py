"""The way to the package index, tried for real against an index of our own, and pip's options as settings."""

import http.server
import ssl
import subprocess
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.sandbox import package_index
from orchestrator.sandbox.package_index import Advice, translated, try_way
from orchestrator.settings import Settings


class Index(http.server.BaseHTTPRequestHandler):
    status, page = 200, b""

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.page)))
        self.end_headers()
        self.wfile.write(self.page)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for localhost that only who is told trusts, in one file."""
    file = tmp_path_factory.mktemp("ca") / "ca.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    done = subprocess.run(
        [*command.split(), "-keyout", str(file.with_suffix(".key")), "-out", str(file)], capture_output=True
    )
    if done.returncode:
        pytest.skip("an index of our own needs openssl")
    return file


@pytest.fixture
def index(certificate: Path) -> Iterator[tuple[type[Index], str]]:
    """Its handler, whose answer a test may change, and its address."""
    handler = type("Handler", (Index,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield handler, f"https://localhost:{server.server_address[1]}/simple"
    server.shutdown()
    server.server_close()


def settings(url: str, **given: Any) -> Settings:
    return Settings(pip_index=url, **given)


def test_a_private_address_is_refused_by_name_address_and_setting(index: tuple[type[Index], str]) -> None:
    problem = try_way(settings(index[1])).problem
    assert "localhost resolves to" in problem and "LAMPLIGHTER_EGRESS_ALLOW_RANGES" in problem


def test_a_certificate_of_ones_own_is_named_with_its_setting(index: tuple[type[Index], str]) -> None:
    way = try_way(settings(index[1], egress_allow_ranges=("127.0.0.0/8", "::1")))
    assert way.untrusted and "LAMPLIGHTER_SANDBOX_CA_FILE" in way.problem


def test_the_way_is_open_once_address_and_certificate_are_allowed(
    index: tuple[type[Index], str], certificate: Path
) -> None:
    allowed = settings(index[1], egress_allow_ranges=("127.0.0.0/8", "::1"), sandbox_ca_file=certificate)
    assert try_way(allowed).open


def test_a_host_that_only_keeps_the_files_must_be_allowed_too(
    index: tuple[type[Index], str], certificate: Path
) -> None:
    index[0].page = b'<a href="https://files.invalid/pip-2.0.whl">pip</a>'
    allowed = settings(index[1], egress_allow_ranges=("127.0.0.0/8", "::1"), sandbox_ca_file=certificate)
    problem = try_way(allowed).problem
    assert "files.invalid:443" in problem and "LAMPLIGHTER_EGRESS_HOSTS" in problem


def test_an_index_that_wants_a_password_is_no_open_way(index: tuple[type[Index], str], certificate: Path) -> None:
    index[0].status = 401
    allowed = settings(index[1], egress_allow_ranges=("127.0.0.0/8", "::1"), sandbox_ca_file=certificate)
    assert "401" in try_way(allowed).problem


@pytest.mark.parametrize("url", ["http://index.example/simple", "nonsense", "https://[::1/simple", "https:///simple"])
def test_what_the_proxy_cannot_carry_is_said_and_never_raised(url: str) -> None:
    assert url in try_way(settings(url)).problem


def test_pips_options_become_settings_and_what_is_set_already_stays(tmp_path: Path) -> None:
    certificates, wheels = tmp_path / "ca.pem", tmp_path / "wheels"
    certificates.write_text("")
    wheels.mkdir()
    config = {
        "cert": str(certificates),
        "index-url": "https://index.invalid/simple",
        "extra-index-url": "https://more.invalid/simple",
        "find-links": str(wheels),
        "default-timeout": "60",
    }
    found, notes = translated(config, Settings(sandbox_env=("PIP_DEFAULT_TIMEOUT=5",), egress_hosts=("a.invalid",)))
    assert found == {
        "pip_index": "https://index.invalid/simple",
        "sandbox_ca_file": str(certificates),
        "sandbox_env": (
            "PIP_DEFAULT_TIMEOUT=5",
            "PIP_EXTRA_INDEX_URL=https://more.invalid/simple",
            f"PIP_FIND_LINKS={wheels}",
        ),
        "sandbox_mounts": (f"{wheels}:{wheels}",),
        "egress_hosts": ("a.invalid", "more.invalid"),
        "egress_allow_ranges": (),
    }
    assert notes == ()


def test_passwords_in_pips_addresses_are_left_out_and_said() -> None:
    found, notes = translated({"index-url": "https://ada:secret@index.invalid/simple"}, Settings())
    assert "pip_index" not in found and "secret" not in str((found, notes))
    assert "index-url" in notes[0]


def test_pips_configuration_is_read_with_the_environment_on_top(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pip.conf"
    file.write_text("[global]\ntimeout = 7\nfind-links =\n    /one\n    /two\n[install]\ncert = /a.pem\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.setenv("PIP_TIMEOUT", "9")
    monkeypatch.delenv("PIP_CERT", raising=False)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    config = package_index.pip_configuration()
    assert (config["timeout"], config["find-links"], config["cert"]) == ("9", "/one /two", "/a.pem")


def test_advice_is_written_as_toml_that_says_the_same() -> None:
    advice = Advice({"pip_index": 'https://a/"quoted"\\', "sandbox_env": ("A=1", "B=ü")})
    assert tomllib.loads("\n".join(advice.lines)) == {
        "pip_index": 'https://a/"quoted"\\',
        "sandbox_env": ["A=1", "B=ü"],
    }
