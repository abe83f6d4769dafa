"""Form fields as text to values, with messages for the field that is wrong."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from uuid import UUID

from pydantic import BaseModel

from orchestrator.services.errors import BadInput

TICKED = "yes"  # what a ticked box sends; one that is not ticked sends nothing


class Fields(BaseModel):
    """A form's fields as they were typed."""

    @property
    def names(self) -> Collection[str]:
        return type(self).model_fields


class Wishes(Fields):
    """What is asked of a review, now or round by round."""

    ref: str = ""
    focuses: Sequence[str] = ()
    profile: str = ""
    flavour: str = ""
    budget_minutes: str = ""


def whole_number(field: str, given: str, *, least: int = 1, most: int = 10**9) -> int | None:
    """Empty is None."""
    if not given.strip():
        return None
    try:
        number = int(given)
    except ValueError:
        raise BadInput(field, f"“{given.strip()[:40]}” is not a whole number.") from None
    if not least <= number <= most:
        raise BadInput(field, f"{number} is not between {least} and {most}.")
    return number


def names(given: str) -> tuple[str, ...]:
    """A comma-separated list."""
    return tuple(part.strip() for part in given.split(",") if part.strip())


def identifier(field: str, given: str) -> UUID:
    try:
        return UUID(given)
    except ValueError:
        raise BadInput(field, "Choose one of the list.") from None


def end_of_day(field: str, given: str) -> datetime | None:
    """The end of that day in UTC; empty is None."""
    if not given.strip():
        return None
    try:
        day = date.fromisoformat(given.strip())
        return datetime.combine(day, time(), UTC) + timedelta(days=1)
    except (ValueError, OverflowError):
        raise BadInput(field, f"“{given.strip()[:40]}” is not a day; write it as 2027-01-31.") from None


def by_field(error: BadInput) -> Mapping[str, str]:
    return {error.field: str(error)}
