"""RMSNorms on their own, one program per row (gated: per row and head), the row held in registers.

Tensors and formulas: `plain/norm.py`.
Exactness: a row's bits depend on no other row. Against the twin: the order of one sum of squares.
Checked by: tests/inference_node/kernels/triton/test_norm.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def norm(
    x: torch.Tensor, factor: torch.Tensor, out: torch.Tensor, *, eps: float = 1e-6, valid: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns `out`."""
    return _launch(x, None, factor, out, eps, valid)


def gated_norm(
    x: torch.Tensor,
    gate: torch.Tensor,
    factor: torch.Tensor,
    out: torch.Tensor,
    *,
    eps: float = 1e-6,
    valid: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns `out`."""
    return _launch(x, gate, factor, out, eps, valid)


def _launch(
    x: torch.Tensor,
    gate: torch.Tensor | None,
    factor: torch.Tensor,
    out: torch.Tensor,
    eps: float,
    valid: torch.Tensor | None,
) -> torch.Tensor:
    dims, beside = (2, x) if gate is None else (3, gate)
    for name, tensor in (("x", x), ("gate", beside), ("out", out)):
        if tensor.dim() != dims or tensor.shape != x.shape or tensor.stride(-1) != 1:
            raise ValueError(f"{name} is {tuple(tensor.shape)}; expected {tuple(x.shape)} with contiguous last axis")
    if tuple(factor.shape) != (x.shape[-1],):
        raise ValueError(f"{tuple(factor.shape)} factors for rows of {x.shape[-1]}")
    if x.shape[0] == 0:
        return out
    heads = x.shape[1] if dims == 3 else 1
    strides = [stride for t in (x, beside, out) for stride in (t.stride(0), t.stride(1) if dims == 3 else 0)]
    block = triton.next_power_of_2(x.shape[-1])
    _norm[(x.shape[0], heads)](
        x,
        beside,
        factor,
        out,
        valid if valid is not None else x,
        *strides,
        x.shape[-1],
        eps,
        GATED=gate is not None,
        VALID=valid is not None,
        BLOCK=block,
        num_warps=max(1, min(8, block // 256)),
        num_stages=1,
        enable_fp_fusion=False,
    )
    return out


@triton.jit
def _norm(
    p_x,
    p_gate,
    p_factor,
    p_out,
    p_valid,
    x_row,
    x_head,
    gate_row,
    gate_head,
    out_row,
    out_head,
    D,
    eps,
    GATED: tl.constexpr,
    VALID: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i_row, i_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if VALID and i_row >= tl.load(p_valid):
        return
    o_d = tl.arange(0, BLOCK)
    is_d = o_d < D
    b_x = tl.load(p_x + i_row * x_row + i_head * x_head + o_d, mask=is_d, other=0.0).to(tl.float32)
    b_out = b_x * tl.rsqrt(tl.sum(b_x * b_x, 0) / D + eps) * tl.load(p_factor + o_d, mask=is_d, other=0.0)
    if GATED:
        b_gate = tl.load(p_gate + i_row * gate_row + i_head * gate_head + o_d, mask=is_d, other=0.0).to(tl.float32)
        b_out = b_out * (b_gate / (1.0 + tl.exp(-b_gate)))
    tl.store(p_out + i_row * out_row + i_head * out_head + o_d, b_out.to(p_out.dtype.element_ty), mask=is_d)
