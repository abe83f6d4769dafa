"""What every request must pass, tested on a bare application behind the guard."""

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

from orchestrator.web.security import HEADERS, MAX_BODY_BYTES, Guard, host_name, is_own_origin

ALLOWED = ("127.0.0.1", "localhost", "[::1]")


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()

    @app.get("/page")
    @app.post("/page")
    @app.get("/api/thing")
    @app.post("/api/thing")
    @app.delete("/api/thing")
    async def reached(request: Request) -> str:
        return f"reached with {len(await request.body())}"

    app.add_middleware(Guard, allowed_hosts=ALLOWED)
    return TestClient(app, base_url="http://127.0.0.1:8750")


SAME = {"Origin": "http://127.0.0.1:8750"}
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8750", "LOCALHOST:1", "localhost.", "[::1]:8750"])
def test_a_listed_host_is_served_on_any_port(client: TestClient, host: str) -> None:
    assert client.get("/page", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "[::1",
        "",
        "localhost:80:80",
        "127.0.0.2",
        "evil@localhost",
    ],
)
def test_another_host_is_refused_and_told_what_to_do(client: TestClient, host: str) -> None:
    answer = client.get("/page", headers={"Host": host})
    assert answer.status_code == 400
    assert "LAMPLIGHTER_ALLOWED_HOSTS" in answer.text
    assert answer.headers["Content-Type"].startswith("text/plain")


def test_two_host_headers_are_refused(client: TestClient) -> None:
    answer = client.get("/page", headers=[("Host", "localhost"), ("Host", "evil.example")])
    assert answer.status_code == 400


def test_every_answer_carries_the_headers_also_a_refusal(client: TestClient) -> None:
    for answer in (client.get("/page"), client.get("/page", headers={"Host": "evil.example"}), client.get("/nothing")):
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy and "http" not in policy and "frame-ancestors 'none'" in policy


def test_a_form_of_our_own_passes(client: TestClient) -> None:
    assert client.post("/page", headers=SAME).status_code == 200


def test_a_form_without_origin_passes_only_when_the_browser_vouches_for_it(client: TestClient) -> None:
    assert client.post("/page").status_code == 403
    assert client.post("/page", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


@pytest.mark.parametrize("path", ["/page", "/api/thing"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "http://localhost:8750"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://127.0.0.1:8750.evil.example"},
        {"Origin": "http://127.0.0.1:notaport"},
        {"Origin": "ftp://127.0.0.1:8750"},
        {"Origin": "http://127.0.0.1:8750", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_change_asked_for_by_a_foreign_page_is_refused(
    client: TestClient, path: str, headers: dict[str, str]
) -> None:
    answer = client.post(path, headers={**JSON, **headers})
    assert answer.status_code == 403, answer.text


def test_reading_needs_no_origin(client: TestClient) -> None:
    assert client.get("/page", headers={"Origin": "http://evil.example"}).status_code == 200


def test_the_api_takes_clients_without_origin_but_only_json(client: TestClient) -> None:
    assert client.post("/api/thing", headers=JSON).status_code == 200
    assert client.post("/api/thing", headers={"Content-Type": "application/json; charset=utf-8"}).status_code == 200
    assert client.delete("/api/thing").status_code == 200
    for media in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        answer = client.post("/api/thing", headers={"Content-Type": media})
        assert answer.status_code == 415
        assert answer.json()["errors"][0]["message"]


def test_a_body_that_is_too_large_is_refused_unread(client: TestClient) -> None:
    assert client.post("/page", headers=SAME, content=b"x" * MAX_BODY_BYTES).status_code == 200
    assert client.post("/page", headers=SAME, content=b"x" * (MAX_BODY_BYTES + 1)).status_code == 413
    assert client.post("/page", headers={**SAME, "Content-Length": "many"}).status_code == 400


def test_a_body_of_unknown_length_is_refused(client: TestClient) -> None:
    answer = client.post("/page", headers=SAME, content=iter([b"x"] * 10))
    assert answer.status_code == 411


def test_web_sockets_are_closed() -> None:
    client = TestClient(Guard(FastAPI(), allowed_hosts=ALLOWED), base_url="http://127.0.0.1")
    with pytest.raises(Exception) as caught, client.websocket_connect("/page"):
        pass
    assert getattr(caught.value, "code", None) == 1008


def test_host_names_lose_their_port() -> None:
    assert host_name("[::1]:8750") == "[::1]"
    assert host_name("Example.ORG:1") == "example.org"


@pytest.mark.parametrize(
    ("host", "ours"), [("lamp.example", True), ("lamp.example:443", True), ("lamp.example:8750", False)]
)
def test_https_that_a_proxy_ends_in_front_of_us_counts_as_ours(host: str, ours: bool) -> None:
    scope = {"type": "http", "path": "/", "query_string": b"", "scheme": "http", "headers": [(b"host", host.encode())]}
    assert is_own_origin("https://lamp.example", Request(scope)) is ours
