"""Asks who comes, before any route is met, so that no route can forget to.

A browser has a cookie from the login page, a program an `Authorization: Bearer` token. Where no account
is needed (services/accounts.py says when) everybody passes as nobody. What must be open to strangers is
a short list here.
"""

from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.services import accounts
from orchestrator.services.accounts import Who
from orchestrator.services.workshop import Workshop
from orchestrator.web.errors import Problem, json_answer
from orchestrator.web.security import is_api, is_secure

LOGIN_COOKIE = "lamplighter_login"
OPEN = frozenset({"/login", "/setup", "/theme", "/health/live", "/health/ready"})
OPEN_BELOW = "/static/"
OTHER_KIND = "Of `Authorization` only `Bearer TOKEN` is understood; the page /account makes a token."
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


class Doorman:
    """An ASGI layer inside the guard. Leaves the account in `request.state.account`, None for nobody."""

    def __init__(self, app: ASGIApp, *, shop: Workshop):
        self.app = app
        self.shop = shop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        request.state.account = None
        path = request.url.path
        if path in OPEN or path.startswith(OPEN_BELOW):
            await self.app(scope, receive, send)
            return
        answer = await run_in_threadpool(self.asked, request)
        await (answer or self.app)(scope, receive, send)

    def asked(self, request: Request) -> Response | None:
        """None when the request may pass."""
        shown = request.headers.get("authorization")
        if shown is None:
            secret = request.cookies.get(LOGIN_COOKIE, "")
            found = accounts.who_logged_in(self.shop, secret) if secret else None
        else:
            kind, _, secret = shown.strip().partition(" ")
            if kind.lower() != "bearer":  # where nobody is asked, it is the name that a proxy before us asked for
                return unknown(OTHER_KIND) if self.asks(request) else None
            found = accounts.who_has_token(self.shop, secret.strip())
            if found is None:
                return unknown("The token is not known here. Make one on the page /account.")
        request.state.account = found
        if found is not None or not self.asks(request):
            return None
        if is_api(request):
            return unknown("Send a token as `Authorization: Bearer ...`; the page /account makes one.")
        return RedirectResponse(to_login(request, accounts.exist(self.shop)), status_code=303)

    def asks(self, request: Request) -> bool:
        return accounts.needed(self.shop, forwarded=is_forwarded(request))


def unknown(message: str) -> Response:
    return json_answer(401, [Problem(message=message)], {"WWW-Authenticate": "Bearer"})


def to_login(request: Request, exist: bool) -> str:
    if not exist:
        return "/setup"
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    wanted = here if request.method == "GET" and here != "/" else ""
    return "/login" + (f"?next={quote(wanted, safe='')}" if wanted else "")


def is_forwarded(request: Request) -> bool:
    """Whether a proxy stands before us; then a loopback address says nothing about who asks."""
    return any(name in request.headers for name in FORWARDED)


def account_of(request: Request) -> Who | None:
    found: Who | None = getattr(request.state, "account", None)
    return found


def keep_login(request: Request, response: Response, secret: str) -> None:
    response.set_cookie(
        LOGIN_COOKIE,
        secret,
        max_age=int(accounts.LOGIN_LASTS.total_seconds()),
        httponly=True,
        samesite="lax",
        secure=is_secure(request),
        path="/",
    )
