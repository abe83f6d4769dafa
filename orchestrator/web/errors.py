"""From what went wrong to what the asker gets: one table of status codes, one JSON shape.

The API always answers `{"errors": [{"field": ..., "message": ...}, ...]}`; pages show the message in
words (`app.py` has the handlers). Routes catch nothing but a form's own bad input.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from fastapi.responses import JSONResponse
from pydantic import BaseModel

from orchestrator.services.errors import (
    BadInput,
    ImpossibleRequest,
    NotAllowed,
    NotNow,
    NotThere,
    OutsideError,
    ServiceError,
    TooManyTries,
    WrongPassword,
)


class Problem(BaseModel):
    """One thing that is wrong. `field` names the input that it is about, where there is one."""

    field: str | None = None
    message: str


class Problems(BaseModel):
    """The body of every answer of the API that is no success."""

    errors: list[Problem]


class Refused(Exception):
    """The request was refused before it reached a route, or by its form's token."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status
        self.message = message


# First match wins, so a special case stands above its kind.
STATUS: tuple[tuple[type[ServiceError], int], ...] = (
    (BadInput, 422),
    (WrongPassword, 401),
    (NotAllowed, 403),
    (NotThere, 404),
    (TooManyTries, 429),
    (NotNow, 409),
    (ImpossibleRequest, 400),
    (OutsideError, 503),
)


def status_of(error: ServiceError) -> int:
    return next((status for kind, status in STATUS if isinstance(error, kind)), 500)


def problem_of(error: ServiceError) -> Problem:
    return Problem(field=error.field if isinstance(error, BadInput) else None, message=str(error))


def problems_of(found: Iterable[Any]) -> list[Problem]:
    """From pydantic's list of errors; the field is a dotted path without the word body, query or path."""
    return [
        Problem(
            field=".".join(str(part) for part in one["loc"][1:]) or None,
            message=str(one["msg"]).removeprefix("Value error, "),
        )
        for one in found
    ]


def json_answer(status: int, problems: Sequence[Problem], headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse(Problems(errors=list(problems)).model_dump(), status, headers)
