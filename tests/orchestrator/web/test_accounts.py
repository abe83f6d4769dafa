"""The pages of accounts and the doorman before all others: the real application, as a browser and as a program."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from argon2 import PasswordHasher
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from playwright.sync_api import expect

from orchestrator.services import accounts, passwords
from orchestrator.services.workshop import Workshop
from orchestrator.store.session import Sessions
from orchestrator.web.app import make_app
from tests.factories import Clock, make_shop
from tests.support.chromium import chromium
from tests.support.site import served

HERE = "http://127.0.0.1:8750"
RIGHT = "correct horse 9"
Visit = Callable[..., Any]


@pytest.fixture(autouse=True)
def cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "HASHER", PasswordHasher(time_cost=1, memory_cost=64, parallelism=1))
    passwords.nobodys.cache_clear()


@pytest.fixture
def shop(sessions: Sessions, tmp_path: Path) -> Workshop:
    return make_shop(sessions, tmp_path, clock=Clock(), settings={"host": "0.0.0.0"})


@pytest.fixture
def client(shop: Workshop) -> Iterator[TestClient]:
    with TestClient(make_app(shop, shop.settings), base_url=HERE, follow_redirects=False) as opened:
        yield opened


def send(client: TestClient, page: str, address: str, **fields: str) -> httpx.Response:
    """A form of the page, as a browser sends it."""
    token = re.search(r'name="csrf" value="([^"]+)"', client.get(page).text)
    assert token, f"{page} has no form"
    return client.post(address, data={"csrf": token[1], **fields}, headers={"Origin": HERE})


def log_in(client: TestClient, name: str = "ada", password: str = RIGHT, **more: str) -> httpx.Response:
    return send(client, "/login", "/login", name=name, password=password, **more)


def everything(client: TestClient) -> list[tuple[str, str]]:
    """Each method and address there is, with ids that lead nowhere."""
    found = []
    routes = client.app.routes  # type: ignore[attr-defined]
    for route in flattened(routes):
        path = re.sub(r"\{[^}]+\}", "00000000-0000-0000-0000-000000000000", route.path)
        found += [(method, path) for method in sorted(route.methods)]
    assert len(found) > 50
    return found


def flattened(routes: Any) -> Iterator[APIRoute]:
    for route in routes:
        if hasattr(route, "methods") and hasattr(route, "path"):
            yield route
        else:
            inner = getattr(route, "original_router", None)
            yield from flattened(getattr(inner, "routes", ()))


OPEN = ("/login", "/setup", "/theme", "/health/live", "/health/ready")


def test_where_others_can_come_no_address_answers_a_stranger(client: TestClient, shop: Workshop) -> None:
    accounts.create(shop, "ada", RIGHT, admin=True)
    for method, path in everything(client):
        if path in OPEN:
            continue
        headers = {"Origin": HERE, **({"Content-Type": "application/json"} if path.startswith("/api/") else {})}
        answer = client.request(method, path, headers=headers)
        if path.startswith("/api/"):
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"] == "Bearer"
        else:
            assert answer.status_code == 303, (method, path)
            assert answer.headers["location"].startswith("/login"), (method, path)
    for tricky in (
        "/static/../reviews",
        "/static/%2e%2e/reviews",
        "/health/live/",
        "//reviews",
        "/login/../reviews",
        "/LOGIN",
    ):
        assert client.get(tricky).status_code in (303, 307, 404), tricky
        assert "<h1>Reviews" not in client.get(tricky).text


def test_the_first_account_needs_the_token_that_the_start_wrote(client: TestClient, shop: Workshop) -> None:
    assert client.get("/reviews").headers["location"] == "/setup"
    assert client.get("/login").headers["location"] == "/setup"
    wrong = send(client, "/setup", "/setup", token="guess", name="eve", password=RIGHT)
    assert wrong.status_code == 422 and "not the token" in wrong.text and not accounts.exist(shop)
    token = client.app.state.setup_token  # type: ignore[attr-defined]
    assert len(token) >= 22
    made = send(client, "/setup", "/setup", token=token, name="ada", password=RIGHT)
    assert (made.status_code, made.headers["location"]) == (303, "/")
    assert client.get("/reviews").status_code == 200
    assert "ada" in client.get("/account").text
    client.cookies.clear()
    assert client.get("/setup").headers["location"] == "/login"


def test_a_login_sets_a_cookie_that_scripts_cannot_read_and_new_secrets(client: TestClient, shop: Workshop) -> None:
    accounts.create(shop, "ada", RIGHT, admin=True)
    client.get("/login")
    before = client.cookies["lamplighter_csrf"]
    client.cookies.set("lamplighter_login", "planted", domain="127.0.0.1")
    answer = log_in(client, next="/repos?x=1")
    assert (answer.status_code, answer.headers["location"]) == (303, "/repos?x=1")
    cookies = answer.headers.get_list("set-cookie")
    login = next(one for one in cookies if one.startswith("lamplighter_login="))
    assert "HttpOnly" in login and "SameSite=lax" in login and "Path=/" in login and "planted" not in login
    assert "Secure" not in login
    assert any(one.startswith("lamplighter_csrf=") and before not in one for one in cookies)
    behind_tls = client.post(
        "/login",
        data={"csrf": client.cookies["lamplighter_csrf"], "name": "ada", "password": RIGHT},
        headers={"Origin": "https://127.0.0.1:8750", "X-Forwarded-Proto": "https"},
    )
    assert all("Secure" in one for one in behind_tls.headers.get_list("set-cookie"))


@pytest.mark.parametrize(
    "goal", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", ""]
)
def test_a_login_leads_to_no_other_site(client: TestClient, shop: Workshop, goal: str) -> None:
    accounts.create(shop, "ada", RIGHT, admin=True)
    assert log_in(client, next=goal).headers["location"] == "/"


def test_a_wrong_password_and_a_name_that_is_not_there_look_alike_and_are_slowed_down(
    client: TestClient, shop: Workshop
) -> None:
    accounts.create(shop, "ada", RIGHT, admin=True)
    wrong, nobody = log_in(client, "ada", "x"), log_in(client, "nobody", "x")
    assert wrong.status_code == nobody.status_code == 401
    same = [re.sub(r'value="[^"]*"', "", page.text) for page in (wrong, nobody)]
    assert same[0] == same[1]
    for _ in range(4):
        last = log_in(client, "ada", "x")
    last = log_in(client, "ada", RIGHT)
    assert last.status_code == 429 and int(last.headers["retry-after"]) >= 1


def test_a_form_without_its_token_logs_nobody_in_or_out(client: TestClient, shop: Workshop) -> None:
    accounts.create(shop, "ada", RIGHT, admin=True)
    sent = {"name": "ada", "password": RIGHT}
    assert client.post("/login", data=sent, headers={"Origin": HERE}).status_code == 403
    assert client.post("/login", data=sent, headers={"Origin": "https://evil.example"}).status_code == 403
    log_in(client)
    assert client.post("/logout", headers={"Origin": HERE}).status_code == 403
    assert client.get("/repos").status_code == 200
    assert send(client, "/account", "/logout").headers["location"] == "/login"
    assert client.get("/repos").headers["location"] == "/login?next=%2Frepos"


def test_a_program_comes_with_a_token_which_can_be_revoked(client: TestClient, shop: Workshop) -> None:
    accounts.create(shop, "ada", RIGHT, admin=True)
    log_in(client)
    page = send(client, "/account", "/account/tokens", token_name="nightly <b>")
    token = re.search(r'class="secret">(lamp_[\w-]+)<', page.text)
    assert token and page.headers["cache-control"] == "no-store" and "nightly &lt;b&gt;" in page.text
    assert token[1] not in client.get("/account").text  # shown once
    with TestClient(client.app, base_url=HERE) as program:
        shown = {"Authorization": f"Bearer {token[1]}"}
        assert program.get("/api/reviews", headers=shown).status_code == 200
        assert program.get("/api/reviews", headers={"Authorization": f"Bearer {token[1]}x"}).status_code == 401
        asked = program.post("/api/reviews", json={"target": "file:///x"}, headers=shown)
        assert asked.status_code == 422  # past the doorman, without any Origin
        revoke = re.search(r'action="(/account/tokens/[^"]+/revoke)"', client.get("/account").text)
        assert revoke
        send(client, "/account", revoke[1])
        assert program.get("/api/reviews", headers=shown).status_code == 401


@pytest.mark.parametrize("shown", ["Basic YWRhOmFkYQ==", "Digest username=ada", "lamp_0123", ""])
@pytest.mark.parametrize("path", ["/api/reviews", "/reviews"])
def test_an_authorization_of_another_kind_is_refused_with_what_is_understood_even_beside_a_login(
    client: TestClient, shop: Workshop, shown: str, path: str
) -> None:
    accounts.create(shop, "ada", RIGHT, admin=True)
    log_in(client)
    answer = client.get(path, headers={"Authorization": shown}, follow_redirects=False)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert "only `Bearer TOKEN` is understood" in answer.json()["errors"][0]["message"]


def test_where_nobody_is_asked_the_name_that_a_proxy_asked_for_stops_nobody(shop: Workshop) -> None:
    shop = replace(shop, settings=shop.settings.model_copy(update={"accounts": "none"}))
    with TestClient(make_app(shop, shop.settings), base_url=HERE) as client:
        for path in ("/api/reviews", "/reviews"):
            assert client.get(path, headers={"Authorization": "Basic YWRhOmFkYQ=="}).status_code == 200
        assert client.get("/api/reviews", headers={"Authorization": "Bearer lamp_0123"}).status_code == 401


def test_members_do_everything_but_accounts(client: TestClient, shop: Workshop) -> None:
    for name in ("ada", "bob"):
        accounts.create(shop, name, RIGHT, admin=name == "ada")
    log_in(client, "bob")
    assert client.get("/schedules").status_code == 200
    assert 'action="/accounts"' not in client.get("/account").text
    assert send(client, "/account", "/accounts", name="eve", password=RIGHT, admin="yes").status_code == 403
    assert send(client, "/account", "/accounts/ada/remove").status_code == 403
    assert [one.name for one in accounts.listed(shop)] == ["ada", "bob"]
    send(client, "/account", "/logout")
    log_in(client, "ada")
    assert send(client, "/account", "/accounts", name="carol", password=RIGHT).status_code == 303
    assert send(client, "/account", "/accounts/bob/remove").status_code == 303
    assert send(client, "/account", "/accounts/ada/remove").status_code == 409  # the last admin
    assert [(one.name, one.admin) for one in accounts.listed(shop)] == [("ada", True), ("carol", False)]


def test_a_changed_password_is_told_and_a_wrong_one_named_at_its_field(client: TestClient, shop: Workshop) -> None:
    accounts.create(shop, "ada", RIGHT, admin=True)
    log_in(client)
    wrong = send(client, "/account", "/account/password", old="x", password="another one 1")
    assert wrong.status_code == 422 and 'id="e-old"' in wrong.text
    done = send(client, "/account", "/account/password", old=RIGHT, password="another one 1")
    assert "is changed" in done.text and client.get("/repos").status_code == 200


def test_on_loopback_nobody_is_asked_until_there_is_an_account(sessions: Sessions, tmp_path: Path) -> None:
    shop = make_shop(sessions, tmp_path)
    with TestClient(make_app(shop, shop.settings), base_url=HERE, follow_redirects=False) as client:
        assert client.get("/repos").status_code == client.get("/api/reviews").status_code == 200
        assert client.get("/setup").headers["location"] == "/account"
        assert client.get("/login").headers["location"] == "/"
        # Through a proxy anybody may have come, whatever address this process listens on.
        for header in ("X-Forwarded-For", "Forwarded", "X-Real-IP"):
            assert client.get("/repos", headers={header: "203.0.113.9"}).headers["location"] == "/setup"
        through = client.get("/setup", headers={"X-Forwarded-For": "203.0.113.9"}).text
        assert "came through a proxy" in through and 'name="token"' not in through  # nobody was told one
        assert "Nobody is asked" in client.get("/account").text
        assert send(client, "/account", "/account/tokens", token_name="x").status_code == 409
        made = send(client, "/account", "/accounts", name="ada", password=RIGHT)
        assert made.headers["location"] == "/account"
        assert "Admin since" in client.get("/account").text
        client.cookies.clear()
        assert client.get("/repos").headers["location"] == "/login?next=%2Frepos"
        assert client.get("/health/ready").status_code == client.get("/static/app.css").status_code == 200


@pytest.mark.browser
def test_the_pages_fit_a_phone_in_both_themes_and_work_without_a_mouse(shop: Workshop, tmp_path: Path) -> None:
    accounts.create(shop, "ada", RIGHT, admin=True)
    with served(shop) as site, chromium() as browser:
        for theme in ("light", "dark"):
            size = {"width": 360, "height": 740}
            context = browser.new_context(base_url=site.address, color_scheme=theme, viewport=size)  # type: ignore[arg-type]
            page = context.new_page()
            page.goto("/repos")
            expect(page.get_by_role("heading", name="Log in")).to_be_visible()
            page.screenshot(path=tmp_path / f"login-{theme}.png", full_page=True)
            page.get_by_label("Name").fill("ada")
            page.get_by_label("Password").fill("wrong")
            page.keyboard.press("Enter")
            expect(page.get_by_role("alert")).to_contain_text("is wrong")
            page.get_by_label("Password").fill(RIGHT)
            page.keyboard.press("Enter")
            expect(page).to_have_url(f"{site.address}/repos")
            page.goto("/account")
            page.get_by_label("What the token is for").fill("nightly")
            page.keyboard.press("Enter")
            expect(page.locator(".secret")).to_contain_text("lamp_")
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= 360, f"{theme}: {wide} px"
            page.screenshot(path=tmp_path / f"account-{theme}.png", full_page=True)
            context.close()
