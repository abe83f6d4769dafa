"""A target without a model: it says what a script says, keeps the seam's rules, and fails on demand.

For tests of the engine and the server. It refuses wrong call orders as the real ones do, reads one cycle behind as they
do, honours budgets, stop ids and constraints, and its `before` hook may raise, sleep or block at any call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from inference_node.speculate.seam import (
    CHUNK,
    Constraint,
    ContextFull,
    Cut,
    CycleResult,
    MisuseOfTarget,
    Prefilled,
    Sampling,
    TargetFacts,
    Timings,
    TokenLogprobs,
)

Script = Callable[[tuple[int, ...]], Sequence[int]]
"""Given all committed tokens at begin, what the model would say next, at least as long as any budget used."""


def scripted_facts(**changes: object) -> TargetFacts:
    """Plain facts for tests, with some changed."""
    facts: dict[str, object] = {
        "name": "scripted",
        "family": "scripted",
        "engine": "scripted",
        "device": "cpu",
        "weights": "float32",
        "vocab": 512,
        "known_ids": 512,
        "context": 4096,
        "block": 8,
        "stop_ids": (),
        "drafter": "scripted",
        "rollback": "none",
    }
    return TargetFacts(**{**facts, **changes})  # type: ignore[arg-type]


@dataclass
class ScriptedCheckpoint:
    """Tokens are the whole state of a scripted target."""

    tokens: tuple[int, ...]
    from_prefill: bool
    own_bytes: int = 1024
    page_tokens: int = 256
    page_bytes: int = 4096
    released: bool = False

    @property
    def position(self) -> int:
        return len(self.tokens)

    @property
    def shared_bytes(self) -> Mapping[int, int]:
        """A page's id is a hash of all tokens up to its end, so equal prefixes share pages."""
        ends = range(self.page_tokens, len(self.tokens) + self.page_tokens, self.page_tokens)
        return {hash(self.tokens[:end]): self.page_bytes for end in ends}

    def release(self) -> None:
        self.released = True


@dataclass
class ScriptedTarget:
    """Commits the script in steps of `accepts` + 1 tokens (repeated in turn), at most block tokens a cycle."""

    script: Script
    facts: TargetFacts = field(default_factory=scripted_facts)
    accepts: Sequence[int] = (2,)
    cycle_s: float = 0.0  # how long a cycle takes
    prefill_s_per_token: float = 0.0
    before: Callable[[str, int], None] | None = None  # (call, how many times it was called before); may raise
    calls: list[str] = field(default_factory=list)  # every call's name, in order

    def __post_init__(self) -> None:
        self._tokens: list[int] = []  # rows held
        self._from_prefill = True
        self._floor = 0
        self._generating: _Generating | None = None
        self._closed = False

    @property
    def position(self) -> int:
        return len(self._tokens)

    def reset(self) -> None:
        self._enter("reset")
        self._tokens, self._from_prefill, self._floor, self._generating = [], True, 0, None

    def prefill(self, tokens: Sequence[int], *, chunked: bool = True, tap_layers: Sequence[int] = ()) -> Prefilled:
        self._enter("prefill")
        self._check_ids(tokens)
        if self.position + len(tokens) > self.facts.context:
            raise ContextFull(asked=self.position + len(tokens), context=self.facts.context)
        if chunked and self._from_prefill and self.position % CHUNK:
            self._from_prefill = False  # a tile that starts inside a chunk rounds otherwise
        self._from_prefill = self._from_prefill and chunked
        started = time.perf_counter()
        if self.prefill_s_per_token:
            time.sleep(self.prefill_s_per_token * len(tokens))
        self._tokens.extend(tokens)
        self._generating, self._floor = None, self.position
        taps = torch.zeros(len(tokens), len(tap_layers), 1) if tap_layers else None
        return Prefilled(rows=len(tokens), seconds=time.perf_counter() - started, taps=taps)

    def begin(
        self,
        committed: Sequence[int],
        sampling: Sampling,
        *,
        budget: int,
        stop_ids: Sequence[int] = (),
        constraint: Constraint | None = None,
        prompt_tokens: int | None = None,
        logprobs: int | None = None,
        draft: bool = True,
    ) -> None:
        self._enter("begin")
        self._check_ids(committed)
        if len(committed) != self.position + 1:
            raise MisuseOfTarget(f"begin with {len(committed)} tokens at position {self.position}")
        if self.position + budget > self.facts.context:
            raise ContextFull(asked=self.position + budget, context=self.facts.context)
        if list(committed[:-1]) != self._tokens:
            raise MisuseOfTarget("begin with tokens that are not the rows held")
        self._generating = _Generating(
            anchor=committed[-1],
            words=list(self.script(tuple(committed))),
            left=budget,
            stop_ids=frozenset(stop_ids),
            constraint=constraint,
            logprobs=logprobs,
            draft=draft,
        )
        self._floor = self.position

    def cycle(self) -> _Read:
        self._enter("cycle")
        turn = self._generating
        if turn is None:
            raise MisuseOfTarget("cycle without begin")
        if self.cycle_s:
            time.sleep(self.cycle_s)
        start = self.position
        if turn.left == 0:
            return _Read(self, CycleResult(start=start, tokens=(), offered=0, accepted=0, cut=Cut.IDLE))
        widest = min(self.facts.block, turn.left) if turn.draft else 1
        wanted = min(self.accepts[turn.cycles % len(self.accepts)], self.facts.block - 1) if turn.draft else 0
        tokens: list[int] = []
        cut = Cut.BUDGET if turn.draft and widest < self.facts.block else Cut.NONE
        while len(tokens) < min(wanted + 1, widest):
            tokens.append(turn.next_token())
            if tokens[-1] in turn.stop_ids:
                cut = Cut.STOP
                break
        turn.left = 0 if cut is Cut.STOP else turn.left - len(tokens)
        turn.cycles += 1
        self._floor = turn.last_start if turn.last_start is not None else start
        turn.last_start = start
        self._tokens += [turn.anchor, *tokens[:-1]]
        self._from_prefill = False
        turn.anchor = tokens[-1]
        listed = () if turn.logprobs is None else tuple(TokenLogprobs(token, -0.5, ()) for token in tokens)
        result = CycleResult(
            start=start,
            tokens=tuple(tokens),
            offered=widest - 1,
            accepted=len(tokens) - 1,
            cut=cut,
            timings=Timings(total_s=self.cycle_s),
            logprobs=listed,
        )
        return _Read(self, result)

    def truncate(self, position: int) -> None:
        self._enter("truncate")
        if not self._floor <= position <= self.position:
            raise MisuseOfTarget(f"truncate to {position}; held are {self._floor} to {self.position}")
        del self._tokens[position:]
        self._generating = None

    def checkpoint(self) -> ScriptedCheckpoint:
        self._enter("checkpoint")
        return ScriptedCheckpoint(tuple(self._tokens), self._from_prefill)

    def restore(self, checkpoint: ScriptedCheckpoint) -> None:  # type: ignore[override]
        self._enter("restore")
        if checkpoint.released:
            raise MisuseOfTarget("restore of a released checkpoint")
        self._tokens = list(checkpoint.tokens)
        self._from_prefill, self._floor, self._generating = checkpoint.from_prefill, self.position, None

    def close(self) -> None:
        self._enter("close")
        self._closed = True

    def _enter(self, call: str) -> None:
        if self._closed:
            raise MisuseOfTarget(f"{call} after close")
        count = self.calls.count(call)
        self.calls.append(call)
        if self.before is not None:
            self.before(call, count)

    def _check_ids(self, tokens: Sequence[int]) -> None:
        wrong = [token for token in tokens if not 0 <= token < self.facts.vocab]
        if wrong:
            raise MisuseOfTarget(f"token id {wrong[0]} with a vocabulary of {self.facts.vocab}")


@dataclass
class _Generating:
    anchor: int
    words: list[int]
    left: int
    stop_ids: frozenset[int]
    constraint: Constraint | None
    logprobs: int | None
    draft: bool
    cycles: int = 0
    said: int = 0
    last_start: int | None = None

    def next_token(self) -> int:
        token = self.words[self.said]
        self.said += 1
        if self.constraint is not None:
            token = _allowed(token, self.constraint.masks(())[0])
            self.constraint.advance((token,))
        return token


@dataclass
class _Read:
    target: ScriptedTarget
    result: CycleResult

    def read(self) -> CycleResult:
        self.target._enter("read")
        return self.result


def _allowed(token: int, mask: torch.Tensor) -> int:
    """The token if the mask has it, else the lowest id that it has."""
    words = [int(word) & 0xFFFFFFFF for word in mask.tolist()]
    if words[token // 32] >> (token % 32) & 1:
        return token
    return next(32 * w + bit for w, word in enumerate(words) for bit in range(32) if word >> bit & 1)
