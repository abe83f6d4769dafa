"""A whole mixture of experts for a block of 1 to 16 rows in one launch: norm, router, both products, the weighted sum.

Tensors and rules: `plain/mixture.py`. A launch costs some 3 us of start and drain, as much as 12 MB of weights, and one
row's experts weigh 57 MB; so the four launches that this takes otherwise were a third of its time. Here a fixed number
of programs take pieces of work one after another from a counter:

    score     16 router rows times a part of K, for all rows; and one piece per row that normalises it for the experts
    choose    one row: parts added in order, its best experts. Waits for all the above
    up        some gate and up rows of one woken expert, SiLU(gate) * up. All wait for all choices
    down      some output features of one woken expert. Its weight is on the way before it waits for that expert's `up`.
              Whoever finishes the last expert of these features adds up all experts' parts, in the order of the choice

A piece waits only for pieces with lower numbers, which running programs have taken already: no program can wait for
one that is not there, whatever the device has room for. The counters are the room's marks (marks.py), zero at the
start.

Cost: each woken expert's weights once: (2 + 1) * I * K elements; rows * (top + 1) * K * 8 bytes of parts, in the cache.
Exactness: a row's choice, products and sum have fixed orders and depend on no other row: an expert that it did not
choose leaves it untouched, not merely adding zero. No atomics in sums. Against the twin: order of fp32 sums.
Checked by: tests/inference_node/kernels/triton/test_mixture.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference_node.kernels.plain.linear import GROUP, ROWS, Feed
from inference_node.kernels.plain.mixture import APART, NARROWEST, Room, marks_for
from inference_node.kernels.plain.packed import BLOCK as FP4_BLOCK
from inference_node.kernels.plain.packed import Weight
from inference_node.kernels.plain.route import PARTS
from inference_node.kernels.triton import tiles
from inference_node.kernels.triton.linear import store_feed
from inference_node.kernels.triton.marks import finish, wait
from inference_node.kernels.triton.packed import fp4_values, operand

SPINS = 1 << 18


def mixture(
    x: torch.Tensor,
    factor: torch.Tensor,
    router: torch.Tensor,
    up: Weight,
    down: Weight,
    valid: torch.Tensor,
    room: Room,
    out: torch.Tensor,
    *,
    eps: float = 1e-6,
    renormalise: bool = True,
    imposed: torch.Tensor | None = None,
    feed: Feed | None = None,
    fresh: bool = False,
    tile: tiles.MixtureTile | None = None,
) -> torch.Tensor:
    """Returns `out`. fresh: the room's marks are zero already. `tile` is for measuring only."""
    plan = room.plan
    rows, k = x.shape
    stack, twice, _ = up.shape
    width, n = twice // 2, plan.experts + plan.shared
    if rows > ROWS or x.stride(1) != 1 or tuple(out.shape) != (rows, k) or out.stride(1) != 1:
        raise ValueError(f"x {tuple(x.shape)} and out {tuple(out.shape)} must be at most {ROWS} contiguous rows alike")
    if tuple(router.shape) != (n, k) or not router.is_contiguous() or router.dtype != x.dtype:
        raise ValueError(f"router is {router.dtype} {tuple(router.shape)}; expected contiguous {x.dtype} {(n, k)}")
    if tuple(factor.shape) != (k,):
        raise ValueError(f"norm has {tuple(factor.shape)} factors; expected {k}")
    if imposed is not None and (tuple(imposed.shape) != (ROWS, plan.top) or not imposed.is_contiguous()):
        raise ValueError(f"imposed experts are {tuple(imposed.shape)}; expected {(ROWS, plan.top)}")
    if stack != n or tuple(up.shape) != (n, twice, k) or tuple(down.shape) != (n, k, width) or up.kind != down.kind:
        raise ValueError(
            f"experts are {up.kind} {tuple(up.shape)} and {down.kind} {tuple(down.shape)}; the plan is for {n}, the "
            f"shared one included, of rows of {k}"
        )
    for name, tensor, shape in (
        ("normed", room.normed, (ROWS, k)),
        ("hidden", room.hidden, (ROWS, plan.top + 1, width)),
        ("partial", room.partial, (ROWS, plan.top + 1, k)),
        ("feed", out if feed is None else feed.scaled, (rows, k)),
    ):
        if tuple(tensor.shape) != shape or not tensor.is_contiguous():
            raise ValueError(f"{name} is {tuple(tensor.shape)}; expected contiguous {shape}")
    tile = (tile or tiles.mixture(up.kind)).within(k, width)
    if room.marks.shape[0] < marks_for(room.slots, k) or tile.down_n < NARROWEST:
        raise ValueError(f"{room.marks.shape[0]} marks are too few for {room.slots} experts and rows of {k}")
    if not fresh:
        room.marks.zero_()
    part = triton.cdiv(k, PARTS)
    up_data, up_scale, kind = operand(up)
    down_data, down_scale, _ = operand(down)
    _mixture[(tiles.cores(x.device) * tile.per_core,)](
        x,
        factor,
        router,
        up_data,
        up_scale,
        down_data,
        down_scale,
        imposed if imposed is not None else plan.expert,
        valid,
        room.marks,
        plan.parts,
        room.normed,
        plan.expert,
        plan.weight,
        plan.place,
        room.mask,
        plan.count,
        room.hidden,
        room.partial,
        out,
        feed.factor if feed is not None else out,
        feed.scaled if feed is not None else out,
        feed.squares if feed is not None else out,
        x.stride(0),
        out.stride(0),
        eps,
        RENORMALISE=renormalise,
        IMPOSED=imposed is not None,
        FEED=feed is not None,
        E=plan.experts,
        PLACES=plan.place.shape[1],
        WORDS=room.mask.shape[1],
        SHARED=plan.shared,
        SLOTS=room.slots,
        TOP=plan.top,
        I=width,
        K=k,
        PART=part,
        PARTS=PARTS,
        KIND=kind,
        ROWS=ROWS,
        GROUP=GROUP,
        SCORE_N=tile.score_n,
        SCORE_K=max(16, min(tile.score_k, triton.next_power_of_2(part))),
        ROW_BLOCK=triton.next_power_of_2(k),
        UP_N=tile.up_n,
        UP_K=tile.up_k,
        DOWN_N=tile.down_n,
        DOWN_K=tile.down_k,
        WK=tile.wk,
        FP4_BLOCK=FP4_BLOCK,
        APART=APART,
        SPINS=SPINS,
        num_warps=tile.warps,
        num_stages=tiles.stages(tile),
        enable_fp_fusion=False,
    )
    return out


@triton.jit
def _mixture(
    p_x,
    p_factor,
    p_router,
    p_up,
    p_up_scale,
    p_down,
    p_down_scale,
    p_imposed,
    p_valid,
    p_marks,
    p_parts,
    p_normed,
    p_expert,
    p_weight,
    p_place,
    p_mask,
    p_count,
    p_hidden,
    p_partial,
    p_out,
    p_next_factor,
    p_fed,
    p_fed_squares,
    x_stride,
    out_stride,
    eps,
    RENORMALISE: tl.constexpr,
    IMPOSED: tl.constexpr,
    FEED: tl.constexpr,
    E: tl.constexpr,
    PLACES: tl.constexpr,
    WORDS: tl.constexpr,
    SHARED: tl.constexpr,
    SLOTS: tl.constexpr,
    TOP: tl.constexpr,
    I: tl.constexpr,  # noqa: E741 (the intermediate size, as in the docstring)
    K: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    SCORE_N: tl.constexpr,
    SCORE_K: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    UP_N: tl.constexpr,
    UP_K: tl.constexpr,
    DOWN_N: tl.constexpr,
    DOWN_K: tl.constexpr,
    WK: tl.constexpr,
    FP4_BLOCK: tl.constexpr,
    APART: tl.constexpr,
    SPINS: tl.constexpr,
):
    SCORES: tl.constexpr = (E + SHARED + SCORE_N - 1) // SCORE_N * PARTS
    BEFORE: tl.constexpr = SCORES + ROWS
    FRONT: tl.constexpr = BEFORE + ROWS
    UP_TILES: tl.constexpr = (2 * I + UP_N - 1) // UP_N
    DOWN_TILES: tl.constexpr = (K + DOWN_N - 1) // DOWN_N
    p_scored, p_chosen = p_marks + APART, p_marks + 2 * APART
    p_upped = p_marks + 3 * APART
    p_downed = p_upped + SLOTS * APART
    valid = tl.load(p_valid)
    o_row = tl.arange(0, ROWS)

    piece = tl.atomic_add(p_marks, 1, sem="relaxed")
    while piece < FRONT:
        if piece < SCORES:
            if valid > 0:
                _score(p_x, x_stride, p_factor, p_router, p_parts, piece, valid, E, SHARED, K, PART, ROWS,
                       SCORE_N, SCORE_K)  # fmt: skip
            finish(p_scored)
        elif piece < BEFORE:
            if piece - SCORES < valid:
                _normalise(p_x, x_stride, p_factor, p_normed, piece - SCORES, eps, K, ROW_BLOCK)
            finish(p_scored)
        else:
            i_row = piece - BEFORE
            if (i_row < valid) & (valid > 1):
                wait(p_scored, BEFORE, SPINS)
                _choose(p_parts, p_imposed, p_expert, p_weight, p_place, p_mask, i_row, eps, E, PLACES, WORDS, TOP,
                        SHARED, RENORMALISE, IMPOSED, K, ROWS, PARTS)  # fmt: skip
            finish(p_chosen)
        piece = tl.atomic_add(p_marks, 1, sem="relaxed")

    if valid == 1:  # sooner made by everybody than waited for: all write the same
        wait(p_scored, BEFORE, SPINS)
        _choose(p_parts, p_imposed, p_expert, p_weight, p_place, p_mask, 0, eps, E, PLACES, WORDS, TOP,
                SHARED, RENORMALISE, IMPOSED, K, ROWS, PARTS)  # fmt: skip
        tl.debug_barrier()
    else:
        wait(p_chosen, ROWS, SPINS)
    # Which experts are woken, from the rows' choices as bits: [ROWS, WORDS], and which of them each one is.
    o_word, o_bit = tl.arange(0, WORDS), tl.arange(0, 32)
    b_mask = tl.load(p_mask + o_row[:, None] * WORDS + o_word[None, :], mask=(o_row < valid)[:, None], other=0)
    b_woken = (tl.reduce(b_mask, 0, _or)[:, None] >> o_bit[None, :]) & 1
    b_by_word = tl.sum(b_woken, 1)
    b_order = (tl.cumsum(b_by_word, 0) - b_by_word)[:, None] + tl.cumsum(b_woken, 1)  # from 1 on
    routed = tl.sum(b_by_word, 0)
    slots = routed
    if SHARED:
        slots = routed + (valid > 0).to(tl.int32)
    if piece == FRONT:
        tl.store(p_count, slots)
        tl.store(p_count + 1, routed)
    ups = FRONT + slots * UP_TILES
    pieces = ups + slots * DOWN_TILES
    while piece < pieces:
        is_up = piece < ups
        slot = tl.where(is_up, (piece - FRONT) // UP_TILES, (piece - ups) // DOWN_TILES)
        i_tile = tl.where(is_up, (piece - FRONT) % UP_TILES, (piece - ups) % DOWN_TILES)
        b_is_it = (b_woken == 1) & (b_order == slot + 1)
        e = tl.sum(tl.sum(tl.where(b_is_it, o_word[:, None] * 32 + o_bit[None, :], 0), 1), 0)
        if SHARED:
            e = tl.where(slot == routed, E, e)
        b_own = tl.sum(tl.where((o_word == e // 32)[None, :], b_mask >> (e % 32), 0), 1) & 1
        is_row = b_own == 1
        if SHARED:
            is_row = tl.where(slot == routed, o_row < valid, is_row)
        b_rank = tl.load(p_place + o_row * PLACES + e, mask=is_row, other=0).to(tl.int32)
        if is_up:
            _up(p_normed, p_up, p_up_scale, p_hidden, e, i_tile, b_rank, is_row, I, K, TOP, KIND, ROWS, UP_N, UP_K,
                FP4_BLOCK)  # fmt: skip
            finish(p_upped + slot * APART)
        else:
            _down(p_hidden, p_down, p_down_scale, p_weight, p_partial, p_upped + slot * APART, e, i_tile, b_rank,
                  is_row, UP_TILES, I, K, TOP, KIND, ROWS, DOWN_N, DOWN_K, WK, FP4_BLOCK, SPINS)  # fmt: skip
            if finish(p_downed + i_tile * APART) == slots - 1:
                o_n = i_tile * DOWN_N + tl.arange(0, DOWN_N)
                is_out = (o_row < valid)[:, None] & (o_n < K)[None, :]
                b_total = tl.zeros([ROWS, DOWN_N], tl.float32)
                for rank in tl.static_range(TOP + SHARED):
                    p_part = p_partial + (o_row * (TOP + 1) + rank)[:, None] * K + o_n[None, :]
                    b_total += tl.load(p_part, mask=is_out, other=0.0)
                p_from = p_x + o_row[:, None] * x_stride + o_n[None, :]
                b_total += tl.load(p_from, mask=is_out, other=0.0).to(tl.float32)
                b_row = b_total.to(p_out.dtype.element_ty)
                tl.store(p_out + o_row[:, None] * out_stride + o_n[None, :], b_row, mask=is_out)
                if FEED:
                    store_feed(b_row, p_next_factor, p_fed, p_fed_squares, o_row, o_n, is_out, i_tile, K, GROUP, ROWS,
                               DOWN_N)  # fmt: skip
        piece = tl.atomic_add(p_marks, 1, sem="relaxed")


@triton.jit
def _or(a, b):
    return a | b


@triton.jit
def _normalise(p_x, x_stride, p_factor, p_normed, i_row, eps, K: tl.constexpr, ROW_BLOCK: tl.constexpr):
    o_d = tl.arange(0, ROW_BLOCK)
    b_row = tl.load(p_x + i_row * x_stride + o_d, mask=o_d < K, other=0.0).to(tl.float32)
    b_row = b_row * tl.rsqrt(tl.sum(b_row * b_row, 0) / K + eps)
    b_row = b_row * tl.load(p_factor + o_d, mask=o_d < K, other=0.0)
    tl.store(p_normed + i_row * K + o_d, b_row.to(p_normed.dtype.element_ty), mask=o_d < K)


@triton.jit
def _score(
    p_x,
    x_stride,
    p_factor,
    p_router,
    p_parts,
    piece,
    valid,
    E: tl.constexpr,
    SHARED: tl.constexpr,
    K: tl.constexpr,
    PART: tl.constexpr,
    ROWS: tl.constexpr,
    SCORE_N: tl.constexpr,
    SCORE_K: tl.constexpr,
):
    """Router rows times a part of K, and once per part the rows' squares."""
    N: tl.constexpr = E + SHARED
    N_TILES: tl.constexpr = (N + SCORE_N - 1) // SCORE_N
    i_part = piece // N_TILES
    i_tile = piece % N_TILES
    o_n = i_tile * SCORE_N + tl.arange(0, SCORE_N)
    o_row = tl.arange(0, ROWS)
    is_row = o_row < valid
    type: tl.constexpr = p_x.dtype.element_ty
    b_sum = tl.zeros([ROWS, SCORE_N], tl.float32)
    b_square = tl.zeros([ROWS, SCORE_K], tl.float32)
    end = tl.minimum((i_part + 1) * PART, K)
    for k in range(0, PART, SCORE_K):
        o_k = i_part * PART + k + tl.arange(0, SCORE_K)
        is_k = o_k < end
        b_w = tl.load(p_router + o_n[None, :] * K + o_k[:, None], mask=(o_n < N)[None, :] & is_k[:, None], other=0.0)
        b_x = tl.load(
            p_x + o_row[:, None] * x_stride + o_k[None, :], mask=is_row[:, None] & is_k[None, :], other=0.0
        ).to(tl.float32)
        b_square += b_x * b_x
        b_factor = tl.load(p_factor + o_k, mask=is_k, other=0.0)
        b_sum = tl.dot((b_x * b_factor[None, :]).to(type), b_w, b_sum, input_precision="ieee")
    p_rows = p_parts + (i_part * ROWS + o_row) * (E + 2)
    tl.store(p_rows[:, None] + o_n[None, :], b_sum, mask=is_row[:, None] & (o_n < N)[None, :])
    if i_tile == 0:
        tl.store(p_rows + E + 1, tl.sum(b_square, 1), mask=is_row)


@triton.jit
def _choose(
    p_parts,
    p_imposed,
    p_expert,
    p_weight,
    p_place,
    p_mask,
    i_row,
    eps,
    E: tl.constexpr,
    PLACES: tl.constexpr,
    WORDS: tl.constexpr,
    TOP: tl.constexpr,
    SHARED: tl.constexpr,
    RENORMALISE: tl.constexpr,
    IMPOSED: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """One row's experts and their weights."""
    BLOCK_E: tl.constexpr = WORDS * 32
    o_e = tl.arange(0, BLOCK_E)
    is_e = o_e < E
    p_row = p_parts + i_row * (E + 2)
    b_logit = tl.zeros([BLOCK_E], tl.float32)
    square = 0.0
    gate = 0.0
    for part in tl.static_range(PARTS):
        b_logit += tl.load(p_row + part * ROWS * (E + 2) + o_e, mask=is_e, other=0.0)
        square += tl.load(p_row + part * ROWS * (E + 2) + E + 1)
        if SHARED:
            gate += tl.load(p_row + part * ROWS * (E + 2) + E)
    unit = tl.rsqrt(square / K + eps)
    b_logit = tl.where(is_e, b_logit * unit, float("-inf"))

    b_chosen = tl.zeros([BLOCK_E], tl.int32)
    if IMPOSED:
        for rank in tl.static_range(TOP):
            b_chosen = tl.where(o_e == tl.load(p_imposed + i_row * TOP + rank), 1, b_chosen)
    else:
        # One integer that orders as the logit does, and among equal ones (0.0 and -0.0 too) by the lowest id.
        b_bits = tl.where(b_logit == 0.0, 0.0, b_logit).to(tl.int32, bitcast=True)
        b_order = b_bits ^ ((b_bits >> 31) & 0x7FFFFFFF)
        b_key = b_order.to(tl.int64) * 4096 + (4095 - o_e)
        for _ in tl.static_range(TOP):
            best = tl.max(b_key, 0)
            is_best = b_key == best
            b_chosen = tl.where(is_best, 1, b_chosen)
            b_key = tl.where(is_best, -0x7FFFFFFFFFFFFFFF, b_key)
    is_chosen = (b_chosen == 1) & is_e
    b_power = tl.exp(b_logit - tl.max(b_logit, 0))
    mass = tl.sum(tl.where(is_chosen, b_power, 0.0), 0) if RENORMALISE else tl.sum(b_power, 0)
    b_rank = tl.cumsum(is_chosen.to(tl.int32), 0) - 1
    tl.store(p_weight + i_row * (TOP + 1) + b_rank, b_power / mass, mask=is_chosen)
    tl.store(p_expert + i_row * TOP + b_rank, o_e, mask=is_chosen)
    tl.store(p_place + i_row * PLACES + o_e, b_rank.to(tl.int8), mask=is_chosen)
    b_bit = tl.reshape(is_chosen.to(tl.int32), [WORDS, 32]) << tl.arange(0, 32)[None, :]
    tl.store(p_mask + i_row * WORDS + tl.arange(0, WORDS), tl.sum(b_bit, 1))
    if SHARED:
        tl.store(p_place + i_row * PLACES + E, TOP)
        tl.store(p_weight + i_row * (TOP + 1) + TOP, 1.0 / (1.0 + tl.exp(-gate * unit)))


@triton.jit
def _up(
    p_h,
    p_w,
    p_scale,
    p_hidden,
    e,
    i_tile,
    b_rank,
    is_row,
    I: tl.constexpr,  # noqa: E741
    K: tl.constexpr,
    TOP: tl.constexpr,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FP4_BLOCK: tl.constexpr,
):
    """Gate and up rows alternate in a tile, so that both of a pair come out of one product as neighbours."""
    o_row = tl.arange(0, ROWS)
    o_column = i_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    is_n = o_column < 2 * I
    o_n = o_column // 2 + (o_column % 2) * I
    p_w_e, p_scale_e = _expert(p_w, p_scale, e, 2 * I, K, KIND, FP4_BLOCK)
    b_sum = tl.zeros([ROWS, BLOCK_N], tl.float32)
    for k in range(0, K, BLOCK_K):
        if KIND == 2:
            b_sum = _fp4_product(b_sum, p_h + o_row * K, is_row, p_w_e, p_scale_e, o_n, is_n, k, K, BLOCK_K, FP4_BLOCK)
        else:
            b_w = _weights(p_w_e, o_n, is_n, k, K, BLOCK_K)
            b_x = _rows(p_h + o_row * K, is_row, k, K, BLOCK_K)
            b_sum = tl.dot(b_x, b_w.to(b_x.dtype), b_sum, input_precision="ieee")
    if KIND == 1:
        b_sum = b_sum * tl.load(p_scale_e + o_n, mask=is_n, other=0.0)[None, :]
    b_gate, b_value = tl.split(tl.reshape(b_sum, [ROWS, BLOCK_N // 2, 2]))
    b_hidden = b_gate / (1.0 + tl.exp(-b_gate)) * b_value
    o_out = i_tile * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
    tl.store(
        p_hidden + (o_row * (TOP + 1) + b_rank)[:, None] * I + o_out[None, :],
        b_hidden.to(p_hidden.dtype.element_ty),
        mask=is_row[:, None] & (o_out < I)[None, :],
    )


@triton.jit
def _down(
    p_hidden,
    p_w,
    p_scale,
    p_weight,
    p_partial,
    p_mark,
    e,
    i_tile,
    b_rank,
    is_row,
    UP_TILES: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    K: tl.constexpr,
    TOP: tl.constexpr,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WK: tl.constexpr,
    FP4_BLOCK: tl.constexpr,
    SPINS: tl.constexpr,
):
    """One expert's part of some output features, times the rows' weights for it."""
    o_row = tl.arange(0, ROWS)
    o_n = i_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    is_n = o_n < K
    o_pair = o_row * (TOP + 1) + b_rank
    p_w_e, p_scale_e = _expert(p_w, p_scale, e, K, I, KIND, FP4_BLOCK)
    b_factor = tl.load(p_weight + o_pair, mask=is_row, other=0.0)
    if KIND == 2:
        b_sum = tl.zeros([ROWS, BLOCK_N], tl.float32)
        wait(p_mark, UP_TILES, SPINS)
        for k in range(0, I, BLOCK_K):
            b_sum = _fp4_product(
                b_sum, p_hidden + o_pair * I, is_row, p_w_e, p_scale_e, o_n, is_n, k, I, BLOCK_K, FP4_BLOCK
            )
    else:  # each warp has a part of K of its own, whose sums are added at the end
        b_parts = tl.zeros([WK, ROWS, BLOCK_N], tl.float32)
        b_w = _part_weights(p_w_e, o_n, is_n, 0, I, BLOCK_K, WK)
        wait(p_mark, UP_TILES, SPINS)
        b_x = _part_rows(p_hidden + o_pair * I, is_row, 0, I, BLOCK_K, WK)
        b_parts = tl.dot(b_x, b_w.to(b_x.dtype), b_parts, input_precision="ieee")
        for k in tl.static_range(BLOCK_K, I, BLOCK_K):
            b_w = _part_weights(p_w_e, o_n, is_n, k, I, BLOCK_K, WK)
            b_x = _part_rows(p_hidden + o_pair * I, is_row, k, I, BLOCK_K, WK)
            b_parts = tl.dot(b_x, b_w.to(b_x.dtype), b_parts, input_precision="ieee")
        b_sum = tl.sum(b_parts, 0)
    if KIND == 1:
        b_sum = b_sum * tl.load(p_scale_e + o_n, mask=is_n, other=0.0)[None, :]
    p_to = p_partial + o_pair[:, None] * K + o_n[None, :]
    tl.store(p_to, b_sum * b_factor[:, None], mask=is_row[:, None] & is_n[None, :])


@triton.jit
def _weights(p_w, o_n, is_n, k, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """[BLOCK_K, N] of a weight [N, K], past the cache's other contents."""
    o_k = k + tl.arange(0, BLOCK_K)
    p_from = p_w + o_n[None, :] * K + o_k[:, None]
    if K % BLOCK_K == 0:
        return tl.load(p_from, mask=is_n[None, :], other=0, eviction_policy="evict_first")
    else:
        return tl.load(p_from, mask=is_n[None, :] & (o_k < K)[:, None], other=0, eviction_policy="evict_first")


@triton.jit
def _rows(p_rows, is_row, k, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """[ROWS, BLOCK_K], zeros for rows that an expert does not serve. p_rows [ROWS]: where each row begins."""
    o_k = k + tl.arange(0, BLOCK_K)
    if K % BLOCK_K == 0:
        return tl.load(p_rows[:, None] + o_k[None, :], mask=is_row[:, None], other=0.0)
    else:
        return tl.load(p_rows[:, None] + o_k[None, :], mask=is_row[:, None] & (o_k < K)[None, :], other=0.0)


@triton.jit
def _part_weights(p_w, o_n, is_n, k, K: tl.constexpr, BLOCK_K: tl.constexpr, WK: tl.constexpr):
    """The same in WK parts of K: [WK, BLOCK_K / WK, N]."""
    PART: tl.constexpr = BLOCK_K // WK
    o_k = k + tl.arange(0, WK)[:, None] * PART + tl.arange(0, PART)[None, :]
    is_w = is_n[None, None, :]
    if K % BLOCK_K != 0:
        is_w = is_w & (o_k < K)[:, :, None]
    return tl.load(p_w + o_n[None, None, :] * K + o_k[:, :, None], mask=is_w, other=0, eviction_policy="evict_first")


@triton.jit
def _part_rows(p_rows, is_row, k, K: tl.constexpr, BLOCK_K: tl.constexpr, WK: tl.constexpr):
    """[WK, ROWS, BLOCK_K / WK], zeros for rows that an expert does not serve."""
    PART: tl.constexpr = BLOCK_K // WK
    o_k = k + tl.arange(0, WK)[:, None] * PART + tl.arange(0, PART)[None, :]
    is_x = is_row[None, :, None]
    if K % BLOCK_K != 0:
        is_x = is_x & (o_k < K)[:, None, :]
    return tl.load(p_rows[None, :, None] + o_k[:, None, :], mask=is_x, other=0.0)


@triton.jit
def _fp4_product(
    b_sum,
    p_rows,
    is_row,
    p_w,
    p_scale,
    o_n,
    is_n,
    k,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FP4_BLOCK: tl.constexpr,
):
    """b_sum plus rows times BLOCK_K features: low halves of bytes are one run of 16 features, high halves the next."""
    type: tl.constexpr = p_rows.dtype.element_ty
    HALF: tl.constexpr = FP4_BLOCK // 2
    o_byte = k // 2 + tl.arange(0, BLOCK_K // 2)
    is_byte = o_byte < K // 2
    o_low = o_byte // HALF * FP4_BLOCK + o_byte % HALF
    is_w = is_n[None, :] & is_byte[:, None]
    b_byte = tl.load(p_w + o_n[None, :] * (K // 2) + o_byte[:, None], mask=is_w, other=0).to(tl.int32)
    p_power = p_scale + o_n[None, :] * (K // FP4_BLOCK) + (o_byte // HALF)[:, None]
    b_power = tl.load(p_power, mask=is_w, other=0).to(tl.int32)
    is_x = is_row[:, None] & is_byte[None, :]
    b_low = tl.load(p_rows[:, None] + o_low[None, :], mask=is_x, other=0.0)
    b_high = tl.load(p_rows[:, None] + (o_low + HALF)[None, :], mask=is_x, other=0.0)
    b_sum = tl.dot(b_low, fp4_values(b_byte & 15, b_power, type), b_sum, input_precision="ieee")
    return tl.dot(b_high, fp4_values(b_byte >> 4, b_power, type), b_sum, input_precision="ieee")


@triton.jit
def _expert(p_w, p_scale, e, N, K: tl.constexpr, KIND: tl.constexpr, FP4_BLOCK: tl.constexpr):
    """Where expert e's weight and scales begin."""
    e = e.to(tl.int64)
    if KIND == 0:
        return p_w + e * N * K, p_scale
    elif KIND == 1:
        return p_w + e * N * K, p_scale + e * N
    else:
        return p_w + e * N * (K // 2), p_scale + e * N * (K // FP4_BLOCK)
