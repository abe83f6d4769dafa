"""`lamplighter doctor` tries every way to its end and says in words what is wrong. Real servers, each broken."""

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchestrator.cli import links
from orchestrator.settings import Settings
from orchestrator.store import machines
from orchestrator.store.migrate import upgrade
from orchestrator.store.session import open_sessions
from tests.orchestrator.cli.conftest import Command
from tests.support.endpoint import Endpoint, Handler
from tests.support.postgres import PostgresServer, free_port
from tests.support.redis import RedisServer, redis_server  # noqa: F401


def said(check: object, settings: Settings) -> dict[str, tuple[bool | None, str]]:
    return {one.thing: (one.ok, one.said) for one in check(settings)}  # type: ignore[operator]


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that takes connections and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            while True:
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=hang_up, daemon=True).start()
        yield server.getsockname()[1]


@pytest.mark.postgres
def test_the_way_to_the_database(postgres_server: PostgresServer, postgres_url: str, tmp_path: Path) -> None:
    def database(url: str) -> tuple[bool | None, str]:
        return said(links.check_database, Settings(data=tmp_path, database_url=url))["database"]

    empty = database(postgres_url)
    assert empty[0] is False and "lamplighter migrate" in empty[1]
    upgrade(postgres_url)
    assert database(postgres_url) == (True, "PostgreSQL, up to date")
    sessions = open_sessions(postgres_url)
    with sessions.reading() as db:
        assert machines.listed(db) == []  # the row that it tried to write is not left
    sessions.close()
    here = f"127.0.0.1:{postgres_server.port}"
    for url, words in (
        (f"postgresql://lamplighter@127.0.0.1:{free_port()}/x", "Is the server started"),
        ("postgresql://lamplighter@no-such-host.invalid/x", "is not known here"),
        (f"postgresql://lamplighter@{here}/nothing", "Make the database"),
        (f"postgresql://nobody@{here}/postgres", "Make the database and its user"),
    ):
        ok, told = database(url)
        assert ok is False and words in told, (url, told)


@pytest.mark.redis
def test_the_way_to_the_broker(redis_server: RedisServer, tmp_path: Path, silent: int) -> None:  # noqa: F811
    def broker(url: str, **more: object) -> tuple[bool | None, str]:
        return said(links.check_broker, Settings(data=tmp_path, broker_url=url, **more))["broker"]  # type: ignore[arg-type]

    assert broker("") == (True, "files in the data folder")
    url = redis_server.url()
    assert broker(url) == (True, "Redis answers and keeps what it is given")
    with redis_server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert "may throw messages away" in broker(url)[1]
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("requirepass", "secret")
        try:
            ok, told = broker(url)
            assert ok is False and "LAMPLIGHTER_BROKER_PASSWORD_FILE" in told
            password = tmp_path / "password"
            password.write_text("secret\n")
            with_one = broker(f"redis://:@127.0.0.1:{redis_server.port}/0", broker_password_file=password)
            assert with_one[0] is True
        finally:
            client.config_set("requirepass", "")
    assert "nothing listens on port" in broker(f"redis://127.0.0.1:{free_port()}/0")[1]
    assert "is not known here" in broker("redis://no-such-host.invalid/0")[1]
    assert "does not answer" in broker(f"redis://127.0.0.1:{silent}/0")[1]


def answering(status: int, body: object) -> object:
    return lambda handler: Handler.send_json(handler, status, body)


MODELS = {"data": [{"id": "small"}, {"id": "large"}]}
YES = {"choices": [{"message": {"role": "assistant", "content": "yes"}}]}


@pytest.mark.parametrize(
    ("name", "answer", "thing", "ok", "words"),
    [
        ("large", (200, YES), "model", True, "large gave a token in"),
        ("", (200, YES), "model", True, "small gave a token in"),
        ("huge", (200, YES), "model", False, "the node has small, large"),
        ("small", (503, {"error": {"message": "Loading model"}}), "model", False, "not ready yet (503)"),
        ("small", (500, {"error": {"message": "no memory"}}), "model", False, "answered 500"),
        ("small", (200, {"nothing": 1}), "model", False, "answered 200"),
    ],
)
def test_a_node_is_asked_for_a_token(
    tmp_path: Path, name: str, answer: tuple[int, object], thing: str, ok: bool, words: str
) -> None:
    with Endpoint(answers=[answering(*answer)], **{"v1/models": MODELS}) as endpoint:  # type: ignore[list-item]
        found = said(links.check_node, Settings(data=tmp_path, model_url=endpoint.url, model_name=name))
    assert found["node"][0] is True
    assert found[thing][0] is ok and words in found[thing][1], found


def test_a_node_that_is_not_reached_is_told_from_one_that_refuses(tmp_path: Path, silent: int) -> None:
    def node(url: str, **more: object) -> dict[str, tuple[bool | None, str]]:
        return said(links.check_node, Settings(data=tmp_path, model_url=url, **more))  # type: ignore[arg-type]

    assert node("")["node"][0] is None
    assert "is not known here" in node("http://no-such-host.invalid:8751")["node"][1]
    assert "nothing listens on port" in node(f"http://127.0.0.1:{free_port()}")["node"][1]
    assert "closed the connection" in node(f"http://127.0.0.1:{silent}")["node"][1]
    with Endpoint(answers=[answering(200, YES)], **{"v1/models": "not a list"}) as other:  # type: ignore[list-item]
        assert "no list of models" in node(other.url)["node"][1]
        assert "should the address begin with http://" in node(other.url.replace("http:", "https:"))["node"][1].lower()


def test_a_wrong_key_a_missing_one_and_a_certificate_that_is_not_trusted_are_named(tmp_path: Path) -> None:
    class Keyed(Handler):
        def do_GET(self) -> None:
            right = self.headers.get("Authorization") == "Bearer right"
            self.send_json(200 if right else 401, MODELS if right else {"error": {"message": "key"}})

    from http.server import ThreadingHTTPServer

    key = tmp_path / "key"
    server = ThreadingHTTPServer(("127.0.0.1", 0), Keyed)
    server.bodies, server.headers, server.pages = [], [], {}  # type: ignore[attr-defined]
    server.answers = [answering(200, YES)]  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        assert "wants a key" in said(links.check_node, Settings(data=tmp_path, model_url=url))["node key"][1]
        key.write_text("wrong")
        settings = Settings(data=tmp_path, model_url=url, model_key_file=key)
        assert "does not take the key" in said(links.check_node, settings)["node key"][1]
        key.write_text("right\n")
        assert said(links.check_node, settings)["model"][0] is True

        certificate, private = tmp_path / "cert.pem", tmp_path / "key.pem"
        made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        subprocess.run([*made, "-keyout", str(private), "-out", str(certificate)], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, private)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        secure = settings.model_copy(update={"model_url": url.replace("http:", "https:")})
        assert "certificate is not trusted here" in said(links.check_node, secure)["node"][1]
    finally:
        server.shutdown()
        server.server_close()


def test_clocks_that_are_apart_are_named() -> None:
    assert list(links.clocks("x", datetime.now(UTC) + timedelta(seconds=5))) == []
    found = list(links.clocks("the node", datetime.now(UTC) - timedelta(minutes=5)))
    assert found[0].ok is False and "300 s apart" in found[0].said


def test_the_ways_to_engine_and_pages(tmp_path: Path, silent: int) -> None:
    nothing = Settings(data=tmp_path, docker_url=f"unix://{tmp_path}/no.sock", port=free_port())
    assert said(links.check_engine, nothing)["engine"] == (
        False,
        f"nothing answers at {tmp_path}/no.sock: [Errno 2] No such file or directory. "
        "Is the engine (or engine-proxy) started?",
    )
    assert said(links.check_web, nothing)["web"][0] is None
    with Endpoint(answers=[answering(200, {})], **{"health/ready": {"status": "ok", "problem": ""}}) as pages:  # type: ignore[list-item]
        port = int(pages.url.split(":")[2].split("/")[0])
        assert said(links.check_web, Settings(data=tmp_path, port=port))["web"][0] is True
    with Endpoint(answers=[answering(200, {})]) as pages:  # type: ignore[list-item]
        port = int(pages.url.split(":")[2].split("/")[0])
        assert "something else" in said(links.check_web, Settings(data=tmp_path, port=port))["web"][1]
    assert said(links.check_web, Settings(data=tmp_path, port=silent))["web"][0] is False


def test_a_health_check_asks_only_what_it_must(lamplighter: Command) -> None:
    lamplighter("migrate")
    assert [line.split()[1] for line in lamplighter("doctor", "--only", "broker,database").out.splitlines()] == [
        "broker:",
        "database:",
    ]
    alive = lamplighter("doctor", "--only", "alive")
    assert alive.status == 3 and "has not reported for 2 minutes" in alive.out
    wrong = lamplighter("doctor", "--only", "weather")
    assert wrong.status == 2 and "weather" in wrong.err
