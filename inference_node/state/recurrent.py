"""The states that fold every token into one tensor, and two ways to take tokens out again.

A verify walks such a state through all its rows, but only the accepted ones may stay. So a verify reads the state at
the block's start and leaves it alone; afterwards the state after the kept rows is made, in one of two ways that give
the same bits:

- replay: the verify keeps each recurrent layer's input rows; norm, projections, convolution and delta rule are run once
  more over the kept ones. Costs those projections again, holds a few rows.
- snapshots: the verify keeps the delta state after every row and the convolution's inputs; going back is choosing.
  Costs a full state written and held per row, computes nothing.

(The third way, folding the kept rows at the start of the next pass, belongs to the fast engine's kernel.)
Two blocks are remembered, so the host may look one cycle late and still go back to any row of either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from inference_node.kernels.plain import causal_conv


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """Tensors are replaced, never written into, so a checkpoint may hold them without a copy."""

    conv: tuple[torch.Tensor, ...]  # per recurrent layer: the last taps - 1 inputs of its convolution, oldest first
    delta: tuple[torch.Tensor, ...]  # per recurrent layer: [heads, K, V] fp32

    @property
    def bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in (*self.conv, *self.delta))


class BlockNotes(Protocol):
    """What one verify wrote down, to make the state after any number of its rows."""

    wants_states: bool  # whether `note` needs the delta state after each row

    def note(self, layer: int, layer_input: torch.Tensor, conv_input: torch.Tensor, states: list[torch.Tensor]) -> None:
        """Called by each recurrent layer in a verify, with rows first. States only when wanted."""
        ...

    def after(self, rows: int, before: RecurrentState) -> RecurrentState:
        """The state after the block's first `rows` rows, given the one at its start."""
        ...


Fold = Callable[[int, torch.Tensor, int, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""(layer, layer_input, rows, conv, delta) -> (conv, delta) after these rows: a model's norm + linear attention."""


@dataclass
class Replay:
    fold: Fold
    wants_states: bool = False
    inputs: dict[int, torch.Tensor] = field(default_factory=dict)

    def note(self, layer: int, layer_input: torch.Tensor, conv_input: torch.Tensor, states: list[torch.Tensor]) -> None:
        self.inputs[layer] = layer_input

    def after(self, rows: int, before: RecurrentState) -> RecurrentState:
        if rows == 0:
            return before
        pairs = [
            self.fold(layer, self.inputs[layer], rows, before.conv[layer], before.delta[layer])
            for layer in range(len(before.delta))
        ]
        return RecurrentState(tuple(conv for conv, _ in pairs), tuple(delta for _, delta in pairs))


@dataclass
class Snapshots:
    wants_states: bool = True
    conv_inputs: dict[int, torch.Tensor] = field(default_factory=dict)
    states: dict[int, list[torch.Tensor]] = field(default_factory=dict)

    def note(self, layer: int, layer_input: torch.Tensor, conv_input: torch.Tensor, states: list[torch.Tensor]) -> None:
        self.conv_inputs[layer], self.states[layer] = conv_input, states

    def after(self, rows: int, before: RecurrentState) -> RecurrentState:
        if rows == 0:
            return before
        layers = range(len(before.delta))
        return RecurrentState(
            tuple(causal_conv.tail(self.conv_inputs[layer], before.conv[layer], rows) for layer in layers),
            tuple(self.states[layer][rows - 1] for layer in layers),
        )


def notes(rollback: str, fold: Fold) -> BlockNotes:
    """A fresh note book of the kind asked for."""
    if rollback == "replay":
        return Replay(fold)
    if rollback == "snapshots":
        return Snapshots()
    raise ValueError(f'rollback="{rollback}"; the reference knows "replay" and "snapshots"')
