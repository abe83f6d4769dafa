"""Calls of every kernel at the 35B's shapes, on tensors that have shapes and no memory (for lab/gfx1151.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from inference_node.kernels.plain import accept as accepting
from inference_node.kernels.plain import packed, paged_attention
from inference_node.kernels.plain.gated_delta_step import DeltaMemory, DeltaWeights, Keep
from inference_node.kernels.plain.head import chosen
from inference_node.kernels.plain.linear import feed
from inference_node.kernels.plain.route import plan
from inference_node.kernels.triton import ops

META = torch.device("meta")
BLOCK, HIDDEN, EXPERTS, WIDTH, TOP, VOCAB = 16, 2048, 256, 512, 8, 248320
KEY_HEADS, HEADS, DIM = 16, 32, 128
CHANNELS, VALUES = 2 * KEY_HEADS * DIM + HEADS * DIM, HEADS * DIM
Call = Callable[[], Any]


def calls() -> Iterator[Call]:
    for group in (delta, attention, drafter, second, multi_token, linear, mixture, head, prefill):
        yield from group()


def bf16(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device=META)


def fp32(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float32, device=META)


def int32(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int32, device=META)


def delta() -> Iterator[Call]:
    step: Any = ops.delta_step
    memory = DeltaMemory(
        fp32(2, HEADS, DIM, DIM), bf16(2, 3 + BLOCK, CHANNELS), fp32(2, BLOCK, KEY_HEADS, DIM),
        bf16(2, BLOCK, HEADS, DIM), fp32(2, BLOCK, 2, HEADS),
    )  # fmt: skip
    weights = DeltaWeights(bf16(CHANNELS, 4), fp32(HEADS), fp32(HEADS))
    words: Any = [int32(1) for _ in range(3)]
    out = bf16(BLOCK, HEADS, DIM)
    wide = bf16(BLOCK, CHANNELS + VALUES + 2 * HEADS)
    rows: Any = (wide[:, :CHANNELS], wide[:, -2 * HEADS : -HEADS], wide[:, -HEADS:])
    for keep in Keep:
        snapshots = fp32(2, BLOCK, HEADS, DIM, DIM) if keep is Keep.SNAPSHOTS else None
        yield partial(step, *rows, weights, memory, *words, out, keep=keep, snapshots=snapshots)
    n = 2048
    many = (bf16(n, CHANNELS), bf16(n, HEADS), bf16(n, HEADS))
    yield partial(ops.delta_prefill, *many, weights, n, fp32(HEADS, DIM, DIM), bf16(3, CHANNELS), bf16(n, HEADS, DIM))


def attention() -> Iterator[Call]:
    heads, kv_heads, dim, n = 16, 2, 256, 2048
    pages, table, words = bf16(64, 10, 2, kv_heads, 256, dim)[:, 0], int32(64), (int32(1), int32(1))
    bounds = int32(100)
    for rows in (BLOCK, n):
        wide = bf16(rows, 2 * heads * dim + 2 * kv_heads * dim)
        both = wide[:, : 2 * heads * dim].view(rows, heads, 2, dim)
        keys = wide[:, 2 * heads * dim :].view(rows, 2 * kv_heads, dim)
        cached = (pages[:, 0], pages[:, 1])
        q, out = bf16(rows, heads, dim), bf16(rows, heads, dim)
        yield partial(
            ops.kv_write, both[:, :, 0], keys[:, :kv_heads], keys[:, kv_heads:], fp32(dim), fp32(dim), fp32(9, 64),
            table, *words, *cached, q, 1e-6,
        )  # fmt: skip
        how: dict[str, Any] = {"scale": 1 / 16, "gate": both[:, :, 1]}
        if rows == BLOCK:
            room = paged_attention.parts(bounds, rows, heads, dim)
            yield partial(ops.paged_attention, q, *cached, table, *words, bounds, room, out, **how)
        else:
            yield partial(ops.prefill_attention, q, *cached, table, 64, rows, out, **how)


def drafter() -> Iterator[Call]:
    heads, kv_heads, dim, layers = 32, 8, 128, 6
    pages, table, words, bounds = bf16(64, layers, 2, kv_heads, 256, dim), int32(64), (int32(1), int32(1)), int32(100)
    q, out = bf16(BLOCK, heads, dim), bf16(BLOCK, heads, dim)
    wide = bf16(BLOCK, (heads + 2 * kv_heads) * dim).view(BLOCK, heads + 2 * kv_heads, dim)
    cached = (pages[:, 0, 0], pages[:, 0, 1])
    yield partial(
        ops.kv_write, wide[:, :heads], wide[:, heads : heads + kv_heads], wide[:, heads + kv_heads :], fp32(dim),
        fp32(dim), fp32(9, dim), table, *words, *cached, q, 1e-6,
    )  # fmt: skip
    room = paged_attention.parts(bounds, BLOCK, heads, dim)
    for causal, window in ((False, None), (True, 4096)):
        how: dict[str, Any] = {"scale": 0.1, "causal": causal, "window": window}
        yield partial(ops.paged_attention, q, *cached, table, *words, bounds, room, out, **how)
    weight, norms, rope = bf16(layers, 2, kv_heads * dim, HIDDEN), fp32(layers, dim), fp32(9, dim)
    all_pages = (pages[:, :, 0].transpose(0, 1), pages[:, :, 1].transpose(0, 1))
    for rows in (BLOCK, 2048):
        tables = table.expand(layers, -1)
        yield partial(ops.draft_context, bf16(rows, HIDDEN), weight, norms, rope, tables, *words, *all_pages, 1e-6)
    yield from _drafter_products(heads, kv_heads, dim)
    settle: Any = ops.accept
    ints: Any = [int32(n) for n in (BLOCK, BLOCK, 3, accepting.FIELDS, BLOCK)]
    yield partial(settle, *ints, int32(8, accepting.RECORD + BLOCK), 7)
    yield partial(ops.pick, fp32(BLOCK, VOCAB), fp32(BLOCK), fp32(1), int32(2), int32(BLOCK), int32(BLOCK), fp32(BLOCK))


def _drafter_products(heads: int, kv_heads: int, dim: int) -> Iterator[Call]:
    """Its layers' weights, each with what the engine gives beside it."""
    wide, middle, taps = (heads + 2 * kv_heads) * dim, 6144, 8
    enter, out, up, down = (
        packed.Weight(bf16(n, k))
        for n, k in ((wide, HIDDEN), (HIDDEN, heads * dim), (2 * middle, HIDDEN), (HIDDEN, middle))
    )
    x, valid, squares = bf16(BLOCK, HIDDEN), int32(1), fp32(BLOCK, HIDDEN // 16)
    fed = feed(BLOCK, fp32(HIDDEN), torch.bfloat16)
    yield partial(ops.linear, x, enter, valid, bf16(BLOCK, wide), squares=squares)
    yield partial(ops.linear, bf16(BLOCK, heads * dim), out, valid, x, residual=x, feed=fed)
    yield partial(ops.linear, x, up, valid, bf16(BLOCK, middle), squares=squares, swiglu=True)
    yield partial(ops.linear, bf16(BLOCK, middle), down, valid, x, residual=x, feed=fed)
    yield partial(ops.linear, bf16(BLOCK, taps * HIDDEN), packed.Weight(bf16(HIDDEN, taps * HIDDEN)), valid, x)


def second() -> Iterator[Call]:
    """What DFlash 2 launches besides."""
    taps, group, rank, top, n = 2, 16, 256, 16, BLOCK - 1
    x, out, valid = bf16(BLOCK, HIDDEN), bf16(BLOCK, HIDDEN), int32(1)
    width, made, base = 2 * taps * HIDDEN // group, bf16(BLOCK, 6144), fp32(2, taps, HIDDEN)
    own = bf16(BLOCK, width)
    yield partial(ops.linear, x, packed.Weight(bf16(width, HIDDEN)), valid, own)
    yield partial(ops.linear, x, packed.Weight(bf16(2 * 6144, HIDDEN)), valid, made, swiglu=True)
    yield partial(ops.linear, made, packed.Weight(bf16(HIDDEN, 6144)), valid, out)
    yield partial(ops.linear, x, packed.Weight(bf16(rank, HIDDEN)), valid, bf16(BLOCK, rank))
    for place, residual in ((0, None), (1, bf16(BLOCK, HIDDEN))):
        yield partial(ops.block_conv, x, own, base, valid, place, out, residual=residual)
    yield partial(
        ops.head, x, packed.Weight(bf16(VOCAB, HIDDEN)), valid, fp32(1), int32(2), int32(BLOCK), chosen(VOCAB, META),
        logits=fp32(BLOCK, VOCAB),
    )  # fmt: skip
    walk: Any = ops.candidate_walk
    codes, words = bf16(VOCAB, rank), (valid, fp32(1), int32(2), int32(n), int32(BLOCK))
    for known in (None, int32(VOCAB // 32)):
        yield partial(
            walk, int32(n, top), fp32(n, top), bf16(n, rank), codes, codes, *words, fp32(n), known=known
        )  # fmt: skip


def multi_token() -> Iterator[Call]:
    """What the model's own head launches otherwise than the target: single rows, and keys without queries."""
    heads, kv_heads, dim = 16, 2, 256
    pages, table, words, bounds = bf16(64, 1, 2, kv_heads, 256, dim)[:, 0], int32(64), (int32(1), int32(1)), int32(100)
    cached, valid = (pages[:, 0], pages[:, 1]), int32(1)
    fc, keys = packed.Weight(bf16(HIDDEN, 2 * HIDDEN)), packed.Weight(bf16(2 * kv_heads * dim, HIDDEN))
    fed = feed(BLOCK, fp32(HIDDEN), torch.bfloat16)
    yield partial(ops.embed, int32(BLOCK), bf16(VOCAB, HIDDEN), bf16(1, HIDDEN), valid=valid)
    yield partial(ops.linear, bf16(BLOCK, 2 * HIDDEN), fc, valid, bf16(BLOCK, HIDDEN), feed=fed)
    yield partial(ops.linear, bf16(BLOCK, 2 * HIDDEN), fc, valid, bf16(BLOCK, HIDDEN))
    yield partial(ops.linear, bf16(BLOCK, HIDDEN), keys, valid, bf16(BLOCK, 2 * kv_heads * dim), norm=fp32(HIDDEN))
    yield partial(ops.prefill_linear, bf16(2048, 2 * HIDDEN), fc, bf16(2048, HIDDEN))
    yield partial(ops.prefill_linear, bf16(2048, HIDDEN), keys, bf16(2048, 2 * kv_heads * dim))
    both = bf16(BLOCK, 2 * kv_heads, dim)
    k, v, unread = both[:, :kv_heads], both[:, kv_heads:], bf16(BLOCK, kv_heads, dim)
    yield partial(ops.kv_write, k, k, v, fp32(dim), fp32(dim), fp32(9, 64), table, *words, *cached, unread, 1e-6)
    wide, q, out = bf16(1, 2 * heads * dim + 2 * kv_heads * dim), bf16(1, heads, dim), bf16(1, heads, dim)
    gates = wide[:, : 2 * heads * dim].view(1, heads, 2, dim)
    both = wide[:, 2 * heads * dim :].view(1, 2 * kv_heads, dim)
    k, v = both[:, :kv_heads], both[:, kv_heads:]
    yield partial(
        ops.kv_write, gates[:, :, 0], k, v, fp32(dim), fp32(dim), fp32(9, 64), table, *words, *cached, q, 1e-6
    )  # fmt: skip
    room = paged_attention.parts(bounds, 1, heads, dim)
    yield partial(
        ops.paged_attention, q, *cached, table, *words, bounds, room, out, scale=1 / 16, gate=gates[:, :, 1]
    )  # fmt: skip
    squares = fp32(1, HIDDEN // 16)
    yield partial(
        ops.head, bf16(1, HIDDEN), packed.Weight(bf16(VOCAB, HIDDEN)), valid, fp32(1), int32(2), int32(1),
        chosen(VOCAB, META), squares=squares, known=int32(VOCAB // 32),
    )  # fmt: skip


def weights(*shape: int, experts: bool = False) -> Iterator[packed.Weight]:
    """One shape in every kind of weight."""
    yield packed.Weight(bf16(*shape), None)
    yield packed.Weight(torch.empty(shape, dtype=torch.int8, device=META), fp32(*shape[:-1]))
    if experts:
        yield packed.pack_mxfp4(bf16(*shape))


def linear() -> Iterator[Call]:
    valid, squares = int32(1), fp32(BLOCK, HIDDEN // 16)
    for n in (CHANNELS + VALUES + 2 * HEADS, 2 * 16 * 256 + 4 * 256):
        for weight in weights(n, HIDDEN):
            yield partial(ops.linear, bf16(BLOCK, HIDDEN), weight, valid, bf16(BLOCK, n), squares=squares)
    fed = feed(BLOCK, fp32(HIDDEN), torch.bfloat16)
    for weight in weights(HIDDEN, VALUES):
        x, gate, out = bf16(BLOCK, VALUES), bf16(BLOCK, VALUES), bf16(BLOCK, HIDDEN)
        yield partial(ops.linear, x, weight, valid, out, norm=fp32(DIM), gate=gate, residual=out)
        yield partial(ops.linear, x, weight, valid, out, residual=out, feed=fed)
        yield partial(ops.linear, x, weight, valid, out, residual=out)
    yield partial(ops.norm, bf16(BLOCK, HIDDEN), fp32(HIDDEN), bf16(BLOCK, HIDDEN), valid=valid)
    yield partial(ops.embed, int32(BLOCK), bf16(VOCAB, HIDDEN), bf16(BLOCK, HIDDEN), valid=valid)


def mixture() -> Iterator[Call]:
    valid, where = int32(1), plan(EXPERTS, TOP, True, META)
    x, h, out = bf16(BLOCK, HIDDEN), bf16(BLOCK, HIDDEN), bf16(BLOCK, HIDDEN)
    hidden, fed = bf16(BLOCK, TOP + 1, WIDTH), feed(BLOCK, fp32(HIDDEN), torch.bfloat16)
    yield partial(ops.route, x, fp32(HIDDEN), bf16(EXPERTS + 1, HIDDEN), valid, h, where, mark=int32(1))
    imposed = int32(BLOCK, TOP)
    yield partial(
        ops.route, x, fp32(HIDDEN), bf16(EXPERTS + 1, HIDDEN), valid, h, where, imposed=imposed, mark=int32(1)
    )
    for up, down in zip(
        weights(EXPERTS + 1, 2 * WIDTH, HIDDEN, experts=True), weights(EXPERTS + 1, HIDDEN, WIDTH, experts=True),
        strict=True,
    ):  # fmt: skip
        yield partial(ops.expert_up, h, up, where, hidden)
        yield partial(ops.expert_down, hidden, down, where, valid, x, out, feed=fed)


def head() -> Iterator[Call]:
    room, squares = chosen(VOCAB, META), fp32(BLOCK, HIDDEN // 16)
    for weight in weights(VOCAB, HIDDEN):
        yield partial(
            ops.head, bf16(BLOCK, HIDDEN), weight, int32(1), fp32(1), int32(2), int32(BLOCK), room, squares=squares
        )


def prefill() -> Iterator[Call]:
    rows = 2048
    x, residual, out = bf16(rows, VALUES), bf16(rows, HIDDEN), bf16(rows, HIDDEN)
    for weight in weights(HIDDEN, VALUES):
        yield partial(ops.prefill_linear, x, weight, out, residual=residual)
    for up, down in zip(
        weights(EXPERTS + 1, 2 * WIDTH, HIDDEN, experts=True), weights(EXPERTS + 1, HIDDEN, WIDTH, experts=True),
        strict=True,
    ):  # fmt: skip
        yield partial(
            ops.prefill_experts,
            residual,
            fp32(rows, EXPERTS + 1),
            up,
            down,
            rows,
            residual,
            out,
            experts=EXPERTS,
            top=TOP,
        )
