"""From what a model wrote to calls that can be carried out; what cannot be read becomes words for the model.

Weak models write JSON with single quotes, unclosed or with chatter behind it, and fall back into the tool formats of
their training. What can only mean one thing is repaired; the rest is answered with what was wrong. Nothing broken is
ever put into the history: some servers fail on every later request once a broken call stands in it.
"""

import ast
import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from review_agents.records import Answer, ToolCall
from review_agents.tools import DESCRIPTIONS

MOST_CALLS = 8  # in one answer
SHOWN = 300  # characters of what could not be read
MOST_LEVELS = 40  # of lists and objects in each other
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}")

# However long and odd an answer is, reading it takes time in proportion to its length: nothing can end it meanwhile.
THINKING = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)
FENCE = re.compile(r"^[ \t]*```([^\n]*)", re.MULTILINE)
LABEL = re.compile(r"[ \t]*(\w[\w+-]*)")
UNCLOSED = re.compile(r"^[ \t]*```[ \t]*(call|tool_call|tool)[ \t]*\n(.*)\Z", re.DOTALL | re.MULTILINE)
TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
TOGETHER = re.compile(r"([A-Za-z_]\w*+)\s*+[:(]?\s*+(\{.*)", re.DOTALL)
FUNCTION = re.compile(r"<function=([\w.:-]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([\w.-]+)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)
CALL_TEXTS = ("id", "name", "arguments")
OURS = ("call", "tool_call", "tool")  # labels of a block with a call
SHELLS = ("bash", "sh", "shell", "console")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A call whose form is right; whether tool and arguments are is for `tools.checked`."""

    name: str
    arguments: dict[str, Any]

    @property
    def text(self) -> str:
        """The arguments as they go into the history: valid JSON, always written in the same way."""
        return json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Read:
    """An answer as understood."""

    said: str  # without thoughts and calls
    calls: tuple[Wanted, ...]
    problems: tuple[str, ...]  # one for each call that could not be read


class Block(NamedTuple):
    """A fenced block of an answer; `start` and `end` are those of all of it."""

    start: int
    end: int
    label: str  # in small letters
    body: str


def storable(answer: Answer) -> Answer:
    """The answer without half characters, so that it can be stored, shown and sent back."""
    calls = tuple(
        call.model_copy(update={name: whole(getattr(call, name)) for name in CALL_TEXTS}) for call in answer.calls
    )
    return answer.model_copy(update={"text": whole(answer.text), "thought": whole(answer.thought), "calls": calls})


def read(answer: Answer, *, mend: bool = True) -> Read:
    """The calls of an answer, native or written in its text, whichever are there.

    Without `mend` only what is complete counts: closing the brackets of a text that was cut off would invent a call.
    """
    text = THINKING.sub("", answer.text).strip()
    calls: list[Wanted] = []
    problems: list[str] = []
    if answer.calls:
        for call in answer.calls:
            take(read_call(call, mend), calls, problems)
    else:
        for found in written(text, mend):
            take(found, calls, problems)
    said = without_calls(text) if not answer.calls else text
    if len(calls) > MOST_CALLS:
        problems.append(f"{len(calls)} calls in one answer are too many; the first {MOST_CALLS} were taken.")
        calls = calls[:MOST_CALLS]
    return Read(said=said, calls=tuple(calls), problems=tuple(problems))


def take(found: "Wanted | str", calls: list[Wanted], problems: list[str]) -> None:
    if isinstance(found, Wanted):
        calls.append(Wanted(found.name, {whole(name): whole(value) for name, value in found.arguments.items()}))
    else:
        problems.append(found)


def whole(value: Any) -> Any:
    """Without half characters, which JSON can spell and nothing can store or send, and without numbers that are none,
    which Python writes into JSON and servers cannot read there."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {whole(name): whole(item) for name, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    return value


# Native calls ------------------------------------------------------------------------------


def read_call(call: ToolCall, mend: bool = True) -> Wanted | str:
    if not NAME.fullmatch(call.name):
        return f"A call has no proper tool name (found {call.name[:60]!r})."
    try:
        arguments = loaded(call.arguments, mend) if call.arguments.strip() else {}
    except ValueError as error:
        return f"The arguments of {call.name} are no JSON object: {error}. They began with: {call.arguments[:SHOWN]!r}"
    return Wanted(call.name, arguments)


def loaded(text: str, mend: bool = True) -> dict[str, Any]:
    """The JSON object that the text means. Raises `ValueError` saying what is wrong with it."""
    text = unfenced(text.strip())
    first: ValueError | None = None
    for attempt in (text, *(repairs(text) if mend else ())):
        try:
            value = from_json(attempt)
        except ValueError as error:
            first = first or error
            continue
        if isinstance(value, str):  # an object written as a string of JSON
            with suppress(ValueError):
                value = from_json(value)
        if isinstance(value, dict):
            return value
        first = first or ValueError(f"it is a {type(value).__name__}")
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        value = None
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        try:
            return dict(from_json(json.dumps(value)))
        except (ValueError, TypeError, RecursionError):
            pass
    raise first or ValueError("nothing was found")


def from_json(text: str) -> Any:
    """The value of the text. Raises `ValueError`, also for one that is nested too deeply to be handed on."""
    try:
        found = json.loads(text, strict=False)
    except RecursionError:
        found = None
        deep = True
    else:
        deep = is_deep(found, MOST_LEVELS)
    if deep:
        raise ValueError(f"it has more than {MOST_LEVELS} levels")
    return found


def is_deep(value: Any, levels: int) -> bool:
    """Whether it has more levels of lists and objects."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return inside is not None and (levels == 0 or any(is_deep(one, levels - 1) for one in inside))


def repairs(text: str) -> Iterator[str]:
    """The text changed in ways that leave its meaning alone."""
    start = text.find("{")
    if start < 0:
        return
    body = text[start:]
    end = balanced(body)
    if end is not None:
        yield body[:end]  # chatter before or behind
        yield re.sub(r",(\s*[}\]])", r"\1", body[:end])  # a comma before the end
    else:
        yield closed(body)
        yield closed(re.sub(r",\s*$", "", body))


def balanced(text: str) -> int | None:
    """Where the object that the text begins with ends; None when it does not."""
    depth, inside, skip = 0, False, False
    for at, letter in enumerate(text):
        if skip:
            skip = False
        elif inside:
            skip = letter == "\\"
            inside = letter != '"'
        elif letter == '"':
            inside = True
        elif letter in "{[":
            depth += 1
        elif letter in "}]":
            depth -= 1
            if depth == 0:
                return at + 1
    return None


def closed(text: str) -> str:
    """With the brackets that are still open closed. A text that ends inside a string is left as it is: it was cut."""
    stack: list[str] = []
    inside = skip = False
    for letter in text:
        if skip:
            skip = False
        elif inside:
            skip = letter == "\\"
            inside = letter != '"'
        elif letter == '"':
            inside = True
        elif letter in "{[":
            stack.append("}" if letter == "{" else "]")
        elif letter in "}]" and stack:
            stack.pop()
    return text if inside else text + "".join(reversed(stack))


def unfenced(text: str) -> str:
    fenced = re.fullmatch(r"```\w*\s*\n(.*?)\n?```", text, re.DOTALL)
    return fenced[1].strip() if fenced else text


# Calls written in the text -------------------------------------------------------------------


def written(text: str, mend: bool = True) -> Iterator[Wanted | str]:
    """Calls in our own plain-text form, or in the forms that models learned elsewhere."""
    blocks = list(fenced(text))
    ours = [block.body for block in blocks if block.label in OURS]
    if not ours and (unclosed := UNCLOSED.search(text)):
        ours = [unclosed[2]]
    if ours:
        yield from (in_block(body, mend) for body in ours)
        return
    if not mend and re.search(r"<(tool_call|function=)(?!.*</(tool_call|function)>)", text, re.DOTALL):
        yield "The call is not complete."
        return
    if functions := list(FUNCTION.finditer(text)):
        for found in functions:
            yield Wanted(found[1], {name: value(raw) for name, raw in PARAMETER.findall(found[2])})
        return
    if tagged := TAGGED.findall(text):
        yield from (named_object(body.strip()) for body in tagged)
        return
    labelled = [block.body for block in blocks if block.label in ("json", "")]
    for body in labelled:
        if '"name"' in body or '"tool"' in body:
            yield named_object(body)
            return
    shells = [block.body for block in blocks if block.label in SHELLS]
    if len(shells) == 1 and len(blocks) == 1:
        yield Wanted("run", {"command": shells[0].rstrip("\n")})
        return
    bare = text.strip()
    if bare.startswith("{") and ('"name"' in bare or '"tool"' in bare):
        yield named_object(bare)


def fenced(text: str) -> Iterator[Block]:
    """The closed blocks, in their order. A fence with a word behind it opens one and closes none."""
    opening: re.Match[str] | None = None
    for fence in FENCE.finditer(text):
        if opening is None:
            opening = fence
        elif not fence[1].strip():
            label = LABEL.match(opening[1])
            body = text[opening.end() + 1 : fence.start()]
            yield Block(opening.start(), fence.end(), label[1].lower() if label else "", body)
            opening = None


def in_block(body: str, mend: bool = True) -> Wanted | str:
    """A tool's name on the first line, then an object; or one object that names its tool."""
    body = body.strip()
    first, _, rest = body.partition("\n")
    name = first.strip().rstrip(":")
    if body.startswith("{"):
        return named_object(body)
    together = TOGETHER.match(body)
    if together and not NAME.fullmatch(name):
        name, rest = together[1], together[2]
    if not NAME.fullmatch(name):
        return f"The first line of the block must be the tool's name alone (found {first[:80]!r})."
    if not rest.strip():
        rest = "{}"
    try:
        return Wanted(name, loaded(rest, mend))
    except ValueError as error:
        return f"The arguments of {name} are no JSON object: {error}. They began with: {rest.strip()[:SHOWN]!r}"


def named_object(body: str) -> Wanted | str:
    """{"name": ..., "arguments": {...}} and its relatives."""
    try:
        found = loaded(body)
    except ValueError as error:
        return f"The call is no JSON object: {error}. It began with: {body.strip()[:SHOWN]!r}"
    name = found.pop("name", None) or found.pop("tool", None) or found.pop("function", None)
    if isinstance(name, dict):
        found, name = {**found, **name}, name.get("name")
        found.pop("name", None)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        return f"The call names no tool. It began with: {body.strip()[:SHOWN]!r}"
    for key in ("arguments", "parameters", "args", "input"):
        inner = found.get(key)
        if isinstance(inner, dict) and len(found) == 1:
            return Wanted(name, inner)
        if isinstance(inner, str) and len(found) == 1:
            try:
                return Wanted(name, loaded(inner))
            except ValueError as error:
                return f"The arguments of {name} are no JSON object: {error}."
    return Wanted(name, found)


def value(raw: str) -> Any:
    """A parameter of the XML form: JSON where it is a list, an object or a number, else text as it is."""
    stripped = raw.strip()
    if stripped[:1] in ("[", "{") or re.fullmatch(r"-?\d+(\.\d+)?|true|false|null", stripped):
        try:
            return from_json(stripped)
        except ValueError:
            return raw
    return raw


def without_calls(text: str) -> str:
    text = FUNCTION.sub("", TAGGED.sub("", text))
    kept, at = [], 0
    for block in fenced(text):
        if block.label in OURS:
            kept.append(text[at : block.start])
            at = block.end
    return UNCLOSED.sub("", "".join([*kept, text[at:]])).strip()


def near(name: str) -> str:
    """The tool that a made-up name surely means, or the name itself."""
    aliases = {
        "bash": "run", "shell": "run", "execute": "run", "run_command": "run", "terminal": "run", "exec": "run",
        "read_file": "read", "view": "read", "cat": "read", "open": "read",
        "grep": "search", "find": "search", "search_files": "search",
        "write_file": "write", "create_file": "write", "edit": "write",
        "report_finding": "record_finding", "record": "record_finding", "finding": "record_finding",
        "done": "finish", "submit": "finish", "end": "finish", "complete": "finish",
    }  # fmt: skip
    lowered = name.lower().rpartition(".")[2].rpartition(":")[2]
    return lowered if lowered in DESCRIPTIONS else aliases.get(lowered, name)
