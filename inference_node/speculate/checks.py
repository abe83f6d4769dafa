"""What every target refuses, and in which words: see seam.py for the rules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import torch

from inference_node.speculate.seam import ContextFull, MisuseOfTarget, OutOfMemory, TargetFacts

P = ParamSpec("P")
R = TypeVar("R")


class Droppable(Protocol):
    """A target, as far as a guard needs it."""

    @property
    def facts(self) -> TargetFacts: ...

    @property
    def closed(self) -> bool: ...

    def drop(self) -> None:
        """Forget the sequence, whose state may be half written; checkpoints stay."""
        ...


T = TypeVar("T", bound=Droppable)


def guarded(method: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """No gradients; and when the device's memory runs out the sequence is dropped and the caller told so in words."""

    @functools.wraps(method)
    def run(self: T, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.closed:
            raise MisuseOfTarget(f"{method.__name__} after close")
        try:
            with torch.inference_mode():
                return method(self, *args, **kwargs)
        except (OutOfMemory, MemoryError, RuntimeError) as error:
            raised = as_raised(self, error)
            if raised is error:
                raise
            raise raised from error

    return run


def as_raised(target: Droppable, error: Exception) -> Exception:
    """What the caller is told. A sequence that no longer fits is dropped."""
    if isinstance(error, OutOfMemory):
        target.drop()
    elif _is_out_of_memory(error):
        target.drop()
        why = str(error).strip().split("\n", 1)[0][:200] or type(error).__name__
        return OutOfMemory(
            f"The {target.facts.device} device has no memory left ({why}). The sequence was dropped. "
            "Send a shorter prompt, or serve with a smaller --ctx or --prefix-bytes."
        )
    return error


def rows(facts: TargetFacts, position: int, tokens: Sequence[int]) -> None:
    """These rows are to be appended at position."""
    _room(facts, position, len(tokens))
    _known(facts, tokens)


def begin(facts: TargetFacts, held: Sequence[int], committed: Sequence[int], budget: int) -> None:
    """A generation is to follow the rows held."""
    if list(committed[:-1]) != list(held):
        raise MisuseOfTarget(
            f"begin with {len(committed)} tokens that are not the {len(held)} rows held and one more"
        )  # fmt: skip
    if budget < 1:
        raise MisuseOfTarget(f"budget={budget}; expected at least 1")
    _room(facts, len(held), budget)
    _known(facts, committed[-1:])


def begun(turn: object | None) -> None:
    if turn is None:
        raise MisuseOfTarget("cycle without begin")


def reach(position: int, floor: int, held: int) -> None:
    """A truncation to position, where the earliest within reach is floor."""
    if not floor <= position <= held:
        raise MisuseOfTarget(f"truncate to {position}; can reach {floor} to {held}")


def _room(facts: TargetFacts, position: int, more: int) -> None:
    if position + more > facts.context:
        raise ContextFull(asked=position + more, context=facts.context)


def _known(facts: TargetFacts, tokens: Sequence[int]) -> None:
    wrong = [token for token in tokens if not 0 <= token < facts.vocab]
    if wrong:
        raise MisuseOfTarget(f"token id {wrong[0]}; the vocabulary has {facts.vocab}")


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    text = str(error).lower() if isinstance(error, RuntimeError) else ""  # torch's own kind is a RuntimeError
    return "out of memory" in text or "can't allocate memory" in text or "not enough memory" in text
