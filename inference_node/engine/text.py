"""From tokens to text that may be shown: no split characters, no part of a stop string.

A token is some bytes. A character is shown when its last byte is there; text that could still become a stop string is
held back until it cannot. Tokens are taken one at a time, so the text and the place of a stop do not depend on how many
tokens a cycle committed.
"""

import codecs
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop string was completed."""

    stop: str
    kept: int  # tokens whose text lies wholly before it, counted from the first token taken


class TextStream:
    """The text of one answer while it grows."""

    def __init__(self, bytes_of: Callable[[int], bytes], stops: Sequence[str] = ()) -> None:
        self._bytes_of = bytes_of
        self._stops = tuple(stops)
        self._longest = max((len(stop) for stop in self._stops), default=0)
        # Bytes that are no UTF-8 become U+FFFD, as every decoder of such models shows them.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # decoded, not given out; no stop string can begin before it
        self._given = 0  # characters given out
        self._count = 0  # tokens taken
        self._clean = 0  # tokens up to the last place before which every character is complete
        self._ends: deque[tuple[int, int]] = deque()  # (tokens, characters) at each clean place not given out yet
        self.stopped: Stop | None = None

    @property
    def holding(self) -> bool:
        """Whether text is held back that may turn out to be the start of a stop string: also half a character may."""
        return bool(self._stops) and (self._safe() < len(self._held) or bool(self._decoder.getstate()[0]))

    def feed(self, token: int) -> Stop | None:
        """Take one more token. After a stop nothing more may be fed."""
        if self.stopped is not None:
            raise ValueError("the text has ended")
        self._count += 1
        before = len(self._held)
        self._held += self._decoder.decode(self._bytes_of(token))
        if not self._decoder.getstate()[0]:  # no bytes of an incomplete character wait in the decoder
            self._clean = self._count
            self._ends.append((self._count, self._given + len(self._held)))
        return self._look(before)

    def take(self) -> str:
        """Text that nothing can take back any more."""
        safe = self._safe()
        text, self._held = self._held[:safe], self._held[safe:]
        self._given += len(text)
        while len(self._ends) > 1 and self._ends[1][1] <= self._given:
            self._ends.popleft()
        return text

    def finish(self) -> str:
        """The rest of the text, when no more tokens come. An incomplete character shows as U+FFFD."""
        if self.stopped is None:
            before = len(self._held)
            self._held += self._decoder.decode(b"", final=True)
            self._look(before)
        text, self._held = self._held, ""
        self._given += len(text)
        return text

    def complete_tokens(self) -> int:
        """How many leading tokens have all their text given out."""
        done = [tokens for tokens, characters in self._ends if characters <= self._given]
        return done[-1] if done else 0

    def _look(self, before: int) -> Stop | None:
        """Find the earliest stop string that the characters since `before` completed, and cut the text there."""
        begin = max(0, before - self._longest + 1)
        found = [(at, -len(stop), stop) for stop in self._stops if (at := self._held.find(stop, begin)) >= 0]
        if not found:
            return None
        at, _, stop = min(found)
        kept = [tokens for tokens, characters in self._ends if characters <= self._given + at]
        self._held = self._held[:at]
        self.stopped = Stop(stop, kept[-1] if kept else 0)
        return self.stopped

    def _safe(self) -> int:
        """Leading characters of the held text that cannot be part of a stop string."""
        if self.stopped is not None:
            return len(self._held)
        for begin in range(max(0, len(self._held) - self._longest + 1), len(self._held)):
            rest = self._held[begin:]
            if any(stop.startswith(rest) for stop in self._stops):
                return begin
        return len(self._held)
