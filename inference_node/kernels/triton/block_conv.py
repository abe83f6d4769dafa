"""DFlash 2's convolution inside a block, one program per row and tile of columns.

Tensors and formula: `plain/block_conv.py`. A row and the few before it are read once.
Exactness: a row depends on the rows before it in the block and on no other. Against the twin: nothing but rounding.
Checked by: tests/inference_node/kernels/triton/test_block_conv.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 512


def block_conv(
    x: torch.Tensor,
    own: torch.Tensor,
    base: torch.Tensor,
    valid: torch.Tensor,
    place: int,
    out: torch.Tensor,
    *,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns `out`."""
    rows, width = x.shape
    _, taps, _ = base.shape
    groups = own.shape[1] // (2 * taps)
    for name, tensor in (("x", x), ("out", out), ("residual", residual)):
        if tensor is not None and (tuple(tensor.shape) != (rows, width) or not tensor.is_contiguous()):
            raise ValueError(f"{name} is {tuple(tensor.shape)}; expected contiguous {(rows, width)}")
    if tuple(base.shape) != (2, taps, width) or base.dtype != torch.float32 or not base.is_contiguous():
        raise ValueError(f"base is {tuple(base.shape)} of {base.dtype}; expected contiguous {(2, taps, width)} in fp32")
    if own.shape[0] != rows or own.stride(1) != 1 or own.shape[1] != 2 * taps * groups or width % groups:
        raise ValueError(f"own is {tuple(own.shape)}; expected {rows} rows of 2 * {taps} times a divisor of {width}")
    if place not in (0, 1):
        raise ValueError(f"place={place}; expected 0 or 1")
    if out is x:
        raise ValueError("out is x: rows would be read after they were written")
    _block_conv[(rows, triton.cdiv(width, BLOCK))](
        x,
        own,
        base,
        valid,
        residual if residual is not None else x,
        out,
        own.stride(0),
        place,
        WIDTH=width,
        GROUPS=groups,
        TAPS=taps,
        RESIDUAL=residual is not None,
        BLOCK=BLOCK,
        num_warps=4,
        num_stages=1,
        enable_fp_fusion=False,
    )
    return out


@triton.jit(do_not_specialize=["place"])
def _block_conv(
    p_x,
    p_own,
    p_base,
    p_valid,
    p_residual,
    p_out,
    own_stride,
    place,
    WIDTH: tl.constexpr,
    GROUPS: tl.constexpr,
    TAPS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i_row = tl.program_id(0)
    if i_row < tl.load(p_valid):
        o_column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        is_column = o_column < WIDTH
        o_group = o_column // (WIDTH // GROUPS)
        b_sum = tl.zeros([BLOCK], tl.float32)
        for tap in tl.static_range(TAPS):
            o_tap = place * TAPS + tap
            is_read = is_column & (o_column * 0 + i_row - tap >= 0)  # nothing stands before row 0
            b_kernel = tl.load(p_base + o_tap * WIDTH + o_column, mask=is_column, other=0.0)
            p_own_row = p_own + i_row * own_stride + o_tap * GROUPS
            b_kernel += tl.load(p_own_row + o_group, mask=is_column, other=0.0).to(tl.float32)
            b_x = tl.load(p_x + (i_row - tap) * WIDTH + o_column, mask=is_read, other=0.0).to(tl.float32)
            b_sum += b_kernel * b_x
        if RESIDUAL:
            b_sum += tl.load(p_residual + i_row * WIDTH + o_column, mask=is_column, other=0.0).to(tl.float32)
        tl.store(p_out + i_row * WIDTH + o_column, b_sum.to(p_out.dtype.element_ty), mask=is_column)
