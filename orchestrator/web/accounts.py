"""Logging in and out, the first account, and the page on which people manage theirs."""

import hmac
from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from orchestrator.services import accounts
from orchestrator.services.errors import BadInput, NotNow, TooManyTries, WrongPassword
from orchestrator.web import forms
from orchestrator.web.deps import Shop
from orchestrator.web.doorman import LOGIN_COOKIE, account_of, is_forwarded, keep_login
from orchestrator.web.render import is_ours, page
from orchestrator.web.security import renew_csrf

router = APIRouter()
Text = Annotated[str, Form()]
EMPTY: Mapping[str, str] = {"name": "", "token_name": ""}


@router.get("/login")
def login_page(request: Request, shop: Shop, next: str = "/") -> Response:
    if not accounts.exist(shop):
        return RedirectResponse("/setup" if accounts.needed(shop, forwarded=is_forwarded(request)) else "/", 303)
    return page(request, "login.html", name="", next=next if is_ours(next) else "/", errors={})


@router.post("/login")
def log_in(request: Request, shop: Shop, name: Text = "", password: Text = "", next: Text = "/") -> Response:
    goal = next if is_ours(next) else "/"
    address = request.client.host if request.client else ""
    try:
        secret = accounts.log_in(shop, name, password, address)
    except (WrongPassword, TooManyTries) as error:
        busy = isinstance(error, TooManyTries)
        shown = page(
            request, "login.html", status=429 if busy else 401, name=name[:64], next=goal, errors={"name": str(error)}
        )
        if isinstance(error, TooManyTries):
            shown.headers["Retry-After"] = str(error.wait_s)
        return shown
    return entered(request, secret, goal)


@router.post("/logout")
def log_out(request: Request, shop: Shop) -> RedirectResponse:
    accounts.log_out(shop, request.cookies.get(LOGIN_COOKIE, ""))
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(LOGIN_COOKIE, path="/")
    renew_csrf(request, answer)
    return answer


@router.get("/setup")
def setup_page(request: Request, shop: Shop) -> Response:
    if accounts.exist(shop):
        return RedirectResponse("/login", 303)
    if not accounts.needed(shop, forwarded=is_forwarded(request)):
        return RedirectResponse("/account", 303)
    return to_set_up(request, shop, {"token": "", "name": ""}, {})


@router.post("/setup")
def set_up(request: Request, shop: Shop, token: Text = "", name: Text = "", password: Text = "") -> Response:
    """The first account, by whoever can read what the service wrote when it started."""
    form = {"token": token[:80], "name": name[:80]}
    try:
        if not hmac.compare_digest(token.strip().encode(), str(request.app.state.setup_token).encode()):
            raise BadInput(
                "token", "That is not the token. It stands in what `lamplighter web` wrote at its last start."
            )
        accounts.create(shop, name, password, admin=True, only_first=True)
    except BadInput as error:
        return to_set_up(request, shop, form, forms.by_field(error))
    return entered(request, first_login(shop, name, password, request), "/")


def to_set_up(request: Request, shop: Shop, form: Mapping[str, str], errors: Mapping[str, str]) -> HTMLResponse:
    """`told`: the start wrote the token, for already then it was clear that others can come."""
    told = accounts.needed(shop)
    return page(request, "setup.html", status=422 if errors else 200, form=form, errors=errors, told=told)


@router.get("/account")
def account_page(request: Request, shop: Shop) -> HTMLResponse:
    return shown(request, shop)


@router.post("/account/password")
def change_password(request: Request, shop: Shop, old: Text = "", password: Text = "") -> Response:
    account = account_of(request)
    if account is None:
        raise NotNow("Nobody is logged in, so there is no password to change.")
    try:
        accounts.change_password(shop, account.id, old, password, keep=request.cookies.get(LOGIN_COOKIE, ""))
    except BadInput as error:
        return shown(request, shop, errors=forms.by_field(error))
    return shown(request, shop, said="The password is changed. Everywhere else you are logged out.")


@router.post("/account/tokens")
def make_token(request: Request, shop: Shop, token_name: Text = "") -> Response:
    account = account_of(request)
    if account is None:
        raise NotNow("Nobody is logged in, and without accounts the API asks for no token.")
    try:
        secret = accounts.make_token(shop, account.id, token_name)
    except BadInput as error:
        return shown(request, shop, form={**EMPTY, "token_name": token_name[:80]}, errors=forms.by_field(error))
    return shown(request, shop, secret=secret)


@router.post("/account/tokens/{token_id}/revoke")
def revoke_token(request: Request, shop: Shop, token_id: UUID) -> Response:
    account = account_of(request)
    if account is not None:
        accounts.revoke_token(shop, account.id, token_id)
    return RedirectResponse("/account", 303)


@router.post("/accounts")
def add(request: Request, shop: Shop, name: Text = "", password: Text = "", admin: Text = "") -> Response:
    """Where nobody is asked yet this is the first account, and whoever makes it is logged in with it."""
    account = account_of(request)
    accounts.must_be_admin(account)
    try:
        accounts.create(shop, name, password, admin=bool(admin) or account is None, only_first=account is None)
    except BadInput as error:
        return shown(request, shop, form={**EMPTY, "name": name[:80]}, errors=forms.by_field(error))
    if account is None:
        return entered(request, first_login(shop, name, password, request), "/account")
    return RedirectResponse("/account", 303)


@router.post("/accounts/{name}/remove")
def remove(request: Request, shop: Shop, name: str) -> Response:
    account = account_of(request)
    accounts.must_be_admin(account)
    accounts.remove(shop, name)
    return RedirectResponse("/account", 303)


def first_login(shop: Shop, name: str, password: str, request: Request) -> str:
    return accounts.log_in(shop, name, password, request.client.host if request.client else "")


def entered(request: Request, secret: str, goal: str) -> RedirectResponse:
    """A new secret at each login, for the cookie as for forms: nobody can have planted either."""
    answer = RedirectResponse(goal, 303)
    keep_login(request, answer, secret)
    renew_csrf(request, answer)
    return answer


def shown(
    request: Request,
    shop: Shop,
    *,
    form: Mapping[str, Any] = EMPTY,
    errors: Mapping[str, str] | None = None,
    said: str = "",
    secret: str = "",
) -> HTMLResponse:
    account = account_of(request)
    answer = page(
        request,
        "account.html",
        section="/account",
        status=422 if errors else 200,
        form=form,
        errors=errors or {},
        said=said,
        secret=secret,
        tokens=accounts.tokens(shop, account.id) if account else (),
        accounts=accounts.listed(shop) if account is None or account.admin else (),
    )
    if secret:
        answer.headers["Cache-Control"] = "no-store"
    return answer
