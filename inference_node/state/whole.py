"""The state of one sequence as a whole: what was said, attention pages, recurrent states, and the way back.

It hides that attention goes back by forgetting rows and recurrence by making the state anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from inference_node.state.pages import Page, PagePool, PageTable
from inference_node.state.recurrent import BlockNotes, RecurrentState


@dataclass(frozen=True, slots=True)
class Shapes:
    """What a model needs held per sequence. Either kind may be absent."""

    attention_layers: int
    kv_heads: int
    head_dim: int
    recurrent_layers: int
    conv_rows: int  # taps - 1
    conv_channels: int
    delta: tuple[int, int, int]  # heads, K, V
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class KeptState:
    """A sequence's state at one position. Pages are held until `SequenceState.release`."""

    tokens: tuple[int, ...]
    pages: tuple[Page | None, ...]
    recurrent: RecurrentState
    from_prefill: bool


@dataclass
class _Block:
    """A committed block that may still be taken back, wholly or in part."""

    start: int
    before: RecurrentState
    notes: BlockNotes
    from_prefill: bool  # of the rows before it


@dataclass
class SequenceState:
    """Rows 0..position-1 are in. A forward writes rows past position; `commit` says how many of them stay."""

    shapes: Shapes
    tokens: list[int] = field(default_factory=list)  # one per row held
    from_prefill: bool = True

    def __post_init__(self) -> None:
        s = self.shapes
        self.pages = PageTable(PagePool(s.attention_layers, s.kv_heads, s.head_dim, s.dtype, s.device))
        self.recurrent = self._fresh()
        self._blocks: list[_Block] = []
        self._floor = 0

    @property
    def position(self) -> int:
        return len(self.tokens)

    @property
    def floor(self) -> int:
        """The earliest position that truncate can reach."""
        return self._blocks[0].start if self._blocks else self._floor

    def reset(self) -> None:
        self.pages.truncate(0)
        self.tokens, self.from_prefill = [], True
        self.recurrent = self._fresh()
        self._settle()

    def open(self, rows: int) -> None:
        """Make room for a pass over this many rows."""
        if self.shapes.attention_layers:
            self.pages.open(self.position, self.position + rows)

    def commit_tile(self, tokens: list[int], recurrent: RecurrentState, *, aligned: bool) -> None:
        """Rows of a prefill tile are in for good."""
        self.tokens += tokens
        self.recurrent = recurrent
        self.from_prefill = self.from_prefill and aligned
        self._settle()

    def commit_block(self, tokens: list[int], notes: BlockNotes) -> None:
        """The block's first len(tokens) rows stay; the rest never was. The block can be taken back for two blocks."""
        self._blocks = [*self._blocks[-1:], _Block(self.position, self.recurrent, notes, self.from_prefill)]
        if self.shapes.recurrent_layers:
            self.recurrent = notes.after(len(tokens), self.recurrent)
        self.tokens += tokens
        self.from_prefill = False
        self._forget_rows()

    def begin(self) -> None:
        """A new generation starts here: earlier blocks cannot be taken back any more."""
        self._settle()

    def truncate(self, position: int) -> None:
        """Go back to position, between floor and the present."""
        if not self.floor <= position <= self.position:
            raise ValueError(f"truncate to {position}; can reach {self.floor} to {self.position}")
        if position < self.position:
            block = [block for block in self._blocks if block.start <= position][-1]
            if self.shapes.recurrent_layers:
                self.recurrent = block.notes.after(position - block.start, block.before)
            if position == block.start:
                self.from_prefill = block.from_prefill
            del self.tokens[position:]
            self._forget_rows()
        self._settle()

    def keep(self) -> KeptState:
        return KeptState(tuple(self.tokens), self.pages.share(), self.recurrent, self.from_prefill)

    def resume(self, kept: KeptState) -> None:
        self.pages.adopt(kept.pages)
        self.tokens, self.from_prefill = list(kept.tokens), kept.from_prefill
        self.recurrent = kept.recurrent
        self._settle()

    def release(self, kept: KeptState) -> None:
        self.pages.release(kept.pages)

    def _forget_rows(self) -> None:
        self.pages.truncate(self.position)

    def _settle(self) -> None:
        self._blocks, self._floor = [], self.position

    def _fresh(self) -> RecurrentState:
        s, layers = self.shapes, range(self.shapes.recurrent_layers)
        return RecurrentState(
            tuple(torch.zeros(s.conv_rows, s.conv_channels, dtype=s.dtype, device=s.device) for _ in layers),
            tuple(torch.zeros(s.delta, dtype=torch.float32, device=s.device) for _ in layers),
        )
