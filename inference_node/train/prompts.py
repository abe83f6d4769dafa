"""Prompts to answer: JSON lines of conversations or plain text, as token ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_node.models.errors import NodeError

SHAPES = '{"messages": [...]}, {"prompt": "..."} or {"text": "..."}, with an "id" where you like'


@dataclass(frozen=True, slots=True)
class Prompt:
    """`text` is continued as it stands; `messages` go through the model's chat template."""

    id: str
    messages: tuple[dict[str, Any], ...] = ()
    text: str = ""

    def tokens(self, tokenizer: Any) -> list[int]:
        """With the opening of the answer at its end."""
        if not self.messages:
            return list(tokenizer(self.text)["input_ids"])
        if not tokenizer.chat_template:
            raise NodeError("The model has no chat template, so it can only continue prompts that have a text.")
        encoded = tokenizer.apply_chat_template(
            [dict(message) for message in self.messages], add_generation_prompt=True, return_dict=True
        )
        return list(encoded["input_ids"])


def read(path: Path) -> list[Prompt]:
    """Raises NodeError naming the line. An answer at a conversation's end is left out: the target gives its own."""
    return list(_lines(path))


def _lines(path: Path) -> Iterator[Prompt]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NodeError(f"{path}: {error}. Expected JSON lines: {SHAPES}.") from None
    seen: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        prompt = _prompt(line, number, path)
        if prompt.id in seen:
            raise NodeError(f'{path} line {number}: the id "{prompt.id}" was there before; ids tell what is done.')
        seen.add(prompt.id)
        yield prompt


def _prompt(line: str, number: int, path: Path) -> Prompt:
    try:
        body = json.loads(line)
        name = str(body.get("id", number))
        if "messages" in body:
            messages = [{"role": str(one["role"]), "content": str(one["content"])} for one in body["messages"]]
            while messages and messages[-1]["role"] == "assistant":
                messages.pop()
            if not messages:
                raise ValueError("no message to answer")
            return Prompt(name, tuple(messages))
        if "prompt" in body:
            return Prompt(name, ({"role": "user", "content": str(body["prompt"])},))
        return Prompt(name, text=str(body["text"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NodeError(f"{path} line {number}: {error!r}. Expected {SHAPES}.") from None
