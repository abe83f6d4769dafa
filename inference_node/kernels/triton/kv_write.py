"""Norm and rotate a block's queries and keys, and write keys and values to cache pages, in one launch.

Tensors and rules: `plain/kv_write.py`. One program does one head of one row: first the query heads, then keys with
their values. A head is read as three pieces (first and second half of the rotated part, the rest), so that the rotation
needs no shuffling.

Cost: the projected rows once in, once out; it is the launch that costs.
Exactness: fp32 inside, rounded once; against the twin one rounding.
Checked by: tests/inference_node/kernels/triton/test_kv_write.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference_node.kernels.plain.kv_write import PAGE


def write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    rope: torch.Tensor,
    table: torch.Tensor,
    start: torch.Tensor,
    valid: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    q_out: torch.Tensor,
    eps: float,
) -> None:
    """See the twin."""
    rows, heads, dim = q.shape
    _, kv_heads, page, page_dim = k_pages.shape
    half = rope.shape[1] // 2
    if (page, page_dim) != (PAGE, dim) or k_pages.stride()[1:] != (PAGE * dim, dim, 1):
        raise ValueError(
            f"pages are {tuple(k_pages.shape)}; expected [pages, kv_heads, {PAGE}, {dim}], contiguous inside"
        )
    if v_pages.shape != k_pages.shape or v_pages.stride() != k_pages.stride():
        raise ValueError("pages of keys and of values differ in shape or strides")
    for name, part, count in (("q", q, heads), ("k", k, kv_heads), ("v", v, kv_heads)):
        if tuple(part.shape) != (rows, count, dim) or part.stride(2) != 1:
            raise ValueError(f"{name} is {tuple(part.shape)}; expected {(rows, count, dim)} with contiguous heads")
    if not q_out.is_contiguous() or q_out.shape != q.shape:
        raise ValueError(f"q_out is {tuple(q_out.shape)}; expected contiguous {tuple(q.shape)}")
    if 2 * half > dim or half & (half - 1) or not rope.is_contiguous():
        raise ValueError(f"rope is {tuple(rope.shape)}; expected a power of two of angles, at most {dim // 2}")
    rest = dim - 2 * half
    _write[(heads + kv_heads, rows)](
        q,
        k,
        v,
        q_norm,
        k_norm,
        rope,
        table,
        start,
        valid,
        k_pages,
        v_pages,
        q_out,
        eps,
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        k_pages.stride(0),
        HEADS=heads,
        DIM=dim,
        HALF=half,
        REST=rest,
        ROOM=triton.next_power_of_2(max(rest, 1)),
        PAGE=PAGE,
        num_warps=1,
        num_stages=1,
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=["eps"])
def _write(
    p_q,
    p_k,
    p_v,
    p_q_norm,
    p_k_norm,
    p_rope,
    p_table,
    p_start,
    p_valid,
    p_k_pages,
    p_v_pages,
    p_q_out,
    eps,
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    page_stride,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,  # dimensions that are not rotated
    ROOM: tl.constexpr,
    PAGE: tl.constexpr,
):
    i_head, i_row = tl.program_id(0), tl.program_id(1)
    is_valid = i_row < tl.load(p_valid)
    position = tl.load(p_start) + i_row
    o_half = tl.arange(0, HALF)
    o_rest = tl.arange(0, ROOM)
    if i_head < HEADS:
        p_to = p_q_out + (i_row.to(tl.int64) * HEADS + i_head) * DIM
        if is_valid:
            p_from = p_q + i_row.to(tl.int64) * q_row + i_head * q_head
            _turn(p_from, p_q_norm, p_rope, p_to, position, eps, o_half, o_rest, DIM, HALF, REST, ROOM)
        else:
            b_zero = tl.zeros([HALF], p_q_out.dtype.element_ty)
            tl.store(p_to + o_half, b_zero)
            tl.store(p_to + HALF + o_half, b_zero)
            if REST > 0:
                b_none = tl.zeros([ROOM], p_q_out.dtype.element_ty)
                tl.store(p_to + 2 * HALF + o_rest, b_none, mask=o_rest < REST)
    elif is_valid:
        i_kv = i_head - HEADS
        page = tl.load(p_table + position // PAGE).to(tl.int64)
        o_cached = page * page_stride + (i_kv * PAGE + position % PAGE) * DIM
        p_from = p_k + i_row.to(tl.int64) * k_row + i_kv * k_head
        _turn(p_from, p_k_norm, p_rope, p_k_pages + o_cached, position, eps, o_half, o_rest, DIM, HALF, REST, ROOM)
        p_value = p_v + i_row.to(tl.int64) * v_row + i_kv * v_head
        p_to_value = p_v_pages + o_cached
        tl.store(p_to_value + o_half, tl.load(p_value + o_half))
        tl.store(p_to_value + HALF + o_half, tl.load(p_value + HALF + o_half))
        if REST > 0:
            is_rest = o_rest < REST
            b_value = tl.load(p_value + 2 * HALF + o_rest, mask=is_rest)
            tl.store(p_to_value + 2 * HALF + o_rest, b_value, mask=is_rest)


@triton.jit
def _turn(
    p_from,
    p_norm,
    p_rope,
    p_to,
    position,
    eps,
    o_half,
    o_rest,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    ROOM: tl.constexpr,
):
    """One head: norm, rotate, store."""
    b_first = tl.load(p_from + o_half).to(tl.float32)
    b_second = tl.load(p_from + HALF + o_half).to(tl.float32)
    squares = tl.sum(b_first * b_first, 0) + tl.sum(b_second * b_second, 0)
    b_rest = tl.zeros([ROOM], tl.float32)
    if REST > 0:
        b_rest = tl.load(p_from + 2 * HALF + o_rest, mask=o_rest < REST, other=0.0).to(tl.float32)
        squares += tl.sum(b_rest * b_rest, 0)
    scale = tl.rsqrt(squares / DIM + eps)
    b_first = b_first * scale * tl.load(p_norm + o_half)
    b_second = b_second * scale * tl.load(p_norm + HALF + o_half)
    p_angles = p_rope + position.to(tl.int64) * (2 * HALF)
    b_cos = tl.load(p_angles + o_half)
    b_sin = tl.load(p_angles + HALF + o_half)
    element = p_to.dtype.element_ty
    tl.store(p_to + o_half, (b_first * b_cos - b_second * b_sin).to(element))
    tl.store(p_to + HALF + o_half, (b_second * b_cos + b_first * b_sin).to(element))
    if REST > 0:
        b_rest = b_rest * scale * tl.load(p_norm + 2 * HALF + o_rest, mask=o_rest < REST, other=0.0)
        tl.store(p_to + 2 * HALF + o_rest, b_rest.to(element), mask=o_rest < REST)
