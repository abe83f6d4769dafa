"""Remembers what was generated, so that an assistant message that comes back is the same tokens again.

Keyed by the conversation up to and with the message. Where the conversation before a message differs, its prefix is
lost in any case, and nothing is to be found. Held within a byte budget, the longest unused going first.
"""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference_node.engine.api import Template

THINK_END = "</think>"


@dataclass(frozen=True, slots=True)
class Returned:
    """An answer of this node."""

    tokens: tuple[int, ...]  # all that was kept, the end-of-turn token included if there was one
    lead: str  # text before the thought: an opening tag that the model wrote itself
    thinks: bool  # it begins with a thought, though that may be empty
    thought: str  # what was sent as reasoning_content
    after_thought: tuple[int, ...] | None  # the tokens from the text on; None where it begins inside a token
    ended_by: str | None  # text of the end-of-turn token


class Returning:
    """Answers by conversation. Safe to use from several threads."""

    def __init__(self, budget_bytes: int = 64 << 20) -> None:
        self._budget = budget_bytes
        self._bytes = 0
        self._answers: OrderedDict[bytes, Returned] = OrderedDict()
        self._lock = threading.Lock()

    @staticmethod
    def key(before: bytes, role: str, text: str, calls: Iterable[tuple[str, str | Mapping[str, Any]]]) -> bytes:
        """The key after one more message. White space at the edges and the spelling of arguments do not count; thoughts
        do not either, since many clients leave them out."""
        canonical = [role, text.strip(), [[name, _canonical(arguments)] for name, arguments in calls]]
        return hashlib.blake2b(before + json.dumps(canonical, sort_keys=True).encode(), digest_size=16).digest()

    def find(self, key: bytes) -> Returned | None:
        with self._lock:
            found = self._answers.get(key)
            if found is not None:
                self._answers.move_to_end(key)
            return found

    def remember(self, key: bytes, answer: Returned) -> None:
        with self._lock:
            old = self._answers.pop(key, None)
            self._bytes += _size(answer) - (_size(old) if old else 0)
            self._answers[key] = answer
            while self._bytes > self._budget:
                _, gone = self._answers.popitem(last=False)
                self._bytes -= _size(gone)


def returned(template: Template, kept: Sequence[int], *, thought: str, stopped_by: object) -> Returned:
    """What is worth remembering of an answer."""
    ended_by = None
    if kept and kept[-1] == stopped_by:
        ended_by = next((text for text in template.controls if template.id_of(text) == stopped_by), None)
    text_tokens = kept if ended_by is None else kept[:-1]
    text = template.decode(text_tokens)
    lead = text[: text.find(thought)] if thought and thought in text else ""
    thinks = bool(thought) or THINK_END in text
    return Returned(
        tokens=tuple(kept),
        lead=lead,
        thinks=thinks,
        thought=thought,
        after_thought=_after_thought(template, kept) if thinks else tuple(kept),
        ended_by=ended_by,
    )


def _after_thought(template: Template, kept: Sequence[int]) -> tuple[int, ...] | None:
    """The tokens after the thought and the white space behind it."""
    text = ""
    for at, token in enumerate(kept):
        text += template.bytes_of(token).decode("utf-8", "replace")
        if THINK_END in text:
            behind = text.partition(THINK_END)[2]
            rest = [*kept[at + 1 :]]
            while not behind.strip() and rest and not template.decode(rest[:1]).strip() and template.bytes_of(rest[0]):
                behind = template.decode([rest.pop(0)])
            begins_inside = bool(behind.strip()) or (rest and template.decode(rest[:1])[:1].isspace())
            return None if begins_inside else tuple(rest)
    return None


def _canonical(arguments: str | Mapping[str, Any]) -> Any:
    if not isinstance(arguments, str):
        return dict(arguments)
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments


def _size(answer: Returned) -> int:
    return 200 + 8 * len(answer.tokens) + len(answer.thought) + 8 * len(answer.after_thought or ())
