"""The tools on offer: what models are told of them, and the check of what they send.

All focuses are shown the same tools in the same order, because tools stand at the very beginning of a prompt and a
difference there costs a full reading. What a focus may use is checked when it calls.
"""

from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from review_agents.focus import SCORES
from review_agents.records import Effort, Environment, Severity, Tool
from review_agents.rules import ALL_RULES, RULES, Kind
from review_agents.visible import OUTPUT_CHARS

LONGEST_COMMAND = 20_000
LONGEST_FILE = 200_000


class Arguments(BaseModel):
    """Numbers may come as text, as weak models write them, but must be some; unknown names are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Run(Arguments):
    command: str = Field(min_length=1, max_length=LONGEST_COMMAND, description="a bash script, run in /job/repo")
    timeout_s: float = Field(60, ge=1, le=600, description="seconds until it is ended")
    environment: Environment = Field(
        Environment.PLAIN, description="plain: the package alone; test: with what its tests need; none: bare Python"
    )


class Read(Arguments):
    path: str = Field(
        min_length=1, max_length=1000, description="a file, output:N of call N, evidence:CHECK, finding:N"
    )
    from_line: int = Field(1, ge=1)
    lines: int = Field(200, ge=1, le=400)


class Search(Arguments):
    pattern: str = Field(min_length=1, max_length=500, description="extended regular expression, as of grep -E")
    folder: str = Field(".", max_length=1000)


class Write(Arguments):
    path: str = Field(min_length=1, max_length=1000, description="below /tmp or in your copy of the repository")
    text: str = Field(max_length=LONGEST_FILE)


class Measure(Arguments):
    name: str = Field(min_length=1, max_length=100, description="what is timed")
    command: str = Field(min_length=1, max_length=LONGEST_COMMAND)
    sessions: int = Field(6, ge=3, le=12, description="fresh processes, 3 or more")
    environment: Environment = Environment.PLAIN


class OtherPlace(Arguments):
    file: str = Field(min_length=1, max_length=1000)
    quote: str = Field(min_length=3, max_length=2000)


class RecordFinding(Arguments):
    title: str = Field(min_length=8, max_length=200, description="what is wrong, in one sentence")
    kind: Kind
    rule: Literal[ALL_RULES] = Field(  # type: ignore[valid-type]
        description="one of the list of its kind",
        json_schema_extra={"anyOf": [{"description": f"of {kind}", "enum": list(RULES[kind])} for kind in Kind]},
    )
    severity: Severity
    severity_reason: str = Field(min_length=5, max_length=500, description="who meets it and what it costs them")
    experience: str = Field(min_length=10, max_length=4000, description="what a user does, expects and gets instead")
    file: str = Field(min_length=1, max_length=1000)
    quote: str = Field(min_length=3, max_length=2000, description="the line of that file, exactly")
    more_places: list[OtherPlace] = Field([], max_length=20, description="where the same fault shows again")
    opinion: bool = Field(False, description="true: a judgement, which has quotes instead of a script")
    command: str = Field("", max_length=LONGEST_COMMAND, description="bash script that shows the fault")
    output_contains: list[str] = Field([], max_length=5, description="texts of its output when the fault is there")
    exit_status: int | None = Field(None, ge=0, le=255, description="its exit status then, if that matters")
    expected: str = Field("", max_length=2000, description="what it should give")
    observed: str = Field("", max_length=2000, description="what it gives")
    control: str = Field("", max_length=LONGEST_COMMAND, description="a similar script that must succeed")
    environment: Environment = Environment.PLAIN
    effort: Effort = Field(Effort.MEDIUM, description="of a repair")
    differs: str = Field(
        "", max_length=1000, description="once refused as known: why mending the known fault would leave this one"
    )


Scores = create_model("Scores", __base__=Arguments, **{name: (float | None, None) for name in SCORES})  # type: ignore[call-overload]


class Finish(Arguments):
    summary: str = Field(min_length=10, max_length=3000, description="what you looked at and what you think of it")
    strengths: list[str] = Field([], max_length=12)
    weaknesses: list[str] = Field([], max_length=12)
    scores: Scores = Field(Scores(), description="1 (bad) to 10, only what you can judge")  # type: ignore[valid-type]
    not_looked_at: list[str] = Field([], max_length=12, description="what you could not or did not look at")
    recommendation: str = Field("", max_length=1000, description="what to do first")


DESCRIPTIONS: dict[str, tuple[str, type[Arguments]]] = {
    "run": (
        f"Run a bash script in your container; shows its ending and {OUTPUT_CHARS} characters of output, the middle of "
        "more left out (read output:N has it).",
        Run,
    ),
    "read": (f"Show lines of a file or text, up to {OUTPUT_CHARS} characters.", Read),
    "search": ("Find lines in the repository that match a pattern.", Search),
    "write": ("Write a file, for example a test of your own.", Write),
    "measure": (
        "Time a command in fresh processes; gives median, spread, CPU time. Says when others disturbed it.",
        Measure,
    ),
    "record_finding": ("Store a finding. It is checked at once and proved again later.", RecordFinding),
    "finish": ("End your review with a report.", Finish),
}


COSTS_ONLY = ("title", "maxLength", "minLength", "maxItems", "minimum", "additionalProperties")  # of a schema


class BadArguments(ValueError):
    """What is wrong with a call, in words for the model."""


def checked(name: str, arguments: Any) -> Arguments:
    """The arguments of a known tool. Raises `BadArguments`."""
    if not isinstance(arguments, dict):
        raise BadArguments(f"The arguments of {name} must be one JSON object; found {type(arguments).__name__}.")
    model = DESCRIPTIONS[name][1]
    try:
        return model.model_validate({key: value for key, value in arguments.items() if value is not None})
    except ValidationError as error:
        problems = [in_words(problem) for problem in error.errors()[:4]]
        known = ", ".join(model.model_fields)
        raise BadArguments(f"Arguments of {name}: {'; '.join(problems)}. It takes: {known}.") from None


def in_words(problem: Any) -> str:
    place = ".".join(str(part) for part in problem["loc"]) or "the object"
    found = "" if problem["type"] in ("missing", "extra_forbidden") else f" (found {str(problem['input'])[:60]!r})"
    return f"{place}: {problem['msg'].lower()}{found}"


@cache
def offered() -> tuple[Tool, ...]:
    """All tools as models are told, always the same bytes."""
    return tuple(
        Tool(name=name, description=description, parameters=schema_of(model))
        for name, (description, model) in DESCRIPTIONS.items()
    )


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema without what only costs tokens: titles, references, defaults that say nothing, limits that code
    checks anyway."""
    schema = model.model_json_schema()
    return dict(slim(schema, schema.get("$defs", {})))


def slim(schema: Any, known: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [slim(one, known) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        meant = {key: value for key, value in known[schema["$ref"].rpartition("/")[2]].items() if key != "description"}
        return slim({**meant, **rest}, known)
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in COSTS_ONLY and not isinstance(value, dict):
            continue
        if key == "$defs" or (key == "enum" and branches(schema)):
            continue
        if key == "anyOf" and any(one == {"type": "null"} for one in value):
            kept |= slim(next(one for one in value if one != {"type": "null"}), known)
            continue
        kept[key] = (
            {name: slim(one, known) for name, one in value.items()} if key == "properties" else slim(value, known)
        )
    if kept.get("default", "") in (None, "", False) or isinstance(kept.get("default"), dict | list):
        kept.pop("default", None)
    return kept


def branches(schema: dict[str, Any]) -> bool:
    """Whether its values are listed in branches, so that one list of all would only say them twice."""
    return any("enum" in one for one in schema.get("anyOf", ()))
