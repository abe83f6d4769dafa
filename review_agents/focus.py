"""Focuses: who looks at a repo, at what, with which tools and how much. Data, one TOML file each.

Those of the package lie in `focuses/`. A person adds one by dropping a file of the same form into the service's folder
of focuses, and beside it, if wanted, a template of the message that gives the task. A mistake in either is an error
that names file and key, never a focus that silently does less.
"""

import tomllib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from importlib import resources

from pydantic import Field, ValidationError, field_validator

from review_agents.prompts import BrokenTemplate, render, render_text
from review_agents.records import Kind, Record

TOOLS = ("run", "read", "search", "write", "measure", "record_finding", "finish")
ALWAYS = ("record_finding", "finish")
SCORES = (
    "performance",
    "correctness",
    "engineering",
    "security",
    "reliability",
    "documentation",
    "taste",
    "honesty",
    "overall",
)


class FocusError(ValueError):
    """A focus file is wrong."""


class Budget(Record):
    """What one focus may spend."""

    turns: int = Field(default=40, ge=2, le=500)
    tokens: int = Field(
        default=120_000, ge=1000
    )  # read for the first time or written; what the node knew already is free
    seconds: int = Field(default=2400, ge=10)
    answer_tokens: int = Field(default=4096, ge=64)  # of one answer
    conclude_turns: int = Field(default=3, ge=1)  # kept for recording and finishing
    findings: int = Field(default=12, ge=1, le=100)


class Focus(Record):
    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,39}$")
    title: str
    summary: str  # one line for the form
    mission: str
    hands_on: str  # the duty that no other focus has
    not_yours: str  # what it leaves to the others
    kinds: tuple[Kind, ...] = Field(min_length=1)  # what it usually records
    score: str = ""  # the score that it owns; counts double when scores are reconciled
    tools: tuple[str, ...] = TOOLS
    order: int = 500  # lower ones go first
    template: str = ""  # of its task, in place of ours: in a file its name, here its text
    budget: Budget = Budget()

    @field_validator("mission", "hands_on", "not_yours", "summary", "title")
    @classmethod
    def says_something(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("is empty")
        return " ".join(value.split()) if "\n\n" not in value.strip() else value.strip()

    @field_validator("tools")
    @classmethod
    def tools_exist(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in value if name not in TOOLS]:
            raise ValueError(f"there is no tool {unknown[0]!r}; tools are {', '.join(TOOLS)}")
        return tuple(name for name in TOOLS if name in value or name in ALWAYS)

    @field_validator("score")
    @classmethod
    def score_exists(cls, value: str) -> str:
        if value and value not in SCORES:
            raise ValueError(f"there is no score {value!r}; scores are {', '.join(SCORES)}")
        return value


def parsed(text: str, *, file: str, templates: Mapping[str, str] | None = None) -> Focus:
    """The focus of a file. `templates` are the texts of those beside it, by name. Raises `FocusError`."""
    try:
        focus = Focus.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise FocusError(f"{file}: no valid TOML: {error}.") from None
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        raise FocusError(f"{file}: {key}: {problem['msg']} (found {str(problem['input'])[:80]!r}).") from None
    if file.removesuffix(".toml").rpartition("/")[2] != focus.name:
        raise FocusError(f"{file}: name: found {focus.name!r}, expected the file's own name.")
    return with_template(focus, file=file, templates=templates or {}) if focus.template else focus


def with_template(focus: Focus, *, file: str, templates: Mapping[str, str]) -> Focus:
    """The focus with its template's text, tried once as it will be used. Raises `FocusError`."""
    name = focus.template
    if name not in templates:
        beside = f"one of those beside it: {', '.join(sorted(templates))}" if templates else "a file *.j2 beside it"
        raise FocusError(f"{file}: template: found {name!r}, and there is no such file; expected {beside}.")
    place = f"{file.removesuffix(file.rpartition('/')[2])}{name}"
    made = focus.model_copy(update={"template": templates[name]})
    for claimed, refused in (("", ""), ("finding 1", "one that was not stored")):
        try:
            told = task_of(made, claimed=claimed, refused=refused)
        except BrokenTemplate as error:
            raise FocusError(
                f"{place}: {error}. Expected a Jinja template over the names focus, claimed and refused."
            ) from None
        if not told:
            raise FocusError(f"{place}: it tells the agent nothing; expected the words of its task.")
    return made


def task_of(focus: Focus, *, claimed: str, refused: str) -> str:
    """The message that gives an agent its task: in the words of the focus, where it brings some."""
    values = {"focus": focus, "claimed": claimed, "refused": refused}
    return render_text(focus.template, **values) if focus.template else render("task", **values)


def collected(files: Iterable[tuple[str, str]], templates: Mapping[str, str] | None = None) -> dict[str, Focus]:
    """The package's focuses and those of more files (name, text), which may replace them; in the order they go.

    `templates` are those that lie beside the files, by name. Raises `FocusError`, also for one that no file names.
    """
    found = dict(builtin())
    unused = dict(templates or {})
    for file, text in files:
        focus = parsed(text, file=file, templates=templates)
        unused = {name: source for name, source in unused.items() if source != focus.template}
        found[focus.name] = focus
    if unused:
        name = min(unused)
        raise FocusError(f'{name}: no focus beside it uses it; expected a TOML file with template = "{name}".')
    return {focus.name: focus for focus in sorted(found.values(), key=lambda one: (one.order, one.name))}


@cache
def builtin() -> Mapping[str, Focus]:
    folder = resources.files("review_agents") / "focuses"
    files = sorted((one for one in folder.iterdir() if one.name.endswith(".toml")), key=lambda one: one.name)
    found = [parsed(one.read_text(encoding="utf-8"), file=one.name) for one in files]
    return {focus.name: focus for focus in sorted(found, key=lambda one: (one.order, one.name))}


# Who judges, and what -----------------------------------------------------------------------


class Profile(StrEnum):
    """For whom the verdict is. An unknown one is an error, never a default."""

    GENERAL = "general"
    ADOPTION = "adoption"
    APPLICATION = "application"
    STUDENT = "student"


class Flavour(StrEnum):
    """What the repo means to be; the same habit can be a fault in one and fine in the other."""

    PRODUCTION = "production"
    RESEARCH = "research"
    PERFORMANCE = "performance"
    PERSONAL = "personal"


PROFILE_WORDS = {
    Profile.GENERAL: "a maintainer who wants to know what to repair first",
    Profile.ADOPTION: "a team that decides whether to depend on this software for years",
    Profile.APPLICATION: "somebody who judges the author's craft from this repository",
    Profile.STUDENT: "a teacher who marks the work and explains what to learn next",
}
FLAVOUR_WORDS = {
    Flavour.PRODUCTION: "software that others run and depend on; broken promises and lost data weigh most",
    Flavour.RESEARCH: "research code; whether its results are right and can be had again weighs most",
    Flavour.PERFORMANCE: "software that exists to be fast; its speed claims and their measurement weigh most",
    Flavour.PERSONAL: "a personal project; judge what it promises, not what a company would add",
}
RESEARCH_SIGNS = ("citation.cff", "paper.md", "paper.tex", "reproduce.sh")


def flavour_of(asked: str, files: Iterable[str]) -> Flavour:
    """What the repo's settings say, where that is one of ours; else from its files."""
    if asked in set(Flavour):
        return Flavour(asked)
    names = [path.lower() for path in files]
    if any(name.rpartition("/")[2] in RESEARCH_SIGNS for name in names):
        return Flavour.RESEARCH
    if sum(name.startswith(("bench", "benchmarks/")) for name in names) >= 3:
        return Flavour.PERFORMANCE
    return Flavour.PRODUCTION
