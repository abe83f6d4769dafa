"""The gated delta step in one launch: fold the last block's rows, store the boundary, walk through this block's.

Tensors and rules: `plain/gated_delta_step.py`. One program owns V_TILE columns of one value head's state, and keeps
them in registers from the first folded row to the last new one. It first makes what its new rows bring (convolution,
gates, norms), four rows at a time, and writes that to the ring's other side; the loop then reads folded rows and new
rows from the ring alike. Programs of one head write the same keys to the same places with the same bits.

What it reads per row is two dot products over K with the decayed state S' and one scalar, so that both sums are under
way at once and the next row waits for one reduction only:
    u = beta * (v - S'^T k);   S = S' + k u^T;   out = S^T q = S'^T q + (k . q) u

Cost: 8 * K * V bytes of state traffic per head (2.1 MB read and as much written per layer of the 35B), plus the rows.
Exactness: bits are the same for all four ways to keep rows, whatever `fold` and `valid`; against the twin 1e-5 of the
largest value in fp32 (sums over K in another order), one rounding of the inputs' type in the output.
Checked by: tests/inference_node/kernels/triton/test_gated_delta_step.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference_node.kernels.plain.gated_delta_step import TAPS, DeltaMemory, DeltaWeights, Keep

ENTER = 4  # rows whose convolution is done at once
V_TILE = 32
WARPS = 4
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
) -> None:
    """See the twin. Ring rows of the other side are written whatever `keep` says."""
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
    tile = min(V_TILE, value_width)
    queries = torch.empty(block * key_heads * (width + 1), device=x.device)  # queries, then their products with keys
    _step[(heads, value_width // tile)](
        x,
        b,
        a,
        weights.conv,
        weights.rate,
        weights.shift,
        memory.state,
        memory.line,
        memory.k,
        memory.v,
        memory.gates,
        queries,
        snapshots if snapshots is not None else memory.state,
        slot,
        fold,
        valid,
        out,
        x.stride(0),
        b.stride(0),
        a.stride(0),
        BLOCK=block,
        ROOM=triton.next_power_of_2(block),
        KEY_HEADS=key_heads,
        HEADS=heads,
        K=width,
        V=value_width,
        V_TILE=tile,
        ENTER=ENTER,
        KEEP=KEEPS[keep],
        num_warps=WARPS,
        num_stages=1,
        enable_fp_fusion=False,
    )


@triton.jit
def _step(
    p_x,
    p_b,
    p_a,
    p_conv,
    p_rate,
    p_shift,
    p_state,
    p_line,
    p_k,
    p_v,
    p_gates,
    p_queries,
    p_snapshots,
    p_slot,
    p_fold,
    p_valid,
    p_out,
    x_stride,
    b_stride,
    a_stride,
    BLOCK: tl.constexpr,
    ROOM: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    V_TILE: tl.constexpr,
    ENTER: tl.constexpr,
    KEEP: tl.constexpr,  # 0 fold, 1 snapshots, 2 nothing, 3 last
):
    i_head, i_tile = tl.program_id(0), tl.program_id(1)
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * K + HEADS * V
    SHARE: tl.constexpr = HEADS // KEY_HEADS
    STATE: tl.constexpr = HEADS * K * V
    read = tl.load(p_slot)
    write = 1 - read
    valid = tl.load(p_valid)
    kept = tl.load(p_fold)
    if KEEP >= 2:
        kept = 0
    key_head = i_head // SHARE
    o_k = tl.arange(0, K)
    o_v = i_tile * V_TILE + tl.arange(0, V_TILE)
    o_tile = (i_head * K + o_k)[:, None] * V + o_v[None, :]
    if KEEP == 1:
        p_first = p_state + read * STATE
        p_last_kept = p_snapshots + (read * BLOCK + tl.maximum(kept, 1) - 1) * STATE
        b_state = tl.load(tl.where(kept == 0, p_first, p_last_kept) + o_tile)
    else:
        b_state = tl.load(p_state + read * STATE + o_tile)

    # What the new rows bring, to the ring's other side.
    o_query = key_head * K + o_k
    o_key = KEY_HEADS * K + o_query
    o_value = 2 * KEY_HEADS * K + i_head * V + o_v
    # Of the programs that share a key head, one keeps the line of its channels: all channels below this are its own.
    own_keys = tl.where((i_tile == 0) & (i_head % SHARE == 0), CHANNELS, 0)
    p_line_read = p_line + (read * (BLOCK + 3) + kept) * CHANNELS
    p_line_write = p_line + write * (BLOCK + 3) * CHANNELS
    if KEEP <= 1:
        _keep_tail(p_line_read, p_line_write, o_query, own_keys, CHANNELS)
        _keep_tail(p_line_read, p_line_write, o_key, own_keys, CHANNELS)
        _keep_tail(p_line_read, p_line_write, o_value, CHANNELS, CHANNELS)
    for first in range(0, valid, ENTER):
        o_row = first + tl.arange(0, ENTER)
        is_row = o_row < valid
        b_q, b_q_in = _convolve(p_x, x_stride, p_line_read, p_conv, o_query, o_row, is_row, CHANNELS)
        b_k, b_k_in = _convolve(p_x, x_stride, p_line_read, p_conv, o_key, o_row, is_row, CHANNELS)
        b_v, b_v_in = _convolve(p_x, x_stride, p_line_read, p_conv, o_value, o_row, is_row, CHANNELS)
        b_q = b_q * tl.rsqrt(tl.sum(b_q * b_q, 1) + 1e-6)[:, None] * (K**-0.5)
        b_k = b_k * tl.rsqrt(tl.sum(b_k * b_k, 1) + 1e-6)[:, None]
        b_b = tl.load(p_b + o_row * b_stride + i_head, mask=is_row, other=0.0).to(tl.float32)
        b_a = tl.load(p_a + o_row * a_stride + i_head, mask=is_row, other=0.0).to(tl.float32)
        b_a += tl.load(p_shift + i_head)
        b_soft = tl.where(b_a > 20.0, b_a, tl.log(1.0 + tl.exp(tl.minimum(b_a, 20.0))))
        b_decay = tl.exp(-tl.load(p_rate + i_head) * b_soft)
        b_beta = 1.0 / (1.0 + tl.exp(-b_b))
        o_ring = write * BLOCK + o_row
        o_pair = o_row * KEY_HEADS + key_head
        tl.store(p_queries + o_pair[:, None] * K + o_k[None, :], b_q, mask=is_row[:, None])
        tl.store(p_queries + BLOCK * KEY_HEADS * K + o_pair, tl.sum(b_q * b_k, 1), mask=is_row)
        tl.store(p_k + (o_ring * KEY_HEADS + key_head)[:, None] * K + o_k[None, :], b_k, mask=is_row[:, None])
        tl.store(p_v + (o_ring * HEADS + i_head)[:, None] * V + o_v[None, :], b_v, mask=is_row[:, None])
        tl.store(p_gates + o_ring * 2 * HEADS + i_head, b_decay, mask=is_row)
        tl.store(p_gates + (o_ring * 2 + 1) * HEADS + i_head, b_beta, mask=is_row)
        if KEEP <= 1:
            p_rows = p_line_write + (3 + o_row)[:, None] * CHANNELS
            tl.store(p_rows + o_query[None, :], b_q_in, mask=is_row[:, None] & (o_query < own_keys)[None, :])
            tl.store(p_rows + o_key[None, :], b_k_in, mask=is_row[:, None] & (o_key < own_keys)[None, :])
            tl.store(p_rows + o_value[None, :], b_v_in, mask=is_row[:, None])
    if KEEP == 3:  # the last three inputs of the rows that stay: from x, or still from the line
        _keep_last(p_x, x_stride, p_line_read, p_line_write, o_query, own_keys, valid, CHANNELS)
        _keep_last(p_x, x_stride, p_line_read, p_line_write, o_key, own_keys, valid, CHANNELS)
        _keep_last(p_x, x_stride, p_line_read, p_line_write, o_value, CHANNELS, valid, CHANNELS)
    else:
        o_row = tl.arange(0, ROOM)
        is_filler = (o_row >= valid) & (o_row < BLOCK)
        p_fillers = p_out + (o_row * HEADS + i_head)[:, None] * V + o_v[None, :]
        tl.store(p_fillers, tl.zeros([ROOM, V_TILE], p_out.dtype.element_ty), mask=is_filler[:, None])
    tl.debug_barrier()  # the rows just written are read below by other threads of this program

    p_state_write = p_state + write * STATE + o_tile
    if KEEP == 1:
        tl.store(p_state_write, b_state)
        kept = 0
    rows = kept + valid
    store_at = -1  # how many rows are in the state that is kept: the folded ones, or (last) all
    if KEEP == 0:
        store_at = kept
    if KEEP == 3:
        store_at = rows
    o_next_ring, next_is_new = _ring_row(0, kept, read, write, BLOCK)
    b_next_k, b_next_q, b_next_v, next_decay, next_beta, next_kq = _load_row(
        p_k,
        p_v,
        p_gates,
        p_queries,
        o_next_ring,
        -kept,
        rows > 0,
        next_is_new & (rows > 0),
        key_head,
        i_head,
        o_k,
        o_v,
        BLOCK,
        KEY_HEADS,
        HEADS,
        K,
        V,
    )
    for t in range(0, rows):
        b_k, b_q, b_v, decay, beta, kq = b_next_k, b_next_q, b_next_v, next_decay, next_beta, next_kq
        is_next = t + 1 < rows
        o_next_ring, next_is_new = _ring_row(t + 1, kept, read, write, BLOCK)
        b_next_k, b_next_q, b_next_v, next_decay, next_beta, next_kq = _load_row(
            p_k,
            p_v,
            p_gates,
            p_queries,
            o_next_ring,
            t + 1 - kept,
            is_next,
            next_is_new & is_next,
            key_head,
            i_head,
            o_k,
            o_v,
            BLOCK,
            KEY_HEADS,
            HEADS,
            K,
            V,
        )
        if t == store_at:
            tl.store(p_state_write, b_state)
        b_state = b_state * decay
        b_seen = tl.sum(b_state * b_k[:, None], 0)
        b_read = tl.sum(b_state * b_q[:, None], 0)
        b_change = (b_v - b_seen) * beta
        b_state = b_state + b_k[:, None] * b_change[None, :]
        if KEEP != 3:
            p_row = p_out + ((t - kept) * HEADS + i_head) * V + o_v
            tl.store(p_row, (b_read + kq * b_change).to(p_out.dtype.element_ty), mask=o_v < tl.where(t >= kept, V, 0))
        if KEEP == 1:
            tl.store(p_snapshots + (write * BLOCK + t) * STATE + o_tile, b_state)
    if rows == store_at:
        tl.store(p_state_write, b_state)


@triton.jit
def _convolve(p_x, x_stride, p_before, p_conv, o_channel, o_row, is_row, CHANNELS: tl.constexpr):
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
        b_weight = tl.load(p_conv + o_channel * 4 + tap).to(tl.float32)
        b_part = b_input.to(tl.float32) * b_weight[None, :]
        b_total = b_part if tap == 0 else b_total + b_part
    b_total = b_total.to(p_x.dtype.element_ty).to(tl.float32)
    b_active = b_total / (1.0 + tl.exp(-b_total))
    return b_active.to(p_x.dtype.element_ty).to(tl.float32), b_own


@triton.jit
def _keep_tail(p_from, p_to, o_channel, below, CHANNELS: tl.constexpr):
    """The 3 conv inputs before a block, from one line to another."""
    o_row = tl.arange(0, 4)
    mask = (o_row < 3)[:, None] & (o_channel < below)[None, :]
    o_place = o_row[:, None] * CHANNELS + o_channel[None, :]
    tl.store(p_to + o_place, tl.load(p_from + o_place, mask=mask, other=0.0), mask=mask)


@triton.jit
def _keep_last(p_x, x_stride, p_from, p_to, o_channel, below, valid, CHANNELS: tl.constexpr):
    """The last 3 of (3 inputs of the line, `valid` rows of x) to the other line's beginning."""
    o_row = tl.arange(0, 4)
    mask = (o_row < 3)[:, None] & (o_channel < below)[None, :]
    o_input = valid + o_row - 3
    is_new = (o_input >= 0)[:, None]
    b_new = tl.load(p_x + o_input[:, None] * x_stride + o_channel[None, :], mask=mask & is_new, other=0.0)
    p_old = p_from + (3 + o_input)[:, None] * CHANNELS + o_channel[None, :]
    b_old = tl.load(p_old, mask=mask & (o_input < 0)[:, None], other=0.0)
    tl.store(p_to + o_row[:, None] * CHANNELS + o_channel[None, :], tl.where(is_new, b_new, b_old), mask=mask)


@triton.jit
def _ring_row(t, kept, read, write, BLOCK: tl.constexpr):
    """Where the ring holds the row at loop index t, and whether it is one of this block."""
    is_new = t >= kept
    return tl.where(is_new, write * BLOCK + t - kept, read * BLOCK + t), is_new


@triton.jit
def _load_row(
    p_k,
    p_v,
    p_gates,
    p_queries,
    o_ring,
    query_row,
    is_there,
    is_new,
    key_head,
    i_head,
    o_k,
    o_v,
    BLOCK: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
):
    """Key, query, value, decay, beta and key . query of a row; what is not there is zero."""
    b_k = tl.load(p_k + (o_ring * KEY_HEADS + key_head) * K + o_k, mask=o_k < tl.where(is_there, K, 0), other=0.0)
    b_v = tl.load(p_v + (o_ring * HEADS + i_head) * V + o_v, mask=o_v < tl.where(is_there, V, 0), other=0.0)
    decay = tl.load(p_gates + o_ring * 2 * HEADS + i_head, mask=is_there, other=0.0)
    beta = tl.load(p_gates + (o_ring * 2 + 1) * HEADS + i_head, mask=is_there, other=0.0)
    o_pair = query_row * KEY_HEADS + key_head
    b_q = tl.load(p_queries + o_pair * K + o_k, mask=o_k < tl.where(is_new, K, 0), other=0.0)
    kq = tl.load(p_queries + BLOCK * KEY_HEADS * K + o_pair, mask=is_new, other=0.0)
    return b_k, b_q, b_v.to(tl.float32), decay, beta, kq
