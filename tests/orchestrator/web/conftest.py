"""The real application over real services on SQLite, and a browser-like client."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from orchestrator.services.workshop import Workshop
from orchestrator.store.session import Sessions
from orchestrator.web.app import make_app
from tests.factories import make_shop

HERE = "http://127.0.0.1:8750"


@pytest.fixture
def shop(sessions: Sessions, tmp_path: Path) -> Workshop:
    return make_shop(sessions, tmp_path)


@pytest.fixture
def app(shop: Workshop) -> FastAPI:
    return make_app(shop, shop.settings)


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, base_url=HERE, follow_redirects=False) as opened:
        yield opened


Post = Callable[..., Any]


@pytest.fixture
def post(client: TestClient) -> Post:
    """Send a form as our own pages do: with the Origin, the cookie and the token of a page loaded before."""

    def send(address: str, **fields: str) -> Any:
        token = re.search(r'name="csrf" value="([^"]+)"', client.get("/").text)
        assert token
        return client.post(address, data={"csrf": token[1], **fields}, headers={"Origin": HERE})

    return send
