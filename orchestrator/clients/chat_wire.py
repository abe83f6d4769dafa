"""The chat wire of OpenAI-compatible servers: our records out, their JSON and streams in.

Servers differ in what they send beside the standard; what is read here of theirs: llama-server's and our node's
`timings`, vLLM's and OpenAI's `usage.prompt_tokens_details`, `reasoning_content` and vLLM's `reasoning`. What
llama-swap shows as thinking while it loads a model is left out: the model never thought it. What has another shape than
any of this is passed over: nothing that a server sends is an error of ours.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from review_agents.records import Answer, AnswerEnd, Message, Question, Role, ToolCall, Usage

LOADING = re.compile(r"\A\s*━+\nllama-swap loading model:.*?\n━+\n(?: \n)?", re.DOTALL)
MOST = 1 << 53  # more than anybody can count
ENDS = {"length": AnswerEnd.LENGTH, "tool_calls": AnswerEnd.CALLS, "function_call": AnswerEnd.CALLS}


def body_of(question: Question, *, model: str, temperature: float | None) -> dict[str, Any]:
    """The request. `max_tokens` always stands in it, tools only where there are some: an empty list is refused."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [message_out(message) for message in question.messages],
        "max_tokens": question.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "seed": question.seed,
    }
    if temperature is not None:
        body["temperature"] = temperature
    if question.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            }
            for tool in question.tools
        ]
    return body


def message_out(message: Message) -> dict[str, Any]:
    out: dict[str, Any] = {"role": str(message.role), "content": sendable(message.text)}
    if message.role is Role.TOOL:
        out |= {"tool_call_id": message.call_id, "name": message.name}
    if message.calls:
        out["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": sendable(call.arguments)}}
            for call in message.calls
        ]
    return out


def sendable(text: str) -> str:
    """Without half characters, which no server can read."""
    return text.encode("utf-8", "replace").decode("utf-8")


class Assembly:
    """An answer put together from the pieces of a stream."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.thought: list[str] = []
        self.finish = ""
        self.model = ""
        self.failed = ""  # an error in the middle of a stream
        self.chars = 0
        self.pieces = 0  # that had something in them
        self._calls: dict[int, dict[str, str]] = {}
        self._usage: Mapping[str, Any] = {}
        self._timings: Mapping[str, Any] = {}

    def take(self, piece: Mapping[str, Any]) -> None:
        """One event; also a whole answer, from servers that do not stream."""
        if error := piece.get("error"):
            self.failed = str(error.get("message", error) if isinstance(error, Mapping) else error)
            return
        self.model = str(piece.get("model") or self.model)
        if isinstance(piece.get("usage"), Mapping):
            self._usage = piece["usage"]
        if isinstance(piece.get("timings"), Mapping):
            self._timings = piece["timings"]
        for choice in objects(piece.get("choices")):
            self.finish = str(choice.get("finish_reason") or self.finish)
            self._delta(an_object(choice.get("delta") or choice.get("message")))

    def _delta(self, delta: Mapping[str, Any]) -> None:
        before = self.chars
        if content := words_of(delta.get("content")):
            self.text.append(content)
            self.chars += len(content)
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(thought, str):
            self.thought.append(thought)
            self.chars += len(thought)
        for at, piece in enumerate(objects(delta.get("tool_calls"))):
            told = piece.get("index")
            index = told if isinstance(told, int) else at
            call = self._calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
            call["id"] = str(piece.get("id") or call["id"])
            function = an_object(piece.get("function"))
            call["name"] = str(function.get("name") or call["name"])
            arguments = function.get("arguments")
            written = arguments if isinstance(arguments, str) else json.dumps(arguments) if arguments else ""
            call["arguments"] += written
            self.chars += len(written)
        self.pieces += self.chars > before

    @property
    def tail(self) -> str:
        """The end of what was written so far."""
        return "".join((self.text or self.thought)[-600:])

    def answer(self, *, seconds: float, waited_s: float = 0.0, looped: bool = False) -> Answer:
        calls = tuple(
            ToolCall(id=one["id"], name=one["name"], arguments=one["arguments"])
            for _, one in sorted(self._calls.items())
        )
        end = AnswerEnd.LOOP if looped else ENDS.get(self.finish, AnswerEnd.STOP)
        if calls and end is AnswerEnd.STOP:
            end = AnswerEnd.CALLS
        return Answer(
            text="".join(self.text),
            calls=calls,
            thought=LOADING.sub("", "".join(self.thought)),
            end=end,
            usage=self.usage(seconds, waited_s),
        )

    def usage(self, seconds: float, waited_s: float = 0.0) -> Usage:
        """`waited_s` is what we saw of the line before the node; our own node knows it exactly.

        Where the server counted nothing, because we hung up before it could, each piece is at least one token."""
        usage, timings = self._usage, self._timings
        prompt = number(usage.get("prompt_tokens"))
        cached = number(an_object(usage.get("prompt_tokens_details")).get("cached_tokens"))
        if timings:
            cached = cached or number(timings.get("cache_n"))
            prompt = prompt or cached + number(timings.get("prompt_n"))
            waited_s = seconds_of(timings, "queued_ms", waited_s)
        waited_s = min(waited_s, seconds)
        return Usage(
            prompt=prompt,
            cached=min(cached, prompt),
            completion=number(usage.get("completion_tokens")) or number(timings.get("predicted_n")) or self.pieces,
            seconds=seconds,
            waited_s=waited_s,
            prompt_s=seconds_of(timings, "prompt_ms"),
            completion_s=seconds_of(timings, "predicted_ms") or (0.0 if timings else seconds - waited_s),
            drafted=number(timings.get("draft_n")),
            accepted=number(timings.get("draft_n_accepted")),
        )


def an_object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def objects(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def words_of(content: Any) -> str:
    """The text, which some servers send in parts."""
    if isinstance(content, str):
        return content
    return "".join(text for part in objects(content) if isinstance(text := part.get("text"), str))


def number(value: Any) -> int:
    return int(value) if is_number(value) and 0 < value < MOST else 0


def seconds_of(timings: Mapping[str, Any], name: str, otherwise: float = 0.0) -> float:
    milliseconds = timings.get(name)
    return milliseconds / 1000 if is_number(milliseconds) and 0 <= milliseconds < MOST else otherwise


def is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
