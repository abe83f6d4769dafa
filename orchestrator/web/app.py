"""The web door: pages for people, an API for programs, both over the same services."""

import secrets
from collections.abc import Sequence

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import Scope

from orchestrator.services.errors import OutsideError, ServiceError
from orchestrator.services.workshop import Workshop
from orchestrator.settings import Settings
from orchestrator.web import (
    accounts,
    agents,
    api,
    events,
    exports,
    findings,
    health,
    home,
    measurements,
    nodes,
    render,
    repos,
    reviews,
    schedules,
)
from orchestrator.web.doorman import Doorman
from orchestrator.web.errors import Problem, Refused, json_answer, problem_of, problems_of, status_of
from orchestrator.web.security import HEADERS, Guard, check_csrf, is_api

TITLES = {
    400: "That is not possible",
    401: "Who are you?",
    403: "Refused",
    404: "Nothing here",
    500: "That should not have happened",
    405: "Not in this way",
    409: "Not now",
    422: "That cannot be read",
    429: "Not so fast",
    503: "Something outside does not answer",
}


def make_app(shop: Workshop, settings: Settings) -> FastAPI:
    """The whole application. Opens nothing itself; bind it to loopback, or to where `allowed_hosts` says it is."""
    app = FastAPI(
        title="Lamplighter",
        version=render.our_version(),
        description="Reviews of repositories, with proof.",
        docs_url=None,  # these two would load scripts from elsewhere; /api/docs is ours
        redoc_url=None,
        openapi_url="/api/openapi.json",
        separate_input_output_schemas=False,
    )
    app.state.shop = shop
    app.state.streams = 0  # live pages now
    app.state.closing = False  # set by serving.Server
    app.state.setup_token = secrets.token_urlsafe(16)  # for the first account; `lamplighter web` says it
    for router in (accounts, home, reviews, agents, events, exports, repos, measurements, findings, schedules, nodes):
        app.include_router(router.router, dependencies=[Depends(check_csrf)], include_in_schema=False)
    for plain in (api, health):
        app.include_router(plain.router)
    app.mount("/static", Static(directory=render.STATIC), name="static")
    app.add_exception_handler(ServiceError, on_service_error)
    app.add_exception_handler(Refused, on_refused)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(Exception, on_bug)
    app.add_middleware(Doorman, shop=shop)
    app.add_middleware(Guard, allowed_hosts=settings.allowed_hosts)
    return app


class Static(StaticFiles):
    """Our own files. Addresses carry a hash of the content, so what has one may be kept for ever."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        if answer.status_code == 200 and b"v=" in scope["query_string"]:
            answer.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return answer


def on_service_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    headers = {"Retry-After": "10"} if isinstance(error, OutsideError) and error.retry else {}
    return answer(request, status_of(error), [problem_of(error)], headers)


def on_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return answer(request, error.status, [Problem(message=error.message)])


def on_invalid(request: Request, error: Exception) -> Response:
    """Input that does not have the right shape. A page's address with a wrong id is a page that is not there."""
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    in_path = any(one["loc"][0] == "path" for one in found)
    if in_path and not is_api(request):
        return answer(request, 404, [Problem(message=f"There is nothing at {request.url.path}.")])
    return answer(request, 422, problems_of(found))


def on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = str(error.detail)
    if error.status_code == 404:
        message = f"There is nothing at {request.url.path}."
    return answer(request, error.status_code, [Problem(message=message)], dict(error.headers or {}))


def on_bug(request: Request, error: Exception) -> Response:
    """Starlette logs the traceback after this; nothing of it reaches the page."""
    message = "This is a fault of Lamplighter itself. Its log has the details."
    return answer(request, 500, [Problem(message=message)], dict(HEADERS))  # outside of the guard, so by hand


def answer(
    request: Request, status: int, problems: Sequence[Problem], headers: dict[str, str] | None = None
) -> Response:
    if is_api(request):
        return json_answer(status, problems, headers)
    title = TITLES.get(status, "That did not work")
    response = render.page(request, "error.html", status=status, title=title, problems=problems)
    response.headers.update(headers or {})
    return response
