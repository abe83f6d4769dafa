"""For whom a repo is judged, and as what: the choices, in words, for forms and checks."""

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.services.errors import BadInput
from review_agents.focus import FLAVOUR_WORDS, PROFILE_WORDS, Flavour, Profile


@dataclass(frozen=True, slots=True)
class Choice:
    value: str
    words: str


def profiles() -> tuple[Choice, ...]:
    return tuple(Choice(one, PROFILE_WORDS[one]) for one in Profile)


def flavours() -> tuple[Choice, ...]:
    return tuple(Choice(one, FLAVOUR_WORDS[one]) for one in Flavour)


def check(profile: str, flavour: str) -> None:
    """Empty means "as before". Raises `BadInput`: an unknown one is an error, never a default."""
    check_choice("profile", profile, Profile)
    check_choice("flavour", flavour, Flavour)


def check_choice(field: str, value: str, choices: type[StrEnum]) -> None:
    if value and value not in set(choices):
        raise BadInput(field, f"There is no {field} “{value[:60]}”. There are: {', '.join(choices)}.")
