"""The seam's Target over the fast cycle: what the host knows, one cycle late, and how it takes things back.

The device keeps the truth about the live sequence in `control`; this keeps what was read of it. Whatever needs the
position (a checkpoint, a truncation, a prefill) first reads the cycles that are still unread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

import torch

from inference_node.fast.cycle import CYCLES, Launched, Runner
from inference_node.fast.filters import Filters
from inference_node.fast.recurrent import Kept
from inference_node.models.errors import NodeError
from inference_node.speculate import checks
from inference_node.speculate.checks import guarded
from inference_node.speculate.propose import Drafter
from inference_node.speculate.seam import (
    CHUNK,
    Checkpoint,
    Constraint,
    Cut,
    CycleResult,
    MisuseOfTarget,
    Prefilled,
    Sampling,
    TargetFacts,
)

P = ParamSpec("P")
R = TypeVar("R")

REACH = 2
"""Cycles that can be taken back."""


@dataclass
class FastCheckpoint:
    """Pages of target and drafter, and what else they keep, at one position."""

    owner: FastTarget
    tokens: tuple[int, ...]  # one per row held
    pages: tuple[int, ...]
    state: Kept
    from_prefill: bool
    released: bool = False

    @property
    def position(self) -> int:
        return len(self.tokens)

    @property
    def own_bytes(self) -> int:
        return self.state.bytes + 8 * len(self.tokens)

    @property
    def shared_bytes(self) -> Mapping[int, int]:
        return dict.fromkeys(self.pages, self.owner.bytes_per_page)

    def release(self) -> None:
        if not self.released:
            self.released = True
            if not self.owner.closed:
                self.owner.runner.table.pages.drop(self.pages)


@dataclass
class Turn:
    """A generation under way."""

    anchor: int
    left: int  # as far as was read
    constraint: Constraint | None
    logprobs: int | None
    draft: bool
    filtered: bool


@dataclass
class Handle:
    """A cycle that was launched. Reading it reads those before it first, because the host learns in order."""

    target: FastTarget
    launched: Launched | None
    result: CycleResult | None = None
    error: BaseException | None = None

    def read(self) -> CycleResult:
        if self.result is None and self.error is None:
            self.target.catch_up(self)
        if self.error is not None:
            raise self.error
        assert self.result is not None, "read by catch_up"
        return self.result


@dataclass(frozen=True, slots=True)
class Block:
    """Rows that a cycle added, for going back."""

    start: int
    rows: int
    from_prefill: bool  # of the rows before it


@dataclass
class FastTarget:
    """See seam.Target. `host_drafter` proposes on the host in place of the device's drafter: for n-grams and checks."""

    runner: Runner
    facts: TargetFacts
    host_drafter: Drafter | None = None
    closed: bool = False
    rows: list[int] = field(default_factory=list)  # tokens whose rows are in, as far as was read
    from_prefill: bool = True
    turn: Turn | None = None
    unread: deque[Handle] = field(default_factory=deque)
    blocks: list[Block] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.drop()

    @property
    def bytes_per_page(self) -> int:
        return self.runner.table.pages.bytes_each

    @property
    def position(self) -> int:
        self.catch_up()
        return len(self.rows)

    @property
    def floor(self) -> int:
        """The earliest position that truncate can reach."""
        return self.blocks[0].start if self.blocks else len(self.rows)

    @guarded
    def reset(self) -> None:
        self.drop()

    @guarded
    def prefill(self, tokens: Sequence[int], *, chunked: bool = True, tap_layers: Sequence[int] = ()) -> Prefilled:
        began = time.perf_counter()
        checks.rows(self.facts, self.position, tokens)
        self._end_turn()
        self._open(self.position + len(tokens) + self.facts.block)
        self.runner.settle()
        asked: list[torch.Tensor] = []
        done = 0
        while done < len(tokens):
            start = len(self.rows)
            aligned = chunked and start % CHUNK == 0
            most = self.runner.segment if aligned else min(self.facts.block, CHUNK - start % CHUNK)
            part = list(tokens[done : done + most])
            if aligned:
                taps = self.runner.prefill(part, start, tap_layers)
            else:  # up to the next multiple of CHUNK the rows go the way of decoding, which has no tiles to keep
                taps = self.runner.append(part, start, tap_layers)
            asked.append(taps)
            self.rows += part
            self.from_prefill = self.from_prefill and aligned
            done += len(part)
        if self.host_drafter is not None:
            self.host_drafter.reset()
        self.runner.synchronize()
        return Prefilled(len(tokens), time.perf_counter() - began, torch.cat(asked) if tap_layers and asked else None)

    @guarded
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
        self.catch_up()
        checks.begin(self.facts, self.rows, committed, budget)
        split = len(committed) if prompt_tokens is None else prompt_tokens
        filtered = Filters.needed(sampling) or constraint is not None or logprobs is not None
        self._end_turn()
        drafts = self.host_drafter is not None or self.runner.drafter is not None
        self.turn = Turn(committed[-1], budget, constraint, logprobs, draft, filtered)
        if self.host_drafter is not None:
            self.host_drafter.reset()
        self.runner.begin(
            start=len(self.rows), anchor=committed[-1], budget=budget, stop_ids=stop_ids, sampling=sampling,
            prompt=committed[:split], output=committed[split:], filtered=filtered, constrained=constraint is not None,
            width=self.facts.block if draft and drafts else 1,
            host=self.host_drafter is not None,
        )  # fmt: skip

    @guarded
    def cycle(self) -> Handle:
        checks.begun(self.turn)
        assert self.turn is not None
        try:
            handle = Handle(self, self._launch(self.turn))
        except Exception as error:  # the caller meets it when it reads, as with a device that runs ahead
            self.turn = None
            return Handle(self, None, error=checks.as_raised(self, error))
        self.unread.append(handle)
        return handle

    @guarded
    def truncate(self, position: int) -> None:
        self.catch_up()
        checks.reach(position, self.floor, len(self.rows))
        ago = 0
        fold = 0
        for back, block in enumerate(reversed(self.blocks)):
            if block.start <= position:
                ago, fold = back, position - block.start
                if position == block.start and block.rows:
                    self.from_prefill = block.from_prefill
                break
        if position < len(self.rows):
            self.runner.go_back(ago, start=position, fold=fold)
        del self.rows[position:]
        self._end_turn()
        self.runner.table.truncate(position)
        if self.host_drafter is not None:
            self.host_drafter.truncate(position)

    @guarded
    def checkpoint(self) -> FastCheckpoint:
        self.catch_up()
        self._settle()
        return FastCheckpoint(
            self,
            tuple(self.rows),
            self.runner.table.share(len(self.rows)),
            self.runner.keep(len(self.rows)),
            self.from_prefill,
        )

    @guarded
    def restore(self, checkpoint: Checkpoint) -> None:
        if not isinstance(checkpoint, FastCheckpoint) or checkpoint.owner is not self or checkpoint.released:
            raise MisuseOfTarget("restore of a checkpoint that is released, or another target's")
        self._forget_unread()
        self._end_turn()
        self.runner.table.adopt(checkpoint.pages)
        self.runner.resume(checkpoint.state, checkpoint.position)
        self.rows, self.from_prefill = list(checkpoint.tokens), checkpoint.from_prefill
        if self.host_drafter is not None:
            self.host_drafter.reset()

    def close(self) -> None:
        if not self.closed:
            self.runner.synchronize()
            self.closed = True
            self.turn = None
            self.unread.clear()
            del self.runner

    @torch.inference_mode()
    def drop(self) -> None:
        """Forget the sequence; checkpoints stay."""
        self._forget_unread()
        self._end_turn()
        self.runner.table.truncate(0)
        self.runner.reset()
        self.rows, self.from_prefill = [], True
        if self.host_drafter is not None:
            self.host_drafter.reset()

    @guarded
    def poison(self, value: float) -> None:
        """Fill every cache row that nothing may read. For tests and `doctor`: it must change no bit."""
        self.runner.table.poison(self.position, value)
        self.runner.poison(value, len(self.rows))

    def catch_up(self, until: Handle | None = None) -> None:
        """Read launched cycles in order: all of them, or up to this one."""
        while self.unread:
            handle = self.unread[0]
            assert handle.launched is not None
            try:
                handle.result = self._judged(handle.launched.result())
                self.unread.popleft()
                self._learn(handle.result)
            except Exception as error:
                handle.result, handle.error = None, error
                self._forget_unread(error)
                self.turn = None
            if handle is until:
                return

    def _judged(self, result: CycleResult) -> CycleResult:
        """With the seam's meaning of a cut: a cycle is cut when the budget left less room than a block."""
        turn = self.turn
        if turn is None or result.cut not in (Cut.NONE, Cut.BUDGET):
            return result
        return replace(result, cut=Cut.BUDGET if turn.draft and turn.left < self.facts.block else Cut.NONE)

    def _learn(self, result: CycleResult) -> None:
        self.blocks = [*self.blocks[1 - REACH :], Block(result.start, len(result.tokens), self.from_prefill)]
        if not result.tokens:
            return
        turn = self.turn
        assert turn is not None, "cycles are read before a turn ends"
        self.rows += [turn.anchor, *result.tokens[:-1]]
        self.from_prefill = False
        turn.anchor = result.tokens[-1]
        turn.left = 0 if result.cut is Cut.STOP else turn.left - len(result.tokens)
        if turn.constraint is not None:
            turn.constraint.advance(result.tokens)

    def _launch(self, turn: Turn) -> Launched:
        """One cycle. What the host must know first (its own drafts, a grammar's state) is read first."""
        if turn.constraint is not None or (self.host_drafter is not None and turn.draft):
            self.catch_up()
            if self.turn is None:
                raise NodeError("An earlier cycle of this generation has failed.")
        if len(self.unread) >= CYCLES - 1:
            self.catch_up(self.unread[0])
        ahead = len(self.rows) + len(self.unread) * self.facts.block
        self._open(min(ahead + 2 * self.facts.block, self.runner.positions))
        drafts: list[int] | None = None
        if self.host_drafter is not None and turn.draft:
            most = min(self.facts.block, turn.left) - 1
            line = [*self.rows, turn.anchor]
            drafts = self.host_drafter.propose(line, most, _no_guess) if most > 0 else []
        return self.runner.launch(
            draft=turn.draft,
            drafts=drafts,
            filtered=turn.filtered,
            constraint=turn.constraint if turn.left else None,
            logprobs=turn.logprobs,
        )

    def _open(self, end: int) -> None:
        """Make the cache writable up to `end`, from where the next pass writes."""
        self.runner.table.open(max(0, len(self.rows) - self.runner.lag), end)

    def _settle(self) -> None:
        """Fold what is left to fold; it counts as a cycle without rows."""
        if self.runner.settle():
            self.blocks = [*self.blocks[1 - REACH :], Block(len(self.rows), 0, self.from_prefill)]

    def _end_turn(self) -> None:
        self.catch_up()
        self.turn = None
        self.blocks = []

    def _forget_unread(self, error: BaseException | None = None) -> None:
        for handle in self.unread:
            handle.error = error or MisuseOfTarget("the cycle's sequence was dropped before it was read")
        self.unread.clear()


def _no_guess(logits: torch.Tensor, position: int) -> int:
    raise NodeError("A drafter with logits of its own cannot run on the host of the fast engine.")
