"""The seam between the engine and what computes tokens.

The engine thread knows requests, text and clients; a target knows weights and states. Everything that passes between
them is in this file. Three things implement `Target`: `speculate.reference` (any model that transformers knows, the
oracle), the fast engine, and `speculate.scripted` (no model at all, for tests of everything above the seam).

One target holds one live sequence. Its life, as the engine drives it:

    target.reset()  or  target.restore(checkpoint)
    target.prefill(tokens)            any number of times; rows go in, no token comes out
    target.begin(committed, ...)      committed = whole prompt; len(committed) == target.position + 1
    a = target.cycle()                each call starts one cycle: draft, verify, accept, commit
    b = target.cycle()                the engine starts the next cycle before it reads the last one
    a.read()  -> CycleResult          so stop strings are seen one cycle late, and truncate() repairs that
    target.truncate(position)         back to any position from the start of the cycle before last
    target.checkpoint()               -> Checkpoint, for the prefix store

Positions count rows: a state at position p holds the rows of tokens 0..p-1. The last committed token (the anchor) has
no row yet; it is row 0 of the next cycle. So a sequence with C committed tokens is at position C - 1, always. The last
prompt token is such an anchor: prefill never samples, and the first token comes from the first cycle like all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import torch

from inference_node.kernels.plain.gated_delta import CHUNK
from inference_node.models.errors import NodeError

__all__ = [
    "CHUNK",
    "Checkpoint",
    "Constraint",
    "ContextFull",
    "Cut",
    "Cycle",
    "CycleResult",
    "MisuseOfTarget",
    "NodeError",
    "OutOfMemory",
    "Prefilled",
    "Progress",
    "Sampling",
    "Target",
    "TargetFacts",
    "Timings",
    "TokenLogprobs",
]


class ContextFull(NodeError):
    """More rows were asked for than the context holds."""

    def __init__(self, *, asked: int, context: int) -> None:
        super().__init__(
            f"The sequence needs {asked} positions, the context holds {context}. "
            "Shorten the prompt, or serve with a larger --ctx."
        )
        self.asked = asked
        self.context = context


class OutOfMemory(NodeError):
    """The device could not hold what was asked. The target is reset; the next request can be served."""


class MisuseOfTarget(Exception):
    """A call in the wrong order: a bug above the seam, never a client's fault."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. Order: bias, penalties, grammar, temperature, top-k, top-p, min-p, noise.

    Repetition penalty counts prompt and output, presence and frequency penalties count output only.
    """

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0  # 1 is off
    min_p: float = 0.0  # 0 is off
    repetition_penalty: float = 1.0  # 1 is off
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token id -> added logit; -100 and below forbids
    seed: int = 0  # 64 bits; a missing one is drawn by the engine, which returns it

    def __post_init__(self) -> None:
        for name, good, wanted in (
            ("temperature", 0.0 <= self.temperature <= 100.0, "between 0 and 100"),
            ("top_k", self.top_k >= 0, "at least 0"),
            ("top_p", 0.0 < self.top_p <= 1.0, "above 0 and at most 1"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "between 0 and 1"),
            ("repetition_penalty", 0.0 < self.repetition_penalty <= 100.0, "above 0 and at most 100"),
            ("presence_penalty", -100.0 <= self.presence_penalty <= 100.0, "between -100 and 100"),
            ("frequency_penalty", -100.0 <= self.frequency_penalty <= 100.0, "between -100 and 100"),
            ("seed", 0 <= self.seed < 2**64, "between 0 and 2**64 - 1"),
        ):
            if not good:  # a NaN fails each comparison above, so it is refused too
                raise ValueError(f"{name}={getattr(self, name)!r}; expected {wanted}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


class Constraint(Protocol):
    """What a grammar allows next. It stands after all committed tokens, the anchor included."""

    def masks(self, drafts: Sequence[int]) -> torch.Tensor:
        """Allowed ids at each row, as bits: int32 [rows, ceil(vocab / 32)], bit i of word w is id 32 * w + i.

        Row 0 is what may follow the anchor, row j what may follow drafts[:j]. Rows end with the first one that refuses
        its draft, so 1 <= rows <= len(drafts) + 1. Every row allows at least one id. Does not move the constraint.
        """
        ...

    def advance(self, tokens: Sequence[int]) -> None:
        """These tokens were committed. Each was allowed by the mask of its row."""
        ...


class Cut(StrEnum):
    """Why a cycle committed fewer tokens than its verify might have given."""

    NONE = "none"
    BUDGET = "budget"  # the verify was made smaller, or its tokens were cut, because the budget ends here
    STOP = "stop"  # a stop id was committed; it is the last of `tokens`
    IDLE = "idle"  # the sequence had ended in an earlier cycle; nothing was verified or committed


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of one cycle's parts, as far as this target can tell them apart (0.0 where it cannot)."""

    draft_s: float = 0.0
    verify_s: float = 0.0
    commit_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural-log probabilities by the model's own law: before bias, penalties, grammar, temperature and filters."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # (id, logprob), best first; as many as were asked for


@dataclass(frozen=True, slots=True)
class CycleResult:
    """What one cycle settled. `tokens` are final: accepted drafts, then the target's own choice, cut where it ended."""

    start: int  # position of the anchor: rows held before the cycle
    tokens: tuple[int, ...]  # committed in this cycle; row j's choice is token number start + 1 + j of the sequence
    offered: int  # drafts sent to verify
    accepted: int  # leading drafts that were the target's own choice, before any cut
    cut: Cut = Cut.NONE
    timings: Timings = Timings()
    experts_woken: tuple[int, ...] = ()  # distinct experts per MoE layer in the verify
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token when asked for

    def __post_init__(self) -> None:
        if not 0 <= self.accepted <= self.offered:
            raise ValueError(f"accepted={self.accepted} but offered={self.offered}")
        if len(self.tokens) > self.accepted + 1:
            raise ValueError(f"{len(self.tokens)} tokens from {self.accepted} accepted drafts and one own choice")

    @property
    def position(self) -> int:
        """Rows held after the cycle."""
        return self.start + len(self.tokens)


class Cycle(Protocol):
    """A cycle that was started."""

    def read(self) -> CycleResult:
        """Wait for it and give its result. Reading twice gives the same. Raises what the cycle failed with."""
        ...


@runtime_checkable
class Checkpoint(Protocol):
    """The whole state of a sequence at one position: attention, recurrent and drafter state together."""

    @property
    def position(self) -> int: ...

    @property
    def from_prefill(self) -> bool:
        """True when every row came from prefill tiles at absolute multiples of CHUNK: then a restore is bit-equal to
        prefilling from nothing. False once a decoded row is in it."""
        ...

    @property
    def own_bytes(self) -> int:
        """Bytes that only this checkpoint holds (recurrent state and the like)."""
        ...

    @property
    def shared_bytes(self) -> Mapping[int, int]:
        """Cache pages: page id -> bytes. Pages with the same id in several checkpoints are held once."""
        ...

    def release(self) -> None:
        """Give the memory back. Afterwards it cannot be restored. Twice is harmless."""
        ...


@dataclass(frozen=True, slots=True)
class Prefilled:
    """What a prefill did."""

    rows: int
    seconds: float
    taps: torch.Tensor | None = None  # [rows, len(tap_layers), hidden] in the model's dtype, when asked for


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What does not change while a target is loaded. Shown on /stats, checked by the engine."""

    name: str
    family: str  # the config's model_type
    engine: str  # reference | fast | scripted
    device: str
    weights: str  # float32 | bfloat16 | float16 | int8 | mxfp4; the last two are lossy
    vocab: int  # rows of the head
    known_ids: int  # ids below this exist in the tokenizer; others are never produced
    context: int  # positions a sequence may have
    block: int  # rows of a full verify: the anchor and block - 1 drafts
    stop_ids: tuple[int, ...]  # end-of-turn ids of the model's generation config
    drafter: str  # dflash | dflash2 | ngram | mtp | none | a test's own
    rollback: str  # replay | snapshots | fold | none (nothing recurrent)
    layers: int = 0  # of the target: those that may be tapped
    hidden: int = 0  # width of a layer's output
    weight_bytes: int = 0
    slice_rows: int = CHUNK  # prompt rows that should be given at once, for speed alone; a multiple of CHUNK


class Target(Protocol):
    """One loaded model with its drafter and one live sequence. Not thread-safe: one thread owns it."""

    @property
    def facts(self) -> TargetFacts: ...

    @property
    def position(self) -> int:
        """Rows held after everything that was started, read or not."""
        ...

    def reset(self) -> None:
        """An empty sequence at position 0. Always allowed, also after a failure."""
        ...

    def prefill(self, tokens: Sequence[int], *, chunked: bool = True, tap_layers: Sequence[int] = ()) -> Prefilled:
        """Append the rows of tokens. Raises ContextFull, OutOfMemory.

        Rows are computed in tiles that end at absolute multiples of CHUNK, so call it with slices that end there to be
        able to stop in between; the bits do not depend on the slices then. With chunked=False each row is computed the
        way a decode would have, bit-equal to having generated these tokens. tap_layers asks for the outputs of these
        target layers (the drafter gets its own in any case).
        """
        ...

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
        """Make ready to generate at most `budget` tokens after `committed`.

        len(committed) must be position + 1. The first prompt_tokens of committed (default: all) are prompt, the rest
        output, which matters to penalties only. logprobs: how many alternatives to report per token (0: the token's own
        only). draft=False: plain decoding, the equality oracle.
        """
        ...

    def cycle(self) -> Cycle:
        """Start one cycle. After the end of the budget or a stop id its result is Cut.IDLE."""
        ...

    def truncate(self, position: int) -> None:
        """Go back to position: any from the start of the cycle before the last one to the present. Ends generation."""
        ...

    def checkpoint(self) -> Checkpoint:
        """Keep the present state."""
        ...

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a kept state, which stays usable. Ends generation."""
        ...

    def close(self) -> None:
        """Give all memory back. Nothing works afterwards."""
        ...


Progress = Callable[[str, float], Any]
"""Told what is being done and how much of it is done, 0 to 1."""
