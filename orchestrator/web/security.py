"""What every request must pass and every answer carries, whichever route it meets.

Who asks is the doorman's question (doorman.py). Here is what must hold whoever asks: no *other* page in
the same browser may use the service. Four layers see to that:

* Host allow-list: a name that was re-pointed at this machine (DNS rebinding) is refused.
* Origin: a request that changes something must come from our own pages; the API also takes
  clients that are no browser (no Origin at all), and only JSON, which a foreign form cannot send.
* CSRF token: every form repeats a random value that only our cookie and our pages know; a foreign
  page can read neither.
* Content-Security-Policy: nothing inline and nothing from elsewhere runs, so that a reviewed repo's
  text could not act on a page even if an escape were forgotten.
"""

import hmac
import re
import secrets
from collections.abc import Iterable
from urllib.parse import urlsplit

from fastapi import Request, Response
from fastapi.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.web.errors import Problem, Refused, json_answer

MAX_BODY_BYTES = 64 * 1024
CSRF_COOKIE = "lamplighter_csrf"
CSRF_FIELD = "csrf"
HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^\s:@/\\\[\]]+)(?::\d{1,5})?")
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: with that, browsers send "Origin: null" with our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """The outermost ASGI layer. Plain ASGI, because event streams must pass it unbuffered."""

    def __init__(self, app: ASGIApp, *, allowed_hosts: Iterable[str]):
        self.app = app
        self.allowed_hosts = frozenset(host.lower() for host in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                extra = {"Cache-Control": "no-cache", **HEADERS}
                message["headers"] = [
                    *message["headers"],
                    *((n.encode(), v.encode()) for n, v in extra.items() if n.lower().encode() not in present),
                ]
            await send(message)

        request = Request(scope)
        try:
            check_host(request, self.allowed_hosts)
            check_body(request)
            check_origin(request)
        except Refused as refused:
            await refusal(request, refused)(scope, receive, send_with_headers)
            return
        await self.app(scope, receive, send_with_headers)


def refusal(request: Request, refused: Refused) -> Response:
    """Plain: whoever gets this here came past our own pages."""
    if is_api(request):
        return json_answer(refused.status, [Problem(message=refused.message)])
    return PlainTextResponse(refused.message + "\n", refused.status)


def check_host(request: Request, allowed: frozenset[str]) -> None:
    hosts = request.headers.getlist("host")
    name = host_name(hosts[0]) if len(hosts) == 1 else ""
    if name not in allowed:
        raise Refused(
            400,
            f"This server does not answer to the host name {name!r}. Use one of {', '.join(sorted(allowed))}, "
            "or add the name to LAMPLIGHTER_ALLOWED_HOSTS.",
        )


def host_name(header: str) -> str:
    """The name without its port: `[::1]:8750` is `[::1]`. Empty when it is no host at all."""
    found = HOST.fullmatch(header.strip().lower())
    return found["name"].removesuffix(".") if found else ""


def check_body(request: Request) -> None:
    if "transfer-encoding" in request.headers:
        raise Refused(411, "Send the body with a Content-Length.")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal():
        raise Refused(400, "The Content-Length is not a number.")
    if int(length) > MAX_BODY_BYTES:
        raise Refused(413, f"The request has {length} bytes; at most {MAX_BODY_BYTES} are accepted.")


def check_origin(request: Request) -> None:
    if request.method in SAFE_METHODS:
        return
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site")
    foreign = (origin is not None and not is_own_origin(origin, request)) or site in ("cross-site", "same-site")
    if foreign:
        raise Refused(403, "The request comes from a page of another site, so it was refused.")
    if is_api(request):
        if request.method != "DELETE" and media_type(request) != "application/json":
            raise Refused(
                415,
                f"The content type is {media_type(request) or 'missing'}; "
                "send JSON with `Content-Type: application/json`.",
            )
    elif origin is None and site != "same-origin":
        raise Refused(403, "The browser did not say which page sent this form, so it was refused.")


def is_own_origin(origin: str, request: Request) -> bool:
    """Whether an Origin is this server's. https also counts when a proxy in front of us ends TLS."""
    try:
        parts = urlsplit(origin)
        here = urlsplit(f"//{request.headers.get('host', '')}")
        default = {"http": 80, "https": 443}.get(parts.scheme)
        same = (parts.hostname, parts.port or default) == (here.hostname, here.port or default)
    except ValueError:
        return False
    return same and parts.scheme in (request.url.scheme, "https")


def is_api(request: Request) -> bool:
    return request.url.path.startswith("/api/")


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def check_csrf(request: Request) -> None:
    """A dependency of every router with forms: the form's token must be the cookie's."""
    if request.method in SAFE_METHODS:
        return
    form = await request.form(max_files=0, max_fields=60)
    sent, kept = form.get(CSRF_FIELD), request.cookies.get(CSRF_COOKIE, "")
    if not (isinstance(sent, str) and kept and hmac.compare_digest(sent.encode(), kept.encode())):
        raise Refused(403, "The form is too old or did not come from this site. Load the page again and repeat it.")


def csrf_token(request: Request) -> str:
    """The token of this browser, made when it has none; the same all through one request."""
    if not hasattr(request.state, "csrf"):
        kept = request.cookies.get(CSRF_COOKIE, "")
        request.state.csrf = kept if is_token(kept) else secrets.token_urlsafe(32)
    token: str = request.state.csrf
    return token


def keep_csrf(request: Request, response: Response) -> None:
    """Set the cookie with the token that the page's forms repeat."""
    if request.cookies.get(CSRF_COOKIE) == csrf_token(request):
        return
    response.set_cookie(
        CSRF_COOKIE,
        csrf_token(request),
        httponly=True,
        samesite="lax",  # strict would hand out a new token, and spoil open forms, on each link from elsewhere
        secure=is_secure(request),
        path="/",
    )


def renew_csrf(request: Request, response: Response) -> None:
    """Another token from now on, as at each change of who uses the browser."""
    request.state.csrf = secrets.token_urlsafe(32)
    keep_csrf(request, response)


def is_secure(request: Request) -> bool:
    """Whether the browser speaks TLS, with us or with a proxy before us. Whoever lies about it loses the cookie."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto", "").strip().lower() == "https"


def is_token(value: str) -> bool:
    return len(value) == 43 and all(c.isascii() and (c.isalnum() or c in "-_") for c in value)
