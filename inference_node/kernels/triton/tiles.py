"""Tiles of the small-M kernels: one for each shape of weight, the same for 1 and for 16 rows.

A tile decides the order of sums, so another tile is, to the bit, another model. They are chosen here by what a weight
is, never by how many rows a pass has, and never by timing on the spot. How these were found: NOTES.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton


@dataclass(frozen=True, slots=True)
class Tile:
    """A program's share of the weight (BLOCK_N output by BLOCK_K input features at a time) and how it is compiled."""

    block_n: int
    block_k: int
    warps: int
    stages: int
    per_core: int = 1  # programs per multiprocessor, for kernels whose grid is a fixed number of programs
    wk: int = 1  # parts of BLOCK_K that are summed by themselves, one per warp, and added at the end

    def within(self, k: int) -> Tile:
        """No wider than the weight is; matrix units want at least 16."""
        block_k = max(16, min(self.block_k, triton.next_power_of_2(k)))
        return replace(self, block_k=block_k, wk=max(1, min(self.wk, block_k // 16)))


HIP = bool(torch.version.hip)
"""Whether this torch drives AMD devices. Tiles differ there: fewer registers and stages, found by compiling for gfx1151
until nothing spilled. Functions take it as an argument so that they can be asked about the other side."""


def stages(tile: Tile | PrefillTile, hip: bool = HIP) -> int:
    """On HIP loads are kept in registers, and more than two stages spill."""
    return min(tile.stages, 2) if hip else tile.stages


def cores(device: torch.device) -> int:
    """Multiprocessors of the device; 4 where there is none and the interpreter runs."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def linear(n: int, k: int, kind: str = "bf16") -> Tile:
    """Few output features: narrow tiles, so that every core has one, and K shared out among the warps."""
    if n <= 4096:
        return Tile(16, 256, 4, 6, wk=4).within(k)
    return Tile(32, 128, 4 if kind == "int8" else 2, 4).within(k)


def router(hip: bool = HIP) -> Tile:
    return Tile(16, 64, 4, 1) if hip else Tile(16, 256, 4, 1)


def expert_up(kind: str, hip: bool = HIP) -> Tile:
    """By the form of the weight: what is unpacked needs registers."""
    if kind == "mxfp4":
        return Tile(16, 64, 4, 2, per_core=4) if hip else Tile(32, 128, 4, 4, per_core=4)
    return Tile(64, 128, 4, 4, per_core=4) if kind == "int8" else Tile(32, 128, 2, 4, per_core=4)


def expert_down(kind: str, hip: bool = HIP) -> Tile:
    if kind == "mxfp4":
        return Tile(16, 64, 4, 2) if hip else Tile(16, 256, 4, 5)
    return Tile(16, 512, 4, 7, wk=4) if kind == "int8" else Tile(16, 256, 4, 7, wk=4)


def head(hip: bool = HIP) -> Tile:
    return Tile(64, 128, 4, 2) if hip else Tile(128, 128, 4, 4)


@dataclass(frozen=True, slots=True)
class PrefillTile:
    """BLOCK_M rows of activations by BLOCK_N output features, BLOCK_K input features at a time."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int


def prefill_linear(hip: bool = HIP) -> PrefillTile:
    return PrefillTile(128, 128, 32, 8, 2) if hip else PrefillTile(128, 128, 64, 8, 3)


def prefill_experts(hip: bool = HIP) -> PrefillTile:
    return PrefillTile(64, 128, 32, 8, 2) if hip else PrefillTile(64, 128, 64, 4, 3)
