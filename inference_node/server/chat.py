"""From messages to the tokens of a prompt.

Three things are done that a template alone does not do:

- Text that a client sends can hold the spelling of a control token ("<|im_end|>"). It must stay text. Such spellings
  are cut by a guard character before rendering, and the rendered text is encoded in pieces between the guards.
- An assistant message that this node generated comes back as text. Encoded again it may be other tokens than those
  generated, and arguments of a tool call may be written otherwise; the prefix store would not know it. So the message
  is rendered as a marker, and the generated ids are put in the marker's place.
- Message boundaries are found, as places worth a checkpoint.

Everything is checked against the plain rendering; where the two do not fit together, the plain one is used.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from inference_node.engine.api import NodeError, Template, Thinking
from inference_node.server.errors import Refused
from inference_node.server.returning import Returned, Returning
from inference_node.server.wire import Message, ToolWire

# Characters that Unicode keeps free for a program's own use: no text that is meant for others holds them.
GUARDS = [chr(code) for code in range(0xFDD0, 0xFDF0)]

THINK, THINK_END = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that is ready for the engine."""

    tokens: tuple[int, ...]
    boundaries: tuple[int, ...]  # indices where a message begins
    thinking: Thinking  # whether the answer begins inside a thought, or may have one
    history: tuple[bytes, ...]  # keys of the conversation after each message, for `Returning`
    spliced: int  # messages whose generated ids were used


def prepare(
    template: Template,
    messages: Sequence[Message],
    *,
    tools: Sequence[ToolWire] = (),
    options: Mapping[str, Any] | None = None,
    returning: Returning | None = None,
    add_generation_prompt: bool = True,
) -> Prompt:
    """The prompt of a conversation. Raises Refused, and what the template refuses."""
    keys = history(messages)
    composer = _Composer(template, messages, tools, dict(options or {}), add_generation_prompt)
    plain = composer.render({})
    parts: list[str | tuple[int, ...]] = [plain]
    if returning is not None:
        known = {
            index: entry
            for index, (key, message) in enumerate(zip(keys, messages, strict=True))
            if message.role == "assistant" and (entry := returning.find(key)) is not None
        }
        parts = composer.splice(plain, known) if known else parts
    tokens: list[int] = []
    for part in parts:
        tokens.extend(composer.encode(part) if isinstance(part, str) else part)
    return Prompt(
        tokens=tuple(tokens),
        boundaries=composer.boundaries(tokens),
        thinking=_thinking(plain) if add_generation_prompt else Thinking.OVER,
        history=keys,
        spliced=sum(not isinstance(part, str) for part in parts),
    )


def _thinking(text: str) -> Thinking:
    if text.rstrip().endswith(THINK):
        return Thinking.INSIDE
    return Thinking.OVER if text.rstrip().endswith(THINK_END) else Thinking.ALLOWED


def history(messages: Sequence[Message]) -> tuple[bytes, ...]:
    """A key for the conversation up to and with each message. What clients change in passing does not change it."""
    keys: list[bytes] = []
    key = b""
    for message in messages:
        calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
        key = Returning.key(key, message.role, message.text, calls)
        keys.append(key)
    return tuple(keys)


class _Composer:
    """Renders one conversation, with markers in place of some messages, and encodes the result."""

    def __init__(
        self,
        template: Template,
        messages: Sequence[Message],
        tools: Sequence[ToolWire],
        options: Mapping[str, Any],
        add_generation_prompt: bool,
    ) -> None:
        self._template = template
        self._options = options
        self._add_generation_prompt = add_generation_prompt
        self._sent = len(messages)
        texts = [*_strings([message.model_dump() for message in messages]), *_strings([t.model_dump() for t in tools])]
        free = [guard for guard in GUARDS if not any(guard in text for text in texts)]
        if len(free) < 3:
            raise Refused(
                "The messages hold the characters U+FDD0 to U+FDEF; Unicode keeps them for programs' own use."
            )
        self._guard, self._open, self._close = free[:3]
        self._controls = Controls.of(template.controls)
        self._thinkless = Controls.of(tuple(text for text in template.controls if text not in (THINK, THINK_END)))
        self._tools = [self._guarded(tool.model_dump(by_alias=True, exclude_defaults=True)) for tool in tools]
        self._messages = [self._as_dict(message) for message in messages]
        self._teaches = template.tool_form is not None
        if not self._teaches:
            self._messages = _without_tools(self._messages, self._tools)
            self._tools = []
        self._header = self._header_text()

    def render(self, marked: Mapping[int, Returned]) -> str:
        """The conversation's text; messages in `marked` stand as markers."""
        messages = list(self._messages)
        for index, entry in marked.items():
            place = self._place(index)
            messages[place] = self._marker(index, entry, messages[place])
        return self._template.render(
            messages,
            tools=self._tools,
            add_generation_prompt=self._add_generation_prompt,
            options=self._options,
        )

    def splice(self, plain: str, known: Mapping[int, Returned]) -> list[str | tuple[int, ...]]:
        """Text and generated ids in turn. Messages whose place cannot be found for certain stay text."""
        try:
            text = self.render(known)
        except Exception:  # a template that looks into a message may refuse a marker; the plain rendering stands
            return [plain]
        parts: list[str | tuple[int, ...]] = []
        certain: list[str] = []  # text that the plain rendering must have too
        for index, entry in sorted(known.items()):
            found = self._find(text, index, entry)
            if found is None:
                return [plain]
            before, ids, text = found
            parts += [before, ids]
            # A template may leave an empty thought out, tags and all; the answer had them.
            certain.append(before.removesuffix(self._header))
        parts.append(text)
        return parts if _in_order(plain, [*certain, text]) else [plain]

    def encode(self, text: str) -> list[int]:
        """Tokens of rendered text. A guard is a cut and no character."""
        return [token for piece in text.split(self._guard) for token in self._template.encode(piece)]

    def boundaries(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Where messages begin: at the control token that opens an assistant's turn, wherever it stands."""
        first = next((text for text in self._template.controls if self._header.startswith(text)), None)
        opener = self._template.id_of(first) if first is not None else None
        return tuple(at for at, token in enumerate(tokens) if token == opener) if opener is not None else ()

    def _header_text(self) -> str:
        """What the template writes before an answer."""
        for messages in ([{"role": "user", "content": "x"}], self._messages):
            try:
                bare = self._template.render(messages, add_generation_prompt=False, options=self._options)
                full = self._template.render(messages, add_generation_prompt=True, options=self._options)
                break
            except NodeError:  # a template may want more than one short message
                continue
        else:
            return ""
        return full.removeprefix(bare) if full.startswith(bare) else ""

    def _place(self, index: int) -> int:
        """Where message `index` stands among those rendered: a system message may have been put before them."""
        return index + (len(self._messages) - self._sent)

    def _marker(self, index: int, entry: Returned, message: Mapping[str, Any]) -> dict[str, Any]:
        marked = {"role": "assistant", "content": f"{self._open}c{index}{self._close}"}
        if entry.thinks and message.get("reasoning_content", "").strip() == entry.thought.strip():
            marked["reasoning_content"] = f"{self._open}t{index}{self._close}"
        return marked

    def _find(self, text: str, index: int, entry: Returned) -> tuple[str, tuple[int, ...], str] | None:
        """(text before the answer, its ids, text after it)."""
        content = f"{self._open}c{index}{self._close}"
        thought = f"{self._open}t{index}{self._close}"
        if text.count(content) != 1 or text.count(thought) > 1:
            return None
        begin, end = text.index(content), text.index(content) + len(content)
        if thought in text:
            start = text.rfind(self._header, 0, text.index(thought)) if self._header else -1
            if start < 0:
                return None
            begin = start + len(self._header)
            if text[begin : text.index(thought)].strip() != entry.lead.strip():
                return None  # the template opens a thought otherwise than the answer did
            ids: tuple[int, ...] | None = entry.tokens
        else:
            ids = entry.after_thought
        if ids is None:
            return None
        after = text[end:]
        if entry.ended_by is not None:
            if after.startswith(entry.ended_by):
                after = after.removeprefix(entry.ended_by)
            else:
                ids = ids[:-1]
        return text[:begin], ids, after

    def _as_dict(self, message: Message) -> dict[str, Any]:
        """A message as templates expect it: arguments as an object, developer as system, spellings guarded."""
        role = "system" if message.role == "developer" else message.role
        text = message.text
        shaped: dict[str, Any] = {"role": role}
        if message.name is not None:
            shaped["name"] = self._guarded(message.name)
        if message.tool_call_id is not None:
            shaped["tool_call_id"] = self._guarded(message.tool_call_id)
        if role == "assistant":
            if message.thought is not None:
                shaped["reasoning_content"] = self._guarded(message.thought)
            calls = []
            for call in message.tool_calls or ():
                arguments = arguments_of(call.function.arguments)
                if arguments is None:
                    # vllm#47761, #55495: one broken call in the history must not refuse every later request.
                    text += f"\n(Called {call.function.name} with broken arguments: {call.function.arguments})"
                else:
                    function = self._guarded({"name": call.function.name, "arguments": arguments})
                    calls.append({"id": self._guarded(call.id), "type": "function", "function": function})
            if calls:
                shaped["tool_calls"] = calls
            # A client may leave the thought in the text; templates look for its tags there.
            shaped["content"] = self._thinkless.cut(text, self._guard)
        else:
            shaped["content"] = self._guarded(text)
        return shaped

    def _guarded(self, value: Any) -> Any:
        match value:
            case str():
                return self._controls.cut(value, self._guard)
            case dict():
                return {self._guarded(key): self._guarded(item) for key, item in value.items()}
            case list():
                return [self._guarded(item) for item in value]
        return value


class Controls:
    """Finds spellings of control tokens in text."""

    def __init__(self, controls: Sequence[str]) -> None:
        self._texts = frozenset(text for text in controls if len(text) > 1)
        self._lengths = sorted({len(text) for text in self._texts})
        firsts = "".join(sorted({text[0] for text in self._texts}))
        self._first = re.compile(f"[{re.escape(firsts)}]") if firsts else None

    @staticmethod
    @lru_cache(maxsize=8)
    def of(controls: tuple[str, ...]) -> "Controls":
        return Controls(controls)

    def cut(self, text: str, guard: str) -> str:
        """The text with a guard inside every spelling, also where spellings overlap."""
        if self._first is None:
            return text
        return self._first.sub(lambda match: match[0] + (guard if self._begins(text, match.start()) else ""), text)

    def _begins(self, text: str, at: int) -> bool:
        return any(text[at : at + length] in self._texts for length in self._lengths)


def arguments_of(arguments: str | Mapping[str, Any]) -> dict[str, Any] | None:
    """The object that a call's arguments are; None where they are none."""
    if not isinstance(arguments, str):
        return dict(arguments)
    if not arguments.strip():
        return {}
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


TOOLS_TEXT = """You can call these functions:

{tools}

To call one, write exactly this and nothing after it:
<tool_call>
{{"name": "NAME", "arguments": {{"KEY": VALUE}}}}
</tool_call>"""


def _without_tools(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same conversation for a template that knows no tools: they are described and used in plain text."""
    shaped: list[dict[str, Any]] = []
    for message in messages:
        message = dict(message)
        calls = message.pop("tool_calls", ())
        if calls:
            written = "\n".join(f"<tool_call>\n{_written(call)}\n</tool_call>" for call in calls)
            message["content"] = f"{message['content']}\n{written}" if message["content"] else written
        if message["role"] == "tool":
            message = {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
        shaped.append(message)
    if tools:
        text = TOOLS_TEXT.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        if shaped and shaped[0]["role"] == "system":
            shaped[0]["content"] += f"\n\n{text}"
        else:
            shaped.insert(0, {"role": "system", "content": text})
    return shaped


def _written(call: Mapping[str, Any]) -> str:
    function = call["function"]
    return json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)


def _in_order(plain: str, texts: Sequence[str]) -> bool:
    """Whether the plain text begins with the first, ends with the last, and holds the others in between in order."""
    first, *middle, last = texts
    if not plain.startswith(first):
        return False
    at = len(first)
    for text in middle:
        at = plain.find(text, at)
        if at < 0:
            return False
        at += len(text)
    return len(plain) - len(last) >= at and plain.endswith(last)


def _strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for key, item in value.items():
                yield from _strings(key)
                yield from _strings(item)
        case list():
            for item in value:
                yield from _strings(item)
