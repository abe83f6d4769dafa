"""Noticing that a model goes round in circles: the same call with the same result, cycles, errors, nothing new.

The same call with another result is no loop (an edit, then the tests again). Errors of form and made-up tools count
whatever their arguments, because a stuck model varies those.
"""

import re
from collections import deque
from hashlib import sha256

NUDGE, STOP = 3, 5
WINDOW = 30
PERIODS = range(2, 7)
WITHOUT_NEWS = 12  # calls that show nothing new
GRAM, TAIL = 8, 200  # words
OURS = re.compile(r"output:\d+|, \d+\.\d\d s\.")  # what we say about a call, new each time
TIMES = re.compile(r"\d+\.\d+")  # durations, mostly; the same call with another one is the same call


class Watch:
    """`saw` after each call, `failed` after each answer that could not be carried out."""

    def __init__(self) -> None:
        self._recent: deque[str] = deque(maxlen=WINDOW)
        self._known: set[str] = set()
        self._stale = 0
        self._failures = 0

    def saw(self, name: str, arguments: str, result: str) -> tuple[str, int, int]:
        """("", "nudge" or "stop"; how often; the period of the cycle, 1 for the same call again; 0 for no news)."""
        self._failures = 0
        result = OURS.sub("", result)
        key = digest(name, arguments, TIMES.sub("N", result))
        self._recent.append(key)
        times, period = self._repeats(key)
        news = digest(result)
        self._stale = 0 if news not in self._known else self._stale + 1
        self._known.add(news)
        if times >= STOP:
            return "stop", times, period
        if times >= NUDGE:
            return "nudge", times, period
        if self._stale and self._stale % WITHOUT_NEWS == 0:
            return ("stop" if self._stale >= 2 * WITHOUT_NEWS else "nudge"), self._stale, 0
        return "", times, period

    def failed(self) -> str:
        """ "stop" at the fifth failure in a row."""
        self._failures += 1
        return "stop" if self._failures >= STOP else ""

    def _repeats(self, key: str) -> tuple[int, int]:
        recent = list(self._recent)
        best = (recent.count(key), 1)
        for period in PERIODS:
            last = recent[-period:]
            if len(set(last)) < 2:
                continue
            rounds = 0
            while recent[len(recent) - (rounds + 1) * period : len(recent) - rounds * period] == last:
                rounds += 1
            if rounds >= NUDGE and rounds >= best[0]:
                best = (rounds, period)
        return best


def digest(*parts: str) -> str:
    return sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()


def repeats_itself(text: str) -> bool:
    """Whether the end of a text says the same few words over and over: no more sense will come."""
    words = text.split()
    if len(words) < TAIL:
        # One endless word is a loop as well.
        tail = text[-4000:]
        return len(tail) == 4000 and len(set(tail)) <= 4
    tail_words = words[-TAIL:]
    grams = {tuple(tail_words[at : at + GRAM]) for at in range(TAIL - GRAM + 1)}
    return len(grams) <= (TAIL - GRAM + 1) // 6
