"""The application as a whole: its own faults, its health, its files."""

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from orchestrator.services import reviews
from orchestrator.services.workshop import Workshop
from orchestrator.web import render
from orchestrator.web.app import make_app
from orchestrator.web.security import HEADERS
from tests.factories import make_shop
from tests.orchestrator.web.conftest import HERE

STATIC = render.STATIC


@pytest.mark.parametrize("address", ["/reviews", "/api/reviews"])
def test_a_fault_of_ours_shows_no_traceback_and_keeps_the_headers(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(reviews, "listed", broken)
    client = TestClient(app, base_url=HERE, raise_server_exceptions=False)
    answer = client.get(address)
    assert answer.status_code == 500
    assert "secret detail" not in answer.text and "Traceback" not in answer.text
    assert answer.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]
    if address.startswith("/api"):
        assert answer.json()["errors"][0]["message"]


def test_it_is_alive_without_a_database_and_ready_only_with_one(client: TestClient, tmp_path: Path) -> None:
    assert client.get("/health/live").json()["status"] == "ok"
    assert client.get("/health/ready").json() == {"status": "ok", "problem": ""}

    from orchestrator.store.session import open_sessions

    empty = open_sessions(f"sqlite:///{tmp_path / 'never-migrated.sqlite3'}")
    shop = make_shop(empty, tmp_path)
    unready = TestClient(make_app(shop, shop.settings), base_url=HERE)
    assert unready.get("/health/live").status_code == 200
    answer = unready.get("/health/ready")
    assert answer.status_code == 503
    assert answer.json()["status"] == "failing" and "lamplighter migrate" in answer.json()["problem"]
    empty.close()


def test_only_listed_hosts_are_served(client: TestClient, shop: Workshop) -> None:
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 400
    assert client.get("/health/live", headers={"Host": "evil.example"}).status_code == 400


def test_pages_load_nothing_from_elsewhere(client: TestClient) -> None:
    text = client.get("/").text
    for address in re.findall(r'(?:src|href)="([^"]+)"', text):
        assert address.startswith(("/", "#")), address
    for file in STATIC.rglob("*"):
        if file.suffix in (".css", ".js") and "vendor" not in file.parts:
            assert "http" not in file.read_text(encoding="utf-8"), file


def test_static_files_are_kept_for_ever_under_an_address_that_changes_with_them(client: TestClient) -> None:
    address = render.static_url("app.css")
    assert address.endswith(hashlib.sha256((STATIC / "app.css").read_bytes()).hexdigest()[:12])
    answer = client.get(address)
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.get("/static/app.css").headers["cache-control"] == "no-cache"
    assert client.get("/static/nothing.css?v=1").headers["cache-control"] == "no-cache"


def test_the_libraries_are_the_released_files_with_their_licences() -> None:
    vendor = STATIC / "vendor"
    known = {
        "htmx.min.js": "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
        "htmx-sse.min.js": "98a46496de0c3605fbffdce9167ba427bdd9553184f83f149c261891a92c0136",
    }
    for name, digest in known.items():
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == digest
        assert "Zero" in (vendor / name.replace(".min.js", ".LICENSE.txt")).read_text(encoding="utf-8")


def test_every_text_colour_has_enough_contrast_on_every_ground_in_both_themes() -> None:
    css = (STATIC / "app.css").read_text(encoding="utf-8")
    pairs = {name: pair for name, *pair in re.findall(r"--([a-z-]+): light-dark\((#\w{6}), (#\w{6})\)", css)}
    grounds = ("ground", "panel", "raised", "well", "flame-soft")
    texts = ("text", "soft", "lamp", "good", "bad", "warn", "cool", "critical", "high", "medium", "low", "info")
    for theme in (0, 1):
        for ground in grounds:
            for text in texts:
                assert contrast(pairs[text][theme], pairs[ground][theme]) >= 4.5, (theme, text, ground)
        assert contrast(pairs["line-strong"][theme], pairs["panel"][theme]) >= 3  # edges of fields
        assert contrast("#1d1405", pairs["flame"][theme]) >= 4.5  # the main button


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
