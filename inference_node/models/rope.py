"""Rotary positions: plain absolute positions from 0, rotate-half, over the first part of each head.

Text needs no multi-section rope: its three position axes are equal, so it is the plain one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from inference_node.models.errors import BadModel

FIXED_TYPES = ("default", "linear", "llama3", "yarn")
"""Kinds whose frequencies do not change with the sequence's length, so that a row's bits do not either."""


@dataclass(frozen=True, slots=True)
class Rope:
    """`frequency` [rotated / 2] fp32; `scale` multiplies cos and sin (YaRN's temperature)."""

    frequency: torch.Tensor
    scale: float

    def at(self, position: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [..., rotated] for absolute positions [...], made in fp32; a row function."""
        angle = position.to(torch.float32)[..., None] * self.frequency
        angle = torch.cat([angle, angle], dim=-1)
        return (angle.cos() * self.scale).to(dtype), (angle.sin() * self.scale).to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [..., heads, dim]; cos and sin [..., rotated]. Dimensions past `rotated` pass through."""
    rotated = cos.shape[-1]
    turned, rest = x[..., :rotated], x[..., rotated:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos[..., None, :] + torch.cat([-second, first], dim=-1) * sin[..., None, :]
    return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned


def from_module(rotary_class: Any, config: Any, device: torch.device, where: object) -> Rope:
    """The frequencies that transformers' own rotary module makes from a config."""
    kind = config.rope_parameters.get("rope_type", "default")
    if kind not in FIXED_TYPES:
        raise BadModel(where, "rope_parameters.rope_type", found=f'"{kind}"', expected=f"one of {FIXED_TYPES}")
    module = rotary_class(config=config)
    return Rope(module.inv_freq.to(device=device, dtype=torch.float32), float(module.attention_scaling))
