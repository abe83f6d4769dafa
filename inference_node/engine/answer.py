"""From the text of an answer to its parts: thought, text, tool calls; as it grows, never taking anything back.

The parts that a client receives while streaming, put together, are the parts of the whole answer: both come from here.
White space around the markers belongs to the form, not to the parts: it is not shown, and the template writes it again.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inference_node.engine.calls import CLOSE, OPEN, VALUE_END, Kind, Parameter, Tool, ToolForm

THINK, THINK_END = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Thought:
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class CallOpened:
    """A tool call begins; its arguments follow."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallPart:
    """More of a call's arguments: text of one JSON object."""

    index: int
    arguments: str


Delta = Thought | Text | CallOpened | CallPart


class AnswerParser:
    """One answer while it grows. `feed` text, then `finish`; each gives the parts that are certain by then."""

    def __init__(self, *, form: ToolForm | None, tools: Sequence[Tool] = (), thinking: bool = False) -> None:
        """form: None when no tools are on offer; a call's text is text then. thinking: the prompt opened a thought."""
        self._form = form
        self._tools = {tool.name: tool for tool in tools}
        self._rest = ""  # not parsed yet
        self._space = ""  # white space that is shown only if more text of the same part follows
        self._state = self._thought if thinking else self._start
        self._shown = False  # something of the present part was shown
        self._calls = 0
        self._ended = False
        self._tool: Tool | None = None
        self._keys = 0  # parameters of the present call so far
        self._parameter: Parameter | None = None
        self._depth = _Depth()

    def feed(self, text: str) -> list[Delta]:
        self._rest += text
        return self._run()

    def finish(self) -> list[Delta]:
        """No more text comes: what was held back is shown as what it then is."""
        self._ended = True
        return self._run()

    @property
    def calls(self) -> int:
        """Tool calls begun so far."""
        return self._calls

    def _run(self) -> list[Delta]:
        """Let states work until one needs more text."""
        found: list[Delta] = []
        while True:
            state = self._state
            before = len(self._rest)
            found.extend(state())
            if self._state == state and len(self._rest) == before:
                return _merged(found)

    # Each state consumes what it is certain of, and may hand over to another state.

    def _start(self) -> Iterator[Delta]:
        """Nothing was said yet: a thought may be opened, even after white space."""
        bare = self._rest.lstrip()
        if bare.startswith(THINK):
            self._rest = bare.removeprefix(THINK)
            self._state = self._thought
        elif self._ended or (bare and not THINK.startswith(bare)):
            self._state = self._text
        yield from ()

    def _thought(self) -> Iterator[Delta]:
        before, marker, after = self._rest.partition(THINK_END)
        if marker:
            yield from self._show(Thought, before)
            self._rest, self._space, self._shown, self._state = after, "", False, self._gap
            return
        keep = 0 if self._ended else _partial(self._rest, THINK_END)
        yield from self._show(Thought, self._take(len(self._rest) - keep))

    def _gap(self) -> Iterator[Delta]:
        """White space between a thought and what follows."""
        self._rest = self._rest.lstrip()
        if self._rest or self._ended:
            self._state = self._text
        yield from ()

    def _text(self) -> Iterator[Delta]:
        before, marker, after = self._rest.partition(OPEN) if self._form else (self._rest, "", "")
        if marker:
            yield from self._show(Text, before)
            self._rest, self._state = after, self._head
            return
        keep = 0 if self._ended or self._form is None else _partial(self._rest, OPEN)
        yield from self._show(Text, self._take(len(self._rest) - keep))
        if self._ended and self._space and not self._calls:
            space, self._space = self._space, ""
            yield Text(space)

    def _head(self) -> Iterator[Delta]:
        """The beginning of a call, up to its arguments."""
        pattern = XML_HEAD if self._form is ToolForm.XML else JSON_HEAD
        match = pattern.match(self._rest)
        if match is None:
            if self._ended or len(self._rest) > 4096:
                yield from self._give_up()
            return
        name = match[1] if self._form is ToolForm.XML else json.loads(f'"{match[1]}"')
        self._take(match.end())
        self._tool = self._tools.get(name) or Tool(name)
        yield CallOpened(self._calls, name)
        self._calls += 1
        self._space, self._keys, self._depth = "", 0, _Depth()
        if self._form is ToolForm.XML:
            self._state = self._key
            yield CallPart(self._calls - 1, "{")
        else:
            self._state = self._json_arguments

    def _json_arguments(self) -> Iterator[Delta]:
        """The object after "arguments":, up to the brace that closes it."""
        end = self._depth.end_of(self._rest)
        if end is None:
            yield CallPart(self._calls - 1, self._take(len(self._rest)))
            return
        yield CallPart(self._calls - 1, self._take(end))
        self._state = self._close

    def _key(self) -> Iterator[Delta]:
        """Between two parameters."""
        assert self._tool is not None, "a call was opened"
        if match := XML_KEY.match(self._rest):
            self._take(match.end())
            self._parameter = self._tool.parameter(match[1])
            yield CallPart(self._calls - 1, f"{', ' if self._keys else ''}{_dumps(match[1])}: ")
            self._keys += 1
            self._shown = False
            self._state = self._value
        elif match := XML_END.match(self._rest):
            self._take(match.end())
            yield CallPart(self._calls - 1, "}")
            self._state = self._close
        elif self._ended:
            self._rest = ""

    def _value(self) -> Iterator[Delta]:
        """A parameter's text. Strings are shown as they grow, other values once they are whole."""
        assert self._parameter is not None, "a parameter was opened"
        text, marker, after = self._rest.partition(VALUE_END)
        if self._parameter.kind is not Kind.TEXT:
            if marker:
                yield CallPart(self._calls - 1, _dumps(self._parameter.value(text)))
                self._rest, self._state = after, self._key
            elif self._ended:
                self._rest = ""  # half a value is no value; what was shown stays cut here
            return
        opening = "" if self._shown else '"'
        if marker:
            yield CallPart(self._calls - 1, f'{opening}{_dumps(text)[1:-1]}"')
            self._rest, self._state = after, self._key
            return
        keep = 0 if self._ended else _partial(self._rest, VALUE_END)
        shown = self._take(len(self._rest) - keep)
        if shown or not self._shown:
            self._shown = True
            yield CallPart(self._calls - 1, opening + _dumps(shown)[1:-1])

    def _close(self) -> Iterator[Delta]:
        """What remains of a call after its arguments."""
        _, marker, after = self._rest.partition(CLOSE)
        if marker:
            self._rest, self._shown, self._state = after, False, self._after
        elif self._ended:
            self._rest = ""
        yield from ()

    def _after(self) -> Iterator[Delta]:
        """Between calls: white space is the form's; text that follows a call is shown."""
        self._rest = self._rest.lstrip()
        if self._rest:
            self._state = self._text
        yield from ()

    def _give_up(self) -> Iterator[Delta]:
        """What began as a call is none: it is text, marker included."""
        text, self._rest, self._state = OPEN + self._rest, "", self._text
        self._form = None
        yield from self._show(Text, text)

    def _show(self, part: type[Thought] | type[Text], text: str) -> Iterator[Delta]:
        """Show text of a part, but hold back white space at its end while a marker may follow."""
        text = self._space + text
        if not self._shown and part is Thought:
            text = text.lstrip("\n")
        bare = text.rstrip()
        holds = part is Thought or self._form is not None
        self._space = text[len(bare) :] if holds else ""
        shown = bare if holds else text
        if shown:
            self._shown = True
            yield part(shown)

    def _take(self, count: int) -> str:
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken


XML_HEAD = re.compile(r"\s*<function=([^>\n]+)>")
XML_KEY = re.compile(r"\s*<parameter=([^>\n]+)>\n")
XML_END = re.compile(r"\s*</function>")
JSON_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"((?:[^"\\]|\\.)*)"\s*,\s*"arguments"\s*:\s*(?=\S)')


class _Depth:
    """Finds the brace that closes a JSON object, over text that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def end_of(self, text: str) -> int | None:
        """Index after the closing brace, or None when the object goes on."""
        for at, char in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return at + 1
        return None


def _partial(text: str, marker: str) -> int:
    """How many characters at the end of text could be the beginning of the marker."""
    for count in range(min(len(text), len(marker) - 1), 0, -1):
        if marker.startswith(text[-count:]):
            return count
    return 0


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _merged(deltas: list[Delta]) -> list[Delta]:
    """Neighbours of one kind as one."""
    merged: list[Delta] = []
    for delta in deltas:
        last = merged[-1] if merged else None
        if isinstance(delta, CallPart) and not delta.arguments:
            continue
        if isinstance(delta, Thought) and isinstance(last, Thought):
            merged[-1] = Thought(last.text + delta.text)
        elif isinstance(delta, Text) and isinstance(last, Text):
            merged[-1] = Text(last.text + delta.text)
        elif isinstance(delta, CallPart) and isinstance(last, CallPart) and last.index == delta.index:
            merged[-1] = CallPart(delta.index, last.arguments + delta.arguments)
        else:
            merged.append(delta)
    return merged
