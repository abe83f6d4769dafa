"""The gated delta step: fold the last block's rows, store the boundary, walk through this block's.

Tensors and rules: `plain/gated_delta_step.py`. One launch with two kinds of programs, each of one warp. The first make
what new rows bring (convolution, gates, norms), rows and heads in parallel, and write it to the ring's other side. The
others own V_TILE columns of one value head's state each, and keep them in registers from the first folded row to the
last new one. They load the state and fold while the first kind works, and wait for it at the boundary, by marks that
are zero at the start (marks.py). The programs that are waited for come first in the grid and wait for nobody.

Folded and new rows are read from the ring alike and go through the same `_advance`; a row's values are loaded a row
ahead. What a new row reads are two sums over K with the decayed state S' and one scalar, so that the next row waits for
nothing else:
    u = beta * (v - S'^T k);   S = S' + k u^T;   out = S^T q = S'^T q + (k . q) u

One warp, because sums over K then need no barrier between warps: programs of four warps cost 0.43 us a row in barriers
alone (NOTES.md, 2026-11-30).

Cost: 8 * K * V bytes of state traffic per head (2.1 MB read and as much written per layer of the 35B), plus the rows.
Exactness: bits are the same for all four ways to keep rows, whatever `fold` and `valid`; against the twin 1e-5 of the
largest value in fp32 (sums over K in another order), one rounding of the inputs' type in the output.
Checked by: tests/inference_node/kernels/triton/test_gated_delta_step.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference_node.kernels.plain.gated_delta_step import (
    APART,
    TAPS,
    DeltaMemory,
    DeltaWeights,
    Keep,
    marks_for,
)
from inference_node.kernels.triton.marks import finish, wait

ENTER = 2  # rows whose convolution is done at once
V_TILE = 8
KEEPS = {Keep.FOLD: 0, Keep.SNAPSHOTS: 1, Keep.NOTHING: 2, Keep.LAST: 3}


def step(
    x: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    weights: DeltaWeights,
    memory: DeltaMemory,
    slot: torch.Tensor,
    fold: torch.Tensor,
    valid: torch.Tensor,
    out: torch.Tensor,
    *,
    keep: Keep = Keep.FOLD,
    snapshots: torch.Tensor | None = None,
    marks: torch.Tensor | None = None,
) -> None:
    """See the twin. Ring rows of the other side are written whatever `keep` says. marks: zeros, `marks_for` of them."""
    _, heads, width, value_width = memory.state.shape
    _, block, key_heads, _ = memory.k.shape
    channels = memory.line.shape[2]
    for name, rows, columns in (("x", x, channels), ("b", b, heads), ("a", a, heads)):
        if tuple(rows.shape) != (block, columns) or rows.stride(1) != 1 or rows.dtype != memory.line.dtype:
            raise ValueError(
                f"{name} is {rows.dtype} {tuple(rows.shape)}, strides {rows.stride()}; expected "
                f"{memory.line.dtype} {(block, columns)} with contiguous rows"
            )
    if tuple(weights.conv.shape) != (channels, TAPS) or not weights.conv.is_contiguous():
        raise ValueError(f"conv is {tuple(weights.conv.shape)}; expected contiguous {(channels, TAPS)}")
    if tuple(out.shape) != (block, heads, value_width) or not out.is_contiguous():
        raise ValueError(f"out is {tuple(out.shape)}; expected contiguous {(block, heads, value_width)}")
    if keep is Keep.SNAPSHOTS and (snapshots is None or tuple(snapshots.shape) != (2, block, *memory.state.shape[1:])):
        raise ValueError(f"keep=snapshots needs snapshots of {(2, block, *memory.state.shape[1:])}")
    if marks is None:
        marks = torch.zeros(marks_for(key_heads, heads), dtype=torch.int32, device=x.device)
    queries = torch.empty(block * key_heads * (width + 1), device=x.device)  # queries, then their products with keys
    tile, groups, parts = min(V_TILE, value_width), triton.cdiv(block, ENTER), key_heads + heads
    _step[(groups * parts + heads * (value_width // tile),)](
        x, b, a, weights.conv, weights.rate, weights.shift, memory.line, memory.k, memory.v, memory.gates, queries,
        memory.state, snapshots if snapshots is not None else memory.state, marks, slot, fold, valid, out,
        x.stride(0), b.stride(0), a.stride(0),
        ENTER=ENTER, V_TILE=tile, ROOM=triton.next_power_of_2(block), APART=APART,
        BLOCK=block, KEY_HEADS=key_heads, HEADS=heads, K=width, V=value_width, KEEP=KEEPS[keep],
        num_warps=1, num_stages=1, enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit
def _step(
    p_x,
    p_b,
    p_a,
    p_conv,
    p_rate,
    p_shift,
    p_line,
    p_k,
    p_v,
    p_gates,
    p_queries,
    p_state,
    p_snapshots,
    p_marks,
    p_slot,
    p_fold,
    p_valid,
    p_out,
    x_stride,
    b_stride,
    a_stride,
    ENTER: tl.constexpr,
    V_TILE: tl.constexpr,
    ROOM: tl.constexpr,
    APART: tl.constexpr,
    BLOCK: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    KEEP: tl.constexpr,  # 0 fold, 1 snapshots, 2 nothing, 3 last
):
    PARTS: tl.constexpr = KEY_HEADS + HEADS
    GROUPS: tl.constexpr = (BLOCK + ENTER - 1) // ENTER
    i = tl.program_id(0)
    read = tl.load(p_slot)
    valid = tl.load(p_valid)
    kept = tl.load(p_fold) if KEEP <= 1 else 0
    if i < GROUPS * PARTS:
        i_rows, i_part = i // PARTS, i % PARTS
        if i_rows * ENTER < tl.maximum(valid, 1):  # with no rows the first programs still keep the line
            _enter(p_x, p_b, p_a, p_conv, p_rate, p_shift, p_line, p_k, p_v, p_gates, p_queries, read, kept, valid,
                   i_rows, i_part, x_stride, b_stride, a_stride, ENTER, BLOCK, KEY_HEADS, HEADS, K, V,
                   KEEP)  # fmt: skip
            finish(p_marks + i_part * APART)
    else:
        _walk(p_state, p_k, p_v, p_gates, p_queries, p_snapshots, p_marks, read, kept, valid, p_out,
              i - GROUPS * PARTS, ENTER, V_TILE, ROOM, APART, BLOCK, KEY_HEADS, HEADS, K, V, KEEP)  # fmt: skip


@triton.jit
def _enter(
    p_x,
    p_b,
    p_a,
    p_conv,
    p_rate,
    p_shift,
    p_line,
    p_k,
    p_v,
    p_gates,
    p_queries,
    read,
    kept,
    valid,
    i_rows,
    i_part,
    x_stride,
    b_stride,
    a_stride,
    ENTER: tl.constexpr,
    BLOCK: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    KEEP: tl.constexpr,
):
    """What new rows bring, to the ring's other side; and the line of conv inputs that is kept."""
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * K + HEADS * V
    write = 1 - read
    p_line_read = p_line + (read * (BLOCK + 3) + kept) * CHANNELS
    p_line_write = p_line + write * (BLOCK + 3) * CHANNELS
    o_row = i_rows * ENTER + tl.arange(0, ENTER)
    is_row = o_row < valid
    p_rows = p_line_write + (3 + o_row)[:, None] * CHANNELS
    if i_part < KEY_HEADS:
        o_k = tl.arange(0, K)
        o_query = i_part * K + o_k
        o_key = KEY_HEADS * K + o_query
        if i_rows == 0:
            _keep_before(p_x, x_stride, p_line_read, p_line_write, o_query, valid, CHANNELS, KEEP)
            _keep_before(p_x, x_stride, p_line_read, p_line_write, o_key, valid, CHANNELS, KEEP)
        b_q, b_q_in = convolve(p_x, x_stride, p_line_read, p_conv, o_query, o_row, is_row, CHANNELS)
        b_k, b_k_in = convolve(p_x, x_stride, p_line_read, p_conv, o_key, o_row, is_row, CHANNELS)
        b_q = b_q * tl.rsqrt(tl.sum(b_q * b_q, 1) + 1e-6)[:, None] * (K**-0.5)
        b_k = b_k * tl.rsqrt(tl.sum(b_k * b_k, 1) + 1e-6)[:, None]
        o_pair = o_row * KEY_HEADS + i_part
        tl.store(p_queries + o_pair[:, None] * K + o_k[None, :], b_q, mask=is_row[:, None])
        tl.store(p_queries + BLOCK * KEY_HEADS * K + o_pair, tl.sum(b_q * b_k, 1), mask=is_row)
        o_ring = (write * BLOCK + o_row) * KEY_HEADS + i_part
        tl.store(p_k + o_ring[:, None] * K + o_k[None, :], b_k, mask=is_row[:, None])
        if KEEP <= 1:
            tl.store(p_rows + o_query[None, :], b_q_in, mask=is_row[:, None])
            tl.store(p_rows + o_key[None, :], b_k_in, mask=is_row[:, None])
    else:
        i_head = i_part - KEY_HEADS
        o_v = tl.arange(0, V)
        o_value = 2 * KEY_HEADS * K + i_head * V + o_v
        if i_rows == 0:
            _keep_before(p_x, x_stride, p_line_read, p_line_write, o_value, valid, CHANNELS, KEEP)
        b_v, b_v_in = convolve(p_x, x_stride, p_line_read, p_conv, o_value, o_row, is_row, CHANNELS)
        o_ring = write * BLOCK + o_row
        p_value = p_v + (o_ring * HEADS + i_head)[:, None] * V + o_v[None, :]
        tl.store(p_value, b_v.to(p_v.dtype.element_ty), mask=is_row[:, None])
        b_b = tl.load(p_b + o_row * b_stride + i_head, mask=is_row, other=0.0).to(tl.float32)
        b_a = tl.load(p_a + o_row * a_stride + i_head, mask=is_row, other=0.0).to(tl.float32)
        b_a += tl.load(p_shift + i_head)
        b_soft = tl.where(b_a > 20.0, b_a, tl.log(1.0 + tl.exp(tl.minimum(b_a, 20.0))))
        b_decay = tl.exp(-tl.load(p_rate + i_head) * b_soft)
        tl.store(p_gates + o_ring * 2 * HEADS + i_head, b_decay, mask=is_row)
        tl.store(p_gates + (o_ring * 2 + 1) * HEADS + i_head, 1.0 / (1.0 + tl.exp(-b_b)), mask=is_row)
        if KEEP <= 1:
            tl.store(p_rows + o_value[None, :], b_v_in, mask=is_row[:, None])


@triton.jit
def _walk(
    p_state,
    p_k,
    p_v,
    p_gates,
    p_queries,
    p_snapshots,
    p_marks,
    read,
    kept,
    valid,
    p_out,
    i,
    ENTER: tl.constexpr,
    V_TILE: tl.constexpr,
    ROOM: tl.constexpr,
    APART: tl.constexpr,
    BLOCK: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    KEEP: tl.constexpr,
):
    """Some columns of a head's state through folded and new rows."""
    STATE: tl.constexpr = HEADS * K * V
    i_head, i_tile = i // (V // V_TILE), i % (V // V_TILE)
    write = 1 - read
    key_head = i_head // (HEADS // KEY_HEADS)
    o_v = i_tile * V_TILE + tl.arange(0, V_TILE)
    # The state is held in two halves of K: a row's keys are then few enough to be loaded where they are needed.
    HALF: tl.constexpr = K // 2
    o_half = tl.arange(0, HALF)
    o_tile = (i_head * K + o_half)[:, None] * V + o_v[None, :]
    p_from = p_state + read * STATE
    if KEEP == 1:
        p_last_kept = p_snapshots + (read * BLOCK + tl.maximum(kept, 1) - 1) * STATE
        p_from = tl.where(kept == 0, p_from, p_last_kept)
    b_low = tl.load(p_from + o_tile)
    b_high = tl.load(p_from + o_tile + HALF * V)
    if KEEP != 3:
        o_row = tl.arange(0, ROOM)
        is_filler = (o_row >= valid) & (o_row < BLOCK)
        p_fillers = p_out + (o_row * HEADS + i_head)[:, None] * V + o_v[None, :]
        tl.store(p_fillers, tl.zeros([ROOM, V_TILE], p_out.dtype.element_ty), mask=is_filler[:, None])

    if KEEP == 0:
        b_next = _load_row(0, kept, read, p_k, p_v, p_gates, key_head, i_head, o_half, o_v,
                           BLOCK, KEY_HEADS, HEADS, K, V)  # fmt: skip
        for t in range(0, kept):
            b_k_low, b_k_high, b_v, decay, beta = b_next
            b_next = _load_row(t + 1, kept, read, p_k, p_v, p_gates, key_head, i_head, o_half, o_v,
                               BLOCK, KEY_HEADS, HEADS, K, V)  # fmt: skip
            b_low, b_high = b_low * decay, b_high * decay
            b_low, b_high, _ = _advance(b_low, b_high, b_k_low, b_k_high, b_v, beta)
    p_state_write = p_state + write * STATE + o_tile
    if KEEP <= 1:
        tl.store(p_state_write, b_low)
        tl.store(p_state_write + HALF * V, b_high)
    if valid > 0:
        groups = (valid + ENTER - 1) // ENTER
        wait(p_marks + key_head * APART, groups)
        wait(p_marks + (KEY_HEADS + i_head) * APART, groups)
    b_next = _load_row(0, valid, write, p_k, p_v, p_gates, key_head, i_head, o_half, o_v,
                       BLOCK, KEY_HEADS, HEADS, K, V)  # fmt: skip
    b_asks = _load_query(0, valid, p_queries, key_head, o_half, BLOCK, KEY_HEADS, K)
    for t in range(0, valid):
        b_k_low, b_k_high, b_v, decay, beta = b_next
        b_q_low, b_q_high, kq = b_asks
        b_next = _load_row(t + 1, valid, write, p_k, p_v, p_gates, key_head, i_head, o_half, o_v,
                           BLOCK, KEY_HEADS, HEADS, K, V)  # fmt: skip
        b_asks = _load_query(t + 1, valid, p_queries, key_head, o_half, BLOCK, KEY_HEADS, K)
        b_low, b_high = b_low * decay, b_high * decay
        b_read = tl.sum(tl.fma(b_high, tl.broadcast_to(b_q_high[:, None], [HALF, V_TILE]), b_low * b_q_low[:, None]), 0)
        b_low, b_high, b_change = _advance(b_low, b_high, b_k_low, b_k_high, b_v, beta)
        if KEEP != 3:
            p_row = p_out + (t * HEADS + i_head) * V + o_v
            tl.store(p_row, (b_read + kq * b_change).to(p_out.dtype.element_ty))
        if KEEP == 1:
            p_shot = p_snapshots + (write * BLOCK + t) * STATE + o_tile
            tl.store(p_shot, b_low)
            tl.store(p_shot + HALF * V, b_high)
    if KEEP == 3:
        tl.store(p_state_write, b_low)
        tl.store(p_state_write + HALF * V, b_high)


@triton.jit
def _advance(b_low, b_high, b_k_low, b_k_high, b_v, beta):
    """The decayed state after a row, and what the row changes."""
    b_keys_low = tl.broadcast_to(b_k_low[:, None], b_low.shape)
    b_keys_high = tl.broadcast_to(b_k_high[:, None], b_high.shape)
    b_seen = tl.sum(tl.fma(b_high, b_keys_high, b_low * b_keys_low), 0)
    b_change = (b_v - b_seen) * beta
    b_changes = tl.broadcast_to(b_change[None, :], b_low.shape)
    return tl.fma(b_keys_low, b_changes, b_low), tl.fma(b_keys_high, b_changes, b_high), b_change


@triton.jit
def convolve(p_x, x_stride, p_before, p_conv, o_channel, o_row, is_row, CHANNELS: tl.constexpr):
    """Rows of x through the 4 taps and SiLU, fp32 [rows, channels], and the rows' own inputs as they are.

    p_before points at the 3 inputs before row 0.
    """
    b_total = tl.zeros([o_row.shape[0], o_channel.shape[0]], tl.float32)
    b_own = tl.zeros([o_row.shape[0], o_channel.shape[0]], p_x.dtype.element_ty)
    for tap in tl.static_range(4):
        o_input = o_row + (tap - 3)
        is_new = (is_row & (o_input >= 0))[:, None]
        is_old = (is_row & (o_input < 0))[:, None]
        b_own = tl.load(p_x + o_input[:, None] * x_stride + o_channel[None, :], mask=is_new, other=0.0)
        b_input = b_own
        if tap < 3:
            p_old = p_before + (3 + o_input)[:, None] * CHANNELS + o_channel[None, :]
            b_input = tl.where(is_new, b_own, tl.load(p_old, mask=is_old, other=0.0))
        b_part = b_input.to(tl.float32) * tl.load(p_conv + o_channel * 4 + tap).to(tl.float32)[None, :]
        b_total = b_part if tap == 0 else b_total + b_part
    b_total = b_total.to(p_x.dtype.element_ty).to(tl.float32)
    b_active = b_total / (1.0 + tl.exp(-b_total))
    return b_active.to(p_x.dtype.element_ty).to(tl.float32), b_own


@triton.jit
def _keep_before(p_x, x_stride, p_from, p_to, o_channel, valid, CHANNELS: tl.constexpr, KEEP: tl.constexpr):
    """The line's first 3 inputs: those before this block, or (last) the last 3 of them and its rows."""
    if KEEP != 2:
        o_row = tl.arange(0, 4)
        is_row = (o_row < 3)[:, None]
        o_input = o_row - 3
        if KEEP == 3:
            o_input += valid
        is_new = (o_input >= 0)[:, None]
        b_new = tl.load(p_x + o_input[:, None] * x_stride + o_channel[None, :], mask=is_row & is_new, other=0.0)
        p_old = p_from + (3 + o_input)[:, None] * CHANNELS + o_channel[None, :]
        b_old = tl.load(p_old, mask=is_row & (o_input < 0)[:, None], other=0.0)
        tl.store(p_to + o_row[:, None] * CHANNELS + o_channel[None, :], tl.where(is_new, b_new, b_old), mask=is_row)


@triton.jit
def _load_row(
    t,
    rows,
    side,
    p_k,
    p_v,
    p_gates,
    key_head,
    i_head,
    o_half,
    o_v,
    BLOCK: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
):
    """Key, value, decay and beta of the ring's row t; of its last one past the end."""
    HALF: tl.constexpr = K // 2
    o_ring = side * BLOCK + tl.minimum(t, tl.maximum(rows, 1) - 1)
    p_key = p_k + (o_ring * KEY_HEADS + key_head) * K + o_half
    b_v = tl.load(p_v + (o_ring * HEADS + i_head) * V + o_v).to(tl.float32)
    p_gate = p_gates + o_ring * 2 * HEADS + i_head
    return tl.load(p_key), tl.load(p_key + HALF), b_v, tl.load(p_gate), tl.load(p_gate + HEADS)


@triton.jit
def _load_query(t, rows, p_queries, key_head, o_half, BLOCK: tl.constexpr, KEY_HEADS: tl.constexpr, K: tl.constexpr):
    """Query and key . query of new row t; of the last one past the end."""
    o_pair = tl.minimum(t, tl.maximum(rows, 1) - 1) * KEY_HEADS + key_head
    p_query = p_queries + o_pair * K + o_half
    return tl.load(p_query), tl.load(p_query + K // 2), tl.load(p_queries + BLOCK * KEY_HEADS * K + o_pair)
