"""What one forward is given besides its input rows.

A block pass (decode, verify, replay) always has the same number of rows; those past `valid` are fillers that nothing
reads. A tile pass (prefill) has 64 rows. Both run the same layers; they differ in how a recurrent layer walks its rows,
and in whether the rows' bits must not depend on their place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from inference_node.kernels.plain.rows import Rows
from inference_node.state.pages import PageTable
from inference_node.state.recurrent import BlockNotes, RecurrentState


@dataclass
class Pass:
    """One forward over rows at positions start, start + 1, ..."""

    position: torch.Tensor  # [rows] int64
    start: int
    valid: int
    pages: PageTable
    recurrent: RecurrentState  # at `start`; not changed
    apply: Callable[..., Any]  # (name, function, *rows): `Rows` in a block, a plain call in a tile
    notes: BlockNotes | None = None  # a verify writes here; None in a tile
    tile: bool = False
    conv: dict[int, torch.Tensor] = field(default_factory=dict)  # a tile's new recurrent states, by layer
    delta: dict[int, torch.Tensor] = field(default_factory=dict)
    woken: list[int] = field(default_factory=list)  # experts, per MoE layer in order

    @property
    def end(self) -> int:
        return self.start + self.valid


def together(name: str, function: Callable[..., Any], *rows: torch.Tensor) -> Any:
    """`apply` of a tile: a row always stands at the same place of its tile, so nothing needs to be checked."""
    return function(*rows)


__all__ = ["Pass", "Rows", "together"]
