"""Texts to train on: token ids, and which of them the target itself wrote. One JSON object a line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from inference_node.models.errors import NodeError

REPEATED = 16
"""Tokens: a text is cut where a run of so many comes for the second time, because there it has begun to loop."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A text. `supervised` are half-open ranges of places whose tokens are to be predicted, in order."""

    id: str
    tokens: tuple[int, ...]
    supervised: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        last = 0
        for first, end in self.supervised:
            if not last <= first < end <= len(self.tokens):
                raise ValueError(f'sample "{self.id}": range {first}-{end} of {len(self.tokens)} tokens, after {last}')
            last = end

    @property
    def targets(self) -> list[int]:
        """Places whose tokens are supervised."""
        return [place for first, end in self.supervised for place in range(first, end)]

    @property
    def answer(self) -> tuple[int, int]:
        """The first supervised range: what came behind the prompt. Raises NodeError where there is no such thing."""
        if not self.supervised or self.supervised[0][0] == 0:
            missing = "prompt before its first supervised token" if self.supervised else "supervised token"
            raise NodeError(f'Sample "{self.id}" has no {missing}, so no answer can be judged on it. Take it out.')
        return self.supervised[0]

    @property
    def prompt(self) -> tuple[int, ...]:
        """Raises NodeError as `answer` does."""
        return self.tokens[: self.answer[0]]


def check_answers(samples: Iterable[Sample]) -> None:
    """That each is a prompt with an answer, before anything is computed on them. Raises NodeError."""
    for sample in samples:
        _ = sample.answer


def read(path: Path) -> list[Sample]:
    """Raises NodeError naming the line."""
    return list(_lines(path))


def write(path: Path, samples: Iterable[Sample], *, append: bool = False) -> None:
    with path.open("a" if append else "w", encoding="utf-8") as file:
        for sample in samples:
            body = {"id": sample.id, "tokens": sample.tokens, "supervised": sample.supervised}
            file.write(json.dumps(body, separators=(",", ":")) + "\n")


def digest(samples: Iterable[Sample]) -> str:
    """Of texts, their order and what of them is supervised."""
    found = hashlib.sha256()
    for sample in samples:
        found.update(repr((sample.id, sample.tokens, sample.supervised)).encode())
    return found.hexdigest()


def without_loop(tokens: Sequence[int], first: int) -> Sequence[int]:
    """Up to where the part from `first` on begins to say again what it has said: whole when it never does."""
    seen: set[tuple[int, ...]] = set()
    for end in range(first + REPEATED, len(tokens) + 1):
        run = tuple(tokens[end - REPEATED : end])
        if run in seen:
            return tokens[: end - REPEATED]
        seen.add(run)
    return tokens


def _lines(path: Path) -> Iterator[Sample]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise NodeError(f"{path}: {error.strerror}. Make it with `lamplighter-node train collect`.") from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            body = json.loads(line)
            yield Sample(
                str(body["id"]),
                tuple(int(token) for token in body["tokens"]),
                tuple((int(first), int(end)) for first, end in body["supervised"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise NodeError(
                f"{path} line {number}: {error!r}. Expected an object with id, tokens and supervised, as "
                "`lamplighter-node train collect` writes it."
            ) from None
