"""The gated delta rule for a prompt's rows, in chunks of 64: three launches.

Tensors and rules: `plain/gated_delta_prefill.py`, the maths in `plain/gated_delta.py` (`chunk`).

    enter   rows in parallel: convolution, SiLU, norms, gates                         -> q, k, v, log decay, beta
    solve   chunks and heads in parallel: q k^T, decayed, and (I + L)^-1 by 63 steps of elimination in fp32, applied
            to the keys and to the values                                             -> alike, reading, wanted
    walk    heads and tiles of V in parallel, chunk after chunk with the state in registers:
            change = wanted - reading S;  out = e^g q S + alike change;  S = e^g S + k^T change

Matrices are multiplied in the inputs' type with fp32 sums; decays, the elimination and the state itself are fp32.
Fillers have zero keys, values, gates: they neither decay the state nor write to it.

Cost: x is read once, q, k, v, reading and wanted are written and read once; the walk has one step of four small
products per chunk. Exactness: a chunk's bits depend on its rows and the state before it; against the twin as it says.
Checked by: tests/inference_node/kernels/triton/test_gated_delta_prefill.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from inference_node.kernels.plain.gated_delta import CHUNK
from inference_node.kernels.plain.gated_delta_step import TAPS, DeltaWeights
from inference_node.kernels.triton.gated_delta_step import convolve

ENTER_ROWS = 16


@dataclass(frozen=True, slots=True)
class Tiles:
    values: int  # columns of the state of one program of `walk`
    piece: int  # columns that `solve` multiplies at once
    enter_warps: int
    solve_warps: int
    walk_warps: int
    walk_stages: int


WALK_HINTS = {"waves_per_eu": 2} if torch.version.hip else {}
"""For gfx1151's compiler, which otherwise keeps too much at once and spills."""


def tiles(device: str) -> Tiles:
    if device == "hip":
        return Tiles(values=32, piece=32, enter_warps=4, solve_warps=8, walk_warps=8, walk_stages=1)
    return Tiles(values=32, piece=64, enter_warps=4, solve_warps=4, walk_warps=4, walk_stages=2)


def prefill(
    x: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    weights: DeltaWeights,
    valid: int,
    state: torch.Tensor,
    tail: torch.Tensor,
    out: torch.Tensor,
    *,
    cut: Tiles | None = None,
) -> None:
    """See the twin. `cut` is for measurements."""
    n, channels = x.shape
    heads, width, value_width = state.shape
    key_heads = (channels - heads * value_width) // (2 * width)
    if n % CHUNK or not 0 < valid <= n:
        raise ValueError(f"{valid} valid of {n} rows; expected 1 to n of n, n a multiple of {CHUNK}")
    for name, rows, columns in (("x", x, channels), ("b", b, heads), ("a", a, heads)):
        if tuple(rows.shape) != (n, columns) or rows.stride(1) != 1:
            raise ValueError(f"{name} is {tuple(rows.shape)}; expected {(n, columns)} with contiguous rows")
    for name, whole, shape in (("tail", tail, (TAPS - 1, channels)), ("out", out, (n, heads, value_width))):
        if tuple(whole.shape) != shape or not whole.is_contiguous():
            raise ValueError(f"{name} is {tuple(whole.shape)}; expected contiguous {shape}")
    if not state.is_contiguous() or tuple(weights.conv.shape) != (channels, TAPS):
        raise ValueError(f"state {tuple(state.shape)} must be contiguous, conv be {(channels, TAPS)}")
    cut = cut or tiles("hip" if torch.version.hip else "cuda")
    q, k = (torch.empty(n, key_heads, width, dtype=x.dtype, device=x.device) for _ in range(2))
    alike = torch.empty(n, heads, CHUNK, dtype=x.dtype, device=x.device)
    reading = torch.empty(n, heads, width, dtype=x.dtype, device=x.device)
    v, wanted = (torch.empty(n, heads, value_width, dtype=x.dtype, device=x.device) for _ in range(2))
    decay, beta = (torch.empty(n, heads, dtype=torch.float32, device=x.device) for _ in range(2))
    sizes = {"KEY_HEADS": key_heads, "HEADS": heads, "K": width, "V": value_width}
    _enter[(triton.cdiv(n, ENTER_ROWS), key_heads + heads)](
        x, b, a, weights.conv, weights.rate, weights.shift, tail, q, k, v, decay, beta,
        x.stride(0), b.stride(0), a.stride(0), valid,
        ROWS=ENTER_ROWS, **sizes, num_warps=cut.enter_warps, num_stages=1, enable_fp_fusion=False,
    )  # fmt: skip
    _solve[(n // CHUNK, heads)](
        q, k, v, decay, beta, alike, reading, wanted, valid,
        CHUNK=CHUNK, PIECE=min(cut.piece, width, value_width), **sizes,
        num_warps=cut.solve_warps, num_stages=1, enable_fp_fusion=False,
    )  # fmt: skip
    values = min(cut.values, value_width)
    _walk[(heads, value_width // values)](
        x, q, k, decay, alike, reading, wanted, state, tail, out, x.stride(0), valid, n // CHUNK,
        CHUNK=CHUNK, V_TILE=values, **sizes,
        num_warps=cut.walk_warps, num_stages=cut.walk_stages, enable_fp_fusion=False, **WALK_HINTS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["valid"])
def _enter(
    p_x,
    p_b,
    p_a,
    p_conv,
    p_rate,
    p_shift,
    p_tail,
    p_q,
    p_k,
    p_v,
    p_decay,
    p_beta,
    x_stride,
    b_stride,
    a_stride,
    valid,
    ROWS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
):
    i_tile, i_part = tl.program_id(0), tl.program_id(1)
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * K + HEADS * V
    o_row = i_tile * ROWS + tl.arange(0, ROWS)
    is_row = o_row < valid
    if i_part < KEY_HEADS:
        o_k = tl.arange(0, K)
        o_query = i_part * K + o_k
        b_q, _ = convolve(p_x, x_stride, p_tail, p_conv, o_query, o_row, is_row, CHANNELS)
        b_k, _ = convolve(p_x, x_stride, p_tail, p_conv, KEY_HEADS * K + o_query, o_row, is_row, CHANNELS)
        b_q = b_q * tl.rsqrt(tl.sum(b_q * b_q, 1) + 1e-6)[:, None] * (K**-0.5)
        b_k = b_k * tl.rsqrt(tl.sum(b_k * b_k, 1) + 1e-6)[:, None]
        o_to = (o_row.to(tl.int64) * KEY_HEADS + i_part)[:, None] * K + o_k[None, :]
        tl.store(p_q + o_to, b_q.to(p_q.dtype.element_ty))
        tl.store(p_k + o_to, b_k.to(p_k.dtype.element_ty))
    else:
        i_head = i_part - KEY_HEADS
        o_v = tl.arange(0, V)
        o_value = 2 * KEY_HEADS * K + i_head * V + o_v
        b_v, _ = convolve(p_x, x_stride, p_tail, p_conv, o_value, o_row, is_row, CHANNELS)
        o_to = (o_row.to(tl.int64) * HEADS + i_head)[:, None] * V + o_v[None, :]
        tl.store(p_v + o_to, b_v.to(p_v.dtype.element_ty))
        b_b = tl.load(p_b + o_row * b_stride + i_head, mask=is_row, other=0.0).to(tl.float32)
        b_a = tl.load(p_a + o_row * a_stride + i_head, mask=is_row, other=0.0).to(tl.float32)
        b_a += tl.load(p_shift + i_head)
        b_soft = tl.where(b_a > 20.0, b_a, tl.log(1.0 + tl.exp(tl.minimum(b_a, 20.0))))
        b_decay = -tl.load(p_rate + i_head) * b_soft
        tl.store(p_decay + o_row * HEADS + i_head, tl.where(is_row, b_decay, 0.0))
        tl.store(p_beta + o_row * HEADS + i_head, tl.where(is_row, 1.0 / (1.0 + tl.exp(-b_b)), 0.0))


@triton.jit(do_not_specialize=["valid"])
def _solve(
    p_q,
    p_k,
    p_v,
    p_decay,
    p_beta,
    p_alike,
    p_reading,
    p_wanted,
    valid,
    CHUNK: tl.constexpr,
    PIECE: tl.constexpr,  # columns of keys and values that are multiplied at once
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
):
    i_chunk, i_head = tl.program_id(0), tl.program_id(1)
    if i_chunk * CHUNK < valid:
        key_head = i_head // (HEADS // KEY_HEADS)
        o_row = tl.arange(0, CHUNK)
        o_piece = tl.arange(0, PIECE)
        o_token = (i_chunk * CHUNK + o_row).to(tl.int64)
        o_keys = (o_token * KEY_HEADS + key_head)[:, None] * K + o_piece[None, :]
        b_since = tl.cumsum(tl.load(p_decay + o_token * HEADS + i_head), 0)
        b_beta = tl.load(p_beta + o_token * HEADS + i_head)
        b_system = tl.zeros([CHUNK, CHUNK], tl.float32)
        b_alike = tl.zeros([CHUNK, CHUNK], tl.float32)
        for piece in range(0, K, PIECE):
            b_k = tl.load(p_k + o_keys + piece)
            b_q = tl.load(p_q + o_keys + piece)
            b_system = tl.dot(b_k, tl.trans(b_k), b_system, input_precision="ieee")
            b_alike = tl.dot(b_q, tl.trans(b_k), b_alike, input_precision="ieee")
        b_between = b_since[:, None] - b_since[None, :]
        b_between = tl.exp(tl.where(o_row[:, None] >= o_row[None, :], b_between, float("-inf")))
        p_to_alike = p_alike + (o_token * HEADS + i_head)[:, None] * CHUNK + o_row[None, :]
        tl.store(p_to_alike, (b_alike * b_between).to(p_alike.dtype.element_ty))
        b_system = b_system * b_beta[:, None] * tl.where(o_row[:, None] > o_row[None, :], b_between, 0.0)
        b_inverse = (o_row[:, None] == o_row[None, :]).to(tl.float32)
        for row in range(CHUNK - 1):  # each later row loses its share of this one
            b_share = tl.sum(tl.where(o_row[None, :] == row, b_system, 0.0), 1)
            b_done = tl.sum(tl.where(o_row[:, None] == row, b_inverse, 0.0), 0)
            b_inverse = b_inverse - b_share[:, None] * b_done[None, :]
        b_inverse = b_inverse.to(p_k.dtype.element_ty)
        b_reach = (b_beta * tl.exp(b_since))[:, None]
        for piece in range(0, K, PIECE):
            b_k = tl.load(p_k + o_keys + piece)
            b_reading = tl.dot(b_inverse, (b_k.to(tl.float32) * b_reach).to(b_k.dtype), input_precision="ieee")
            p_to = p_reading + (o_token * HEADS + i_head)[:, None] * K + piece + o_piece[None, :]
            tl.store(p_to, b_reading.to(p_reading.dtype.element_ty))
        for piece in range(0, V, PIECE):
            o_values = (o_token * HEADS + i_head)[:, None] * V + piece + o_piece[None, :]
            b_v = tl.load(p_v + o_values)
            b_wanted = tl.dot(b_inverse, (b_v.to(tl.float32) * b_beta[:, None]).to(b_v.dtype), input_precision="ieee")
            tl.store(p_wanted + o_values, b_wanted.to(p_wanted.dtype.element_ty))


@triton.jit(do_not_specialize=["valid", "chunks"])
def _walk(
    p_x,
    p_q,
    p_k,
    p_decay,
    p_alike,
    p_reading,
    p_wanted,
    p_state,
    p_tail,
    p_out,
    x_stride,
    valid,
    chunks,
    CHUNK: tl.constexpr,
    V_TILE: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
):
    i_head, i_tile = tl.program_id(0), tl.program_id(1)
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * K + HEADS * V
    SHARE: tl.constexpr = HEADS // KEY_HEADS
    key_head = i_head // SHARE
    o_row = tl.arange(0, CHUNK)
    HALF: tl.constexpr = K // 2  # the state is held in two halves, so that no product needs all of K in registers
    o_half = tl.arange(0, HALF)
    o_v = i_tile * V_TILE + tl.arange(0, V_TILE)
    p_low = p_state + (i_head * K + o_half)[:, None] * V + o_v[None, :]
    b_low = tl.load(p_low)
    b_high = tl.load(p_low + HALF * V)
    full = (valid + CHUNK - 1) // CHUNK
    o_heads = o_row * HEADS + i_head
    o_keys = (o_row * KEY_HEADS + key_head)[:, None] * K + o_half[None, :]
    o_reading = o_heads[:, None] * K + o_half[None, :]
    o_values = o_heads[:, None] * V + o_v[None, :]
    for chunk in range(0, full):
        since = tl.cast(chunk, tl.int64) * CHUNK
        p_q_rows = p_q + since * KEY_HEADS * K + o_keys
        p_k_rows = p_k + since * KEY_HEADS * K + o_keys
        p_read = p_reading + since * HEADS * K + o_reading
        b_decay = tl.load(p_decay + since * HEADS + o_heads)
        b_since = tl.cumsum(b_decay, 0)
        whole = tl.sum(b_decay, 0)
        element = p_k.dtype.element_ty
        b_held_low, b_held_high = b_low.to(element), b_high.to(element)
        b_seen = tl.dot(tl.load(p_read), b_held_low, input_precision="ieee")
        b_seen = tl.dot(tl.load(p_read + HALF), b_held_high, b_seen, input_precision="ieee")
        b_change = tl.load(p_wanted + since * HEADS * V + o_values).to(tl.float32) - b_seen
        b_out = tl.dot(tl.load(p_q_rows), b_held_low, input_precision="ieee")
        b_out = tl.dot(tl.load(p_q_rows + HALF), b_held_high, b_out, input_precision="ieee")
        b_out = b_out * tl.exp(b_since)[:, None]
        b_alike = tl.load(p_alike + since * HEADS * CHUNK + o_heads[:, None] * CHUNK + o_row[None, :])
        b_out = tl.dot(b_alike, b_change.to(element), b_out, input_precision="ieee")
        b_out = tl.where((chunk * CHUNK + o_row < valid)[:, None], b_out, 0.0)
        tl.store(p_out + since * HEADS * V + o_values, b_out.to(p_out.dtype.element_ty))
        b_left = (b_change * tl.exp(whole - b_since)[:, None]).to(element)
        b_low = tl.dot(tl.trans(tl.load(p_k_rows)), b_left, b_low * tl.exp(whole), input_precision="ieee")
        b_high = tl.dot(tl.trans(tl.load(p_k_rows + HALF)), b_left, b_high * tl.exp(whole), input_precision="ieee")
    tl.store(p_low, b_low)
    tl.store(p_low + HALF * V, b_high)
    for chunk in range(full, chunks):
        p_fillers = p_out + tl.cast(chunk, tl.int64) * CHUNK * HEADS * V + o_values
        tl.store(p_fillers, tl.zeros([CHUNK, V_TILE], p_out.dtype.element_ty))
    # Of the programs that share a key head, one keeps the tail of its channels: all channels below this are its own.
    own_keys = tl.where((i_tile == 0) & (i_head % SHARE == 0), CHANNELS, 0)
    o_query = key_head * K + tl.arange(0, K)
    _move_tail(p_x, x_stride, p_tail, o_query, own_keys, valid, CHANNELS)
    _move_tail(p_x, x_stride, p_tail, KEY_HEADS * K + o_query, own_keys, valid, CHANNELS)
    _move_tail(p_x, x_stride, p_tail, 2 * KEY_HEADS * K + i_head * V + o_v, CHANNELS, valid, CHANNELS)


@triton.jit
def _move_tail(p_x, x_stride, p_tail, o_channel, below, valid, CHANNELS: tl.constexpr):
    """The last 3 of (tail, `valid` rows of x) become the tail. Rows of the old one are read before any is written."""
    o_row = tl.arange(0, 4)
    mask = (o_row < 3)[:, None] & (o_channel < below)[None, :]
    o_input = valid + o_row - 3
    is_new = (o_input >= 0)[:, None]
    b_new = tl.load(p_x + o_input[:, None] * x_stride + o_channel[None, :], mask=mask & is_new, other=0.0)
    p_old = p_tail + (3 + o_input)[:, None] * CHANNELS + o_channel[None, :]
    b_old = tl.load(p_old, mask=mask & (o_input < 0)[:, None], other=0.0)
    tl.debug_barrier()
    tl.store(p_tail + o_row[:, None] * CHANNELS + o_channel[None, :], tl.where(is_new, b_new, b_old), mask=mask)
