"""The recurrent layers' memories of the live sequence: all layers in one tensor per kind, so that keeping is one copy.

See `kernels/plain/gated_delta_step.py` for what a memory is and for the ways to roll back. Replay keeps besides: each
layer's projections of the last two blocks, and the states at the start of the block before last, which its commit would
overwrite.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inference_node.fast.sizes import Sizes
from inference_node.kernels.plain.gated_delta_step import TAPS, DeltaMemory, Keep

ROLLBACKS = {"fold": Keep.FOLD, "snapshots": Keep.SNAPSHOTS, "replay": Keep.NOTHING}


@dataclass(frozen=True, slots=True)
class KeptRecurrent:
    """All layers' states with nothing left to fold."""

    state: torch.Tensor  # [layers, HV, K, V] fp32
    line: torch.Tensor  # [layers, 3, C]

    @property
    def bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in (self.state, self.line))


@dataclass(frozen=True, slots=True)
class Kept:
    """What a checkpoint holds besides cache pages."""

    recurrent: KeptRecurrent | None  # None: nothing recurrent in the model
    drafter: torch.Tensor | None  # None: all that the drafter has is in pages

    @property
    def bytes(self) -> int:
        own = self.drafter.numel() * self.drafter.element_size() if self.drafter is not None else 0
        return own + (self.recurrent.bytes if self.recurrent is not None else 0)


class Recurrent:
    """Memories of all recurrent layers of one sequence."""

    def __init__(self, sizes: Sizes, block: int, rollback: str, dtype: torch.dtype, device: torch.device) -> None:
        self.rollback = rollback
        self.keep = ROLLBACKS[rollback]
        self.layers = sizes.recurrent_layers
        d = sizes.delta
        self.memories: list[DeltaMemory] = []
        self.snapshots: torch.Tensor | None = None
        if d is None:
            return
        layers = self.layers
        self.state = torch.zeros(layers, 2, d.value_heads, d.key_dim, d.value_dim, device=device)
        self.line = torch.zeros(layers, 2, TAPS - 1 + block, d.channels, dtype=dtype, device=device)
        self.k = torch.zeros(layers, 2, block, d.key_heads, d.key_dim, device=device)
        self.v = torch.zeros(layers, 2, block, d.value_heads, d.value_dim, dtype=dtype, device=device)
        self.gates = torch.zeros(layers, 2, block, 2, d.value_heads, device=device)
        parts = (self.state, self.line, self.k, self.v, self.gates)
        self.memories = [DeltaMemory(*(part[layer] for part in parts)) for layer in range(layers)]
        if rollback == "snapshots":
            shape = (layers, 2, block, d.value_heads, d.key_dim, d.value_dim)
            self.snapshots = torch.zeros(shape, device=device)
        if rollback == "replay":
            self.entered = torch.zeros(layers, 2, block, d.channels + 2 * d.value_heads, dtype=dtype, device=device)
            self.earlier_state = torch.zeros_like(self.state[:, 0])
            self.earlier_line = torch.zeros_like(self.line[:, 0, : TAPS - 1])

    def reset(self) -> None:
        """An empty sequence on both sides."""
        if self.memories:
            self.state.zero_()
            self.line.zero_()

    def kept(self, slot: int) -> KeptRecurrent | None:
        """A copy of one side, which has nothing left to fold."""
        if not self.memories:
            return None
        return KeptRecurrent(self.state[:, slot].clone(), self.line[:, slot, : TAPS - 1].clone())

    def resume(self, kept: KeptRecurrent | None, slot: int) -> None:
        if kept is not None:
            self.state[:, slot].copy_(kept.state)
            self.line[:, slot, : TAPS - 1].copy_(kept.line)

    def start_of(self, ago: int, slot: int) -> None:
        """Replay: put the state at the start of the last block, or the one before it, where rows are walked from."""
        if self.memories and ago == 1:
            self.state[:, 1 - slot].copy_(self.earlier_state)
            self.line[:, 1 - slot, : TAPS - 1].copy_(self.earlier_line)

    def poison(self, value: float, slot: int, fold: int) -> None:
        """Fill what the next pass must not read: the other side, and the ring past the rows to fold."""
        if not self.memories:
            return
        other = 1 - slot
        for part in (self.state, self.line, self.k, self.v, self.gates):
            part[:, other] = value
        for part in (self.k, self.v, self.gates):
            part[:, slot, fold:] = value
        self.line[:, slot, TAPS - 1 + fold :] = value
