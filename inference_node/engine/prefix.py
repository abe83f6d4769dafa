"""The prefix store: states of past sequences, found by their tokens.

Attention could be cut anywhere, but a recurrent state exists only where somebody kept it. So the store is a tree over
token sequences with checkpoints at some places: before message boundaries (made by prefill, at multiples of CHUNK) and
at the ends of turns (made by decoding). A request continues from the deepest checkpoint on its own path.

The tree also remembers token sequences that have no checkpoint any more. That costs four bytes a token and lets every
request be told how much of its prompt was known and why not all of that was restored: never a silent full re-prefill.

Checkpoints are kept within a byte budget. The one to go is the one that is worth least: the rows that its loss would
cost, times how likely they are wanted again, by the bytes that it frees. The end of a path is likely to be wanted soon
after its use (the next turn); a place inside it now and then (a new conversation under the same system prompt, an
edited or regenerated message, a template that drops earlier thinking).

One thread owns a store.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from inference_node.speculate.seam import CHUNK, Checkpoint

INSIDE = 0.1
"""How likely a checkpoint inside a path is wanted, against one at the end of a path."""


class Why(StrEnum):
    """How well the store served a prompt, and what stood in the way."""

    WHOLE = "whole"  # restored up to what was known, or to within CHUNK of it
    BETWEEN = "between"  # the prompt parts from what was stored between two checkpoints; the earlier one served
    OFF = "off"  # the store has no budget
    EMPTY = "empty"  # nothing was stored yet
    DIFFERENT = "different"  # the prompt parts from everything stored before the first checkpoint can be
    SHORT = "short"  # the whole prompt is known, but it is too short for a checkpoint inside it
    EVICTED = "evicted"  # a checkpoint that would have served was given up for the byte budget
    NEVER_KEPT = "never_kept"  # the known part has no checkpoint: no message begins in it, or its request ended early
    TOO_BIG = "too_big"  # a checkpoint that would have served was larger than the whole budget
    MEMORY = "memory"  # a checkpoint that would have served was given up because the device was out of memory


@dataclass(frozen=True, slots=True)
class Found:
    """What the store can do for a prompt."""

    checkpoint: Checkpoint | None
    known: int  # leading tokens of the prompt that are in the tree
    why: Why
    parted_at: int | None = None
    stored: int | None = None
    found: int | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """What the store holds and has done."""

    budget_bytes: int = 0
    held_bytes: int = 0
    checkpoints: int = 0
    tokens: int = 0
    evicted: Mapping[Why, int] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class _Place:
    """An edge of the tree and the place at its end."""

    tokens: "array[int]"  # of the edge
    end: int  # tokens from the root to the end of this edge
    parent: "_Place | None"
    children: dict[int, "_Place"] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    lost: Why | None = None  # why it has no checkpoint any more
    used: int = 0  # the store's clock when a request last went through here
    below: int = 0  # checkpoints further down

    def up(self) -> Iterator["_Place"]:
        place: _Place | None = self
        while place is not None:
            yield place
            place = place.parent

    def down(self) -> Iterator["_Place"]:
        waiting = [self]
        while waiting:
            place = waiting.pop()
            yield place
            waiting.extend(place.children.values())


class PrefixStore:
    """Checkpoints by token sequence, within a budget."""

    def __init__(self, budget_bytes: int, *, token_limit: int = 4_000_000) -> None:
        self._budget = budget_bytes
        self._token_limit = token_limit
        self._root = _Place(array("i"), 0, None)
        self._pages: Counter[int] = Counter()  # page id -> checkpoints that hold it
        self._held = 0
        self._tokens = 0
        self._clock = 0
        self._holding: set[_Place] = set()  # places with a checkpoint
        self._evicted: Counter[Why] = Counter()

    @property
    def on(self) -> bool:
        return self._budget > 0

    def find(self, prompt: Sequence[int]) -> Found:
        """The deepest checkpoint that leaves at least the last prompt token to be run, and why it is not deeper."""
        self._clock += 1
        if not self.on:
            return Found(None, 0, Why.OFF)
        if not self._root.children:
            return Found(None, 0, Why.EMPTY)
        place, inside = self._walk(prompt)
        known = (place.parent.end if place.parent else 0) + inside
        reach = min(known, len(prompt) - 1)
        best = self._best(place, reach)
        for passed in place.up():
            if passed.end <= known:
                passed.used = self._clock
        why = self._why(place, known, reach, best)
        if known == len(prompt) or (inside == len(place.tokens) and not place.children):
            return Found(best, known, why)  # one is the start of the other: they do not part
        return Found(best, known, why, known, _next_token(place, inside), prompt[known])

    def has(self, tokens: Sequence[int]) -> bool:
        """Whether there is a checkpoint after exactly these tokens."""
        place, inside = self._walk(tokens)
        return place.end == len(tokens) and inside == len(place.tokens) and place.checkpoint is not None

    def remember(self, tokens: Sequence[int]) -> None:
        """Know this sequence, without a checkpoint."""
        if self.on:
            self._insert(tokens)
            self._forget_tokens()

    def keep(self, tokens: Sequence[int], checkpoint: Checkpoint) -> bool:
        """Keep the state after these tokens, at the cost of others. False: it was released, being larger than all."""
        if checkpoint.position != len(tokens):
            raise ValueError(f"a checkpoint at {checkpoint.position} was given {len(tokens)} tokens")
        if not self.on or not tokens:
            checkpoint.release()
            return False
        place = self._insert(tokens)
        if place.checkpoint is not None:
            checkpoint.release()
            return True
        if checkpoint.own_bytes + sum(checkpoint.shared_bytes.values()) > self._budget:
            checkpoint.release()
            place.lost = Why.TOO_BIG
            self._evicted[Why.TOO_BIG] += 1
            return False
        self._take_in(place, checkpoint)
        while self.held_bytes > self._budget:
            self._drop(self._least_worth(spared=place), Why.EVICTED)
        self._forget_tokens()
        return True

    def drop_all(self, why: Why = Why.MEMORY) -> int:
        """Release every checkpoint, for a device that is out of memory. Returns how many."""
        places = list(self._holding)
        for place in places:
            self._drop(place, why)
        return len(places)

    @property
    def held_bytes(self) -> int:
        return self._held

    def kept(self) -> Kept:
        return Kept(self._budget, self.held_bytes, len(self._holding), self._tokens, dict(self._evicted))

    def _walk(self, tokens: Sequence[int]) -> tuple[_Place, int]:
        """The last edge that shares tokens with the sequence, and how many of the edge's tokens it shares."""
        place, at = self._root, 0
        while at < len(tokens) and (child := place.children.get(tokens[at])) is not None:
            same = _common(child.tokens, tokens, at)
            place, at = child, at + same
            if same < len(child.tokens):
                return place, same
        return place, len(place.tokens)

    def _best(self, place: _Place, reach: int) -> Checkpoint | None:
        for candidate in place.up():
            if candidate.end <= reach and candidate.checkpoint is not None:
                return candidate.checkpoint
        return None

    def _why(self, place: _Place, known: int, reach: int, best: Checkpoint | None) -> Why:
        """reach: tokens that could have been restored, had there been a checkpoint after them."""
        restored = best.position if best is not None else 0
        if best is not None and reach - restored < CHUNK:
            return Why.WHOLE
        if known < CHUNK:
            return Why.SHORT if known > reach else Why.DIFFERENT
        return self._loss(place, reach, restored) or (Why.NEVER_KEPT if best is None else Why.BETWEEN)

    def _loss(self, place: _Place, reach: int, restored: int) -> Why | None:
        """Why a deeper checkpoint on this path is gone, if there was one."""
        for candidate in place.up():
            if restored < candidate.end <= reach and candidate.lost is not None:
                return candidate.lost
        return None

    def _insert(self, tokens: Sequence[int]) -> _Place:
        """The place after exactly these tokens, made where it does not exist."""
        place, inside = self._walk(tokens)
        if inside < len(place.tokens):
            place = self._split(place, inside)
        if place.end < len(tokens):
            edge = array("i", tokens[place.end :])
            child = _Place(edge, len(tokens), place)
            place.children[edge[0]] = child
            self._tokens += len(edge)
            place = child
        for passed in place.up():
            passed.used = self._clock
        return place

    def _split(self, place: _Place, inside: int) -> _Place:
        """Cut an edge in two; the upper half is returned, the lower keeps what the place had."""
        assert place.parent is not None, "the root has no edge"
        upper = _Place(place.tokens[:inside], place.parent.end + inside, place.parent, used=place.used)
        place.parent.children[upper.tokens[0]] = upper
        place.tokens, place.parent = place.tokens[inside:], upper
        upper.children[place.tokens[0]] = place
        upper.below = place.below + (place.checkpoint is not None)
        return upper

    def _take_in(self, place: _Place, checkpoint: Checkpoint) -> None:
        place.checkpoint, place.lost = checkpoint, None
        self._holding.add(place)
        self._count_below(place, 1)
        self._held += checkpoint.own_bytes
        for page, size in checkpoint.shared_bytes.items():
            self._held += 0 if page in self._pages else size
            self._pages[page] += 1

    def _drop(self, place: _Place, why: Why) -> None:
        checkpoint = place.checkpoint
        assert checkpoint is not None, "only places with a checkpoint are dropped"
        place.checkpoint, place.lost = None, why
        self._holding.remove(place)
        self._count_below(place, -1)
        self._evicted[why] += 1
        self._held -= checkpoint.own_bytes
        for page, size in checkpoint.shared_bytes.items():
            self._pages[page] -= 1
            if not self._pages[page]:
                del self._pages[page]
                self._held -= size
        checkpoint.release()

    def _count_below(self, place: _Place, change: int) -> None:
        for above in place.up():
            if above is not place:
                above.below += change

    def _least_worth(self, spared: _Place) -> _Place:
        return min((place for place in self._holding if place is not spared), key=lambda p: (self._worth(p), p.end))

    def _worth(self, place: _Place) -> float:
        """Rows that are saved, times how likely, by the bytes that keeping it costs."""
        assert place.checkpoint is not None
        above = next((up.end for up in place.up() if up is not place and up.checkpoint is not None), 0)
        likely = (INSIDE if place.below else 1.0) / (1 + self._clock - place.used)
        return (place.end - above) * likely / max(1, self._freed(place.checkpoint))

    def _freed(self, checkpoint: Checkpoint) -> int:
        return checkpoint.own_bytes + sum(
            size for page, size in checkpoint.shared_bytes.items() if self._pages[page] == 1
        )

    def _forget_tokens(self) -> None:
        """Forget the longest unused sequences that have no checkpoint, when too many tokens are remembered."""
        while self._tokens > self._token_limit:
            bare = [place for place in self._root.down() if not place.children and place.checkpoint is None]
            bare = [place for place in bare if place.parent is not None]
            if not bare:
                return
            oldest = min(bare, key=lambda place: place.used)
            assert oldest.parent is not None
            del oldest.parent.children[oldest.tokens[0]]
            self._tokens -= len(oldest.tokens)


def _common(edge: "array[int]", tokens: Sequence[int], at: int) -> int:
    """How many tokens of the edge equal tokens[at:]. Compares in growing pieces, since most edges match whole."""
    longest = min(len(edge), len(tokens) - at)
    same = 0
    step = 64
    while same < longest:
        end = min(same + step, longest)
        if list(edge[same:end]) != list(tokens[at + same : at + end]):
            return next(i for i in range(same, end) if edge[i] != tokens[at + i])
        same, step = end, step * 4
    return same


def _next_token(place: _Place, inside: int) -> int | None:
    """What the store has after the shared part: the edge's next token, or the most recently used child's first."""
    if inside < len(place.tokens):
        return place.tokens[inside]
    newest = max(place.children.values(), key=lambda child: child.used, default=None)
    return newest.tokens[0] if newest is not None else None
