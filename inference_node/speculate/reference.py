"""The reference target: any supported model on any device, exact, without tricks. The oracle for everything faster."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import torch

from inference_node.models.target import TextModel
from inference_node.speculate import checks
from inference_node.speculate.checks import guarded
from inference_node.speculate.choose import Chooser
from inference_node.speculate.propose import Drafter, KeptDraft
from inference_node.speculate.round import Pair, Turn, run_round
from inference_node.speculate.seam import (
    CHUNK,
    Checkpoint,
    Constraint,
    CycleResult,
    MisuseOfTarget,
    Prefilled,
    Sampling,
    TargetFacts,
)
from inference_node.state import recurrent
from inference_node.state.whole import KeptState, SequenceState

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class ReferenceCheckpoint:
    """Target and drafter state at one position, held together: half a state would be a wrong one."""

    kept: KeptState
    draft: KeptDraft
    owner: ReferenceTarget
    released: bool = False

    @property
    def position(self) -> int:
        return len(self.kept.tokens)

    @property
    def from_prefill(self) -> bool:
        return self.kept.from_prefill

    @property
    def own_bytes(self) -> int:
        return self.kept.recurrent.bytes + self.draft.own_bytes + 8 * len(self.kept.tokens)

    @property
    def shared_bytes(self) -> Mapping[int, int]:
        return {page.id: page.bytes for page in self.kept.pages if page is not None} | self.draft.pages

    def release(self) -> None:
        if not self.released:
            self.released = True
            if self.owner.closed:
                return
            self.owner.pair.state.release(self.kept)
            self.owner.pair.drafter.release(self.draft)


@dataclass
class Done:
    """A cycle that has run: the reference computes at once and lets the host read late."""

    result: CycleResult | None = None
    error: BaseException | None = None

    def read(self) -> CycleResult:
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


@dataclass
class ReferenceTarget:
    """See seam.Target. `pair` is what round.py works on."""

    pair: Pair
    facts: TargetFacts
    holes: torch.Tensor | None = None  # bool [known_ids]: ids below known_ids that the tokenizer has no entry for
    turn: Turn | None = None
    closed: bool = field(default=False)

    @property
    def position(self) -> int:
        return self.pair.state.position

    @guarded
    def reset(self) -> None:
        self.drop()

    @guarded
    def prefill(self, tokens: Sequence[int], *, chunked: bool = True, tap_layers: Sequence[int] = ()) -> Prefilled:
        began = time.perf_counter()
        checks.rows(self.facts, self.position, tokens)
        self.turn = None
        taps = [*self.pair.drafter.taps, *tap_layers]
        asked: list[torch.Tensor] = []
        done = 0
        while done < len(tokens):
            start = self.position
            width = CHUNK - start % CHUNK if chunked else self.facts.block
            rows = list(tokens[done : done + width])
            if chunked:
                seen = self.pair.model.tile(rows, self.pair.state, taps)
            else:
                notes = recurrent.notes(self.pair.rollback, self.pair.model.fold)
                seen = self.pair.model.block(rows, self.pair.state, notes, taps)
                self.pair.state.commit_block(rows, notes)
            asked.append(seen.taps[: len(rows), len(self.pair.drafter.taps) :])
            self.pair.drafter.absorb(start, rows, seen.only(len(self.pair.drafter.taps)))
            done += len(rows)
        self.pair.state.begin()
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
        checks.begin(self.facts, self.pair.state.tokens, committed, budget)
        split = len(committed) if prompt_tokens is None else prompt_tokens
        chooser = Chooser(
            sampling, self.pair.model.known_ids, self.pair.model.device,
            prompt=committed[:split], output=committed[split:], holes=self.holes,
        )  # fmt: skip
        self.pair.state.begin()
        self.turn = Turn(list(committed), chooser, budget, frozenset(stop_ids), constraint, logprobs, draft)

    @guarded
    def cycle(self) -> Done:
        checks.begun(self.turn)
        assert self.turn is not None
        try:
            return Done(run_round(self.pair, self.turn))
        except Exception as error:  # the caller meets it when it reads, as with a device that runs ahead
            self.turn = None
            return Done(error=checks.as_raised(self, error))

    @guarded
    def truncate(self, position: int) -> None:
        checks.reach(position, self.pair.state.floor, self.position)
        self.turn = None
        self.pair.state.truncate(position)
        self.pair.drafter.truncate(position)

    @guarded
    def checkpoint(self) -> ReferenceCheckpoint:
        return ReferenceCheckpoint(self.pair.state.keep(), self.pair.drafter.keep(), self)

    @guarded
    def restore(self, checkpoint: Checkpoint) -> None:
        if not isinstance(checkpoint, ReferenceCheckpoint) or checkpoint.owner is not self or checkpoint.released:
            raise MisuseOfTarget("restore of a checkpoint that is released, or another target's")
        self.turn = None
        self.pair.state.resume(checkpoint.kept)
        self.pair.drafter.resume(checkpoint.draft)

    def close(self) -> None:
        if not self.closed:
            self.drop()
            self.closed = True
            del self.pair

    def drop(self) -> None:
        """Forget the sequence; checkpoints stay."""
        self.turn = None
        self.pair.state.reset()
        self.pair.drafter.reset()

    @guarded
    def poison(self, value: float) -> None:
        """Fill every cache row that nothing may read. For tests and `doctor`: it must change no bit."""
        self.pair.state.pages.poison(self.position, value)
        poison: Callable[[float], Any] | None = getattr(self.pair.drafter, "poison", None)
        if poison is not None:
            poison(value)


def make_target(
    model: TextModel, drafter: Drafter, facts: TargetFacts, *, own_noise: bool = True, holes: torch.Tensor | None = None
) -> ReferenceTarget:
    """Put a model and a drafter together. facts.rollback says how recurrent layers go back."""
    rollback = facts.rollback if facts.rollback in ("replay", "snapshots") else "replay"
    return ReferenceTarget(Pair(model, drafter, SequenceState(model.shapes()), rollback, own_noise), facts, holes)
