"""Weights as the kernels read them: as they are, or packed to 8 or 4 bits (lossy) and unpacked inside a kernel.

    bf16     data [..., N, K] any float type, scale None. Lossless: what the file holds.
    int8     data [..., N, K] int8, scale [..., N] fp32. Symmetric, value = data * scale, scale = max |row| / 127.
    mxfp4    data [..., N, K / 2] uint8, scale [..., N, K / 32] uint8. OCP microscaling: blocks of 32 along K share a
             power of two, 2^(scale - 127), and each value is a 4-bit float (sign, 2 exponent bits, 1 of fraction:
             0, 0.5, 1, 1.5, 2, 3, 4, 6). Byte i of a block holds value i in its low half and value i + 16 in its high
             half, so that a kernel unpacks two runs and never interleaves. (OCP fixes the values, not this order.)

N output features, K input features. int8 needs nothing of K, mxfp4 a multiple of 32.
Exactness: `unpack` gives exactly the numbers that the kernels multiply with; they fit in bf16 without rounding before
the int8 scale, and after the mxfp4 one.
Checked by: tests/inference_node/kernels/triton/test_packed.py
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

BLOCK = 32
"""Values that share an mxfp4 scale."""

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


@dataclass(frozen=True, slots=True)
class Weight:
    """One matrix [N, K], or a stack of them [E, N, K], in one of the three forms above."""

    data: torch.Tensor
    scale: torch.Tensor | None = None

    def __post_init__(self) -> None:
        shape, scale = tuple(self.data.shape), self.scale
        if not self.data.is_contiguous() or (scale is not None and not scale.is_contiguous()):
            raise ValueError("a weight must be contiguous")
        if self.data.is_floating_point():
            wanted = None
        elif self.data.dtype == torch.int8:
            wanted = (shape[:-1], torch.float32)
        elif self.data.dtype == torch.uint8:
            wanted = ((*shape[:-1], shape[-1] * 2 // BLOCK), torch.uint8)
        else:
            raise ValueError(
                f"weights of {self.data.dtype} are not known; expected a float type, int8 or uint8 (mxfp4)"
            )
        found = None if scale is None else (tuple(scale.shape), scale.dtype)
        if found != wanted:
            raise ValueError(f"{self.kind} weight {shape} has a scale of {found}; expected {wanted}")

    @property
    def kind(self) -> str:
        """bf16 (any float type), int8 or mxfp4."""
        return {torch.int8: "int8", torch.uint8: "mxfp4"}.get(self.data.dtype, "bf16")

    @property
    def shape(self) -> tuple[int, ...]:
        """[..., N, K] in values."""
        shape = tuple(self.data.shape)
        return (*shape[:-1], shape[-1] * 2) if self.kind == "mxfp4" else shape

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.data, self.scale) if t is not None)

    def __getitem__(self, index: int | slice) -> Weight:
        """Of a stack: one matrix, or some. Of a matrix: some output features."""
        return Weight(self.data[index], None if self.scale is None else self.scale[index])


def pack_int8(weight: torch.Tensor) -> Weight:
    """Rows of zeros get scale 0. Works on a piece at a time as well: rows do not depend on each other."""
    weight = weight.to(torch.float32)
    scale = weight.abs().amax(-1) / 127.0
    data = torch.round(weight / torch.where(scale == 0.0, 1.0, scale)[..., None])
    return Weight(data.to(torch.int8).contiguous(), scale.contiguous())


def pack_mxfp4(weight: torch.Tensor) -> Weight:
    """The scale is the power of two that puts the block's largest value between 4 and 8; values then round to the
    nearest of the grid (ties to the even code), and what is above 6 becomes 6."""
    *lead, n, k = weight.shape
    if k % BLOCK:
        raise ValueError(f"mxfp4 needs input features in blocks of {BLOCK}; this weight has {k}")
    blocks = weight.to(torch.float32).view(*lead, n, k // BLOCK, BLOCK)
    _, power = torch.frexp(blocks.abs().amax(-1))  # largest = fraction * 2^power, fraction from 0.5 to 1
    exponent = (power - 3).clamp(-126, 127)
    scaled = torch.ldexp(blocks, -exponent[..., None])
    size = scaled.abs()
    code = torch.zeros_like(size, dtype=torch.uint8)
    for lower, (low, high) in enumerate(pairwise(FP4[:8])):
        middle = (low + high) / 2
        code += ((size > middle) if lower % 2 == 0 else (size >= middle)).to(torch.uint8)
    code |= torch.signbit(scaled).to(torch.uint8) << 3
    data = code[..., : BLOCK // 2] | (code[..., BLOCK // 2 :] << 4)
    scale = (exponent + 127).to(torch.uint8)
    return Weight(data.reshape(*lead, n, k // 2).contiguous(), scale.contiguous())


def unpack(weight: Weight) -> torch.Tensor:
    """[..., N, K] fp32: the numbers that the weight stands for."""
    if weight.scale is None:
        return weight.data.to(torch.float32)
    if weight.kind == "int8":
        return weight.data.to(torch.float32) * weight.scale[..., None]
    *lead, n, k = weight.shape
    bytes_ = weight.data.view(*lead, n, k // BLOCK, BLOCK // 2)
    code = torch.cat([bytes_ & 15, bytes_ >> 4], dim=-1)
    grid = torch.tensor(FP4, device=code.device)
    return torch.ldexp(grid[code.long()], weight.scale[..., None].to(torch.int32) - 127).view(*lead, n, k)
