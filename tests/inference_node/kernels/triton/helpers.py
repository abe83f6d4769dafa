"""What the kernel tests share: where they run, outputs full of NaN, and bits."""

from __future__ import annotations

import torch
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from inference_node.kernels.plain.rows import bits

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TYPES = [torch.float32, torch.float16, *([torch.bfloat16] if torch.cuda.is_available() else [])]
"""The interpreter computes with numpy, which has no bf16."""

WITHIN = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Of the largest value: the order of fp32 sums, and two roundings of the type (one may fall the other way)."""


def whole(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def unwritten(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).to(dtype).to(DEVICE)


def close(found: torch.Tensor, expected: torch.Tensor, within: float) -> bool:
    """Everywhere, relative to the largest value; NaN only where NaN is expected (nothing written)."""
    if not torch.equal(found.isnan(), expected.isnan()):
        return False
    found, expected = found.float().nan_to_num(0.0), expected.float().nan_to_num(0.0)
    if not found.numel():
        return True
    return float((found - expected).abs().max()) <= within * max(float(expected.abs().max()), 1e-6)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(bits(a), bits(b))


def is_a_kernel(function: object) -> bool:
    """Proof that a test's subject is the Triton one, interpreted or compiled."""
    return isinstance(function, InterpretedFunction if DEVICE.type == "cpu" else JITFunction)
