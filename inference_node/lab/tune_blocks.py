# mypy: disable-error-code="call-arg, arg-type, misc"
"""Check and time the attention, drafter and accept kernels at the 35B's shapes, several cuts each.

    python -m inference_node.lab.tune_blocks OUT.json

Needs an accelerator. Correct first: against the twins, and a row alone against the row in a block. Then times: a graph
of the kernel over the memories of many layers in turn (so that the cache does not help), replayed; the median.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from inference_node.kernels.plain import accept as plain_accept
from inference_node.kernels.plain import draft_context as plain_context
from inference_node.kernels.plain import gated_delta_prefill as plain_prefill
from inference_node.kernels.plain import kv_write as plain_write
from inference_node.kernels.plain import paged_attention as plain_paged
from inference_node.kernels.plain import prefill_attention as plain_rows
from inference_node.kernels.plain.gated_delta_step import DeltaWeights
from inference_node.kernels.triton import accept as fast_accept
from inference_node.kernels.triton import draft_context as fast_context
from inference_node.kernels.triton import gated_delta_prefill as fast_prefill
from inference_node.kernels.triton import kv_write as fast_write
from inference_node.kernels.triton import paged_attention as fast_paged
from inference_node.kernels.triton import prefill_attention as fast_rows
from inference_node.lab.replayed import DEVICE, apart, bf16, replayed_us, word

BLOCK, KEY_HEADS, HEADS, WIDTH = 16, 16, 32, 128
CHANNELS = 2 * KEY_HEADS * WIDTH + HEADS * WIDTH
FOUND: dict[str, Any] = {}
BEGAN = time.monotonic()


def main() -> None:
    torch.manual_seed(0)
    for part in [globals()[name] for name in sys.argv[2:]] or [attention, drafter, small, prefill]:
        try:
            with torch.inference_mode():
                part()
        except Exception as error:  # the other parts are still worth having
            note(f"{part.__name__}.failed", f"{type(error).__name__}: {error}"[:600])
        if len(sys.argv) > 1:
            with open(sys.argv[1], "w", encoding="utf-8") as file:
                json.dump(FOUND, file, indent=1)


def note(name: str, value: object) -> None:
    FOUND[name] = value
    print(f"{time.monotonic() - BEGAN:6.1f}s {name}: {value}", flush=True)


def words_of(*values: int) -> Any:
    return tuple(word(value) for value in values)


def timed(name: str, calls: Sequence[Callable[[], Any]], size: float, repeat: int = 12) -> None:
    """Microseconds of one call and its TB/s."""
    try:
        us = replayed_us(calls, repeat=repeat)
        note(name, [round(us, 2), round(size / us / 1e6, 3)])
    except Exception as error:
        note(name, f"{type(error).__name__}: {error}"[:200])


def delta_weights() -> DeltaWeights:
    rate, shift = torch.rand(HEADS, device=DEVICE) * 0.3 + 0.01, torch.randn(HEADS, device=DEVICE)
    return DeltaWeights(bf16(CHANNELS, 4, scale=0.4), rate, shift)


def attention() -> None:
    heads, kv_heads, dim = 16, 2, 256
    q, gate = bf16(BLOCK, heads, dim), bf16(BLOCK, heads, 2, dim)[:, :, 1]
    bounds = plain_paged.split_bounds(131072 + 256, DEVICE)
    room = plain_paged.parts(bounds, BLOCK, heads, dim)
    pages = bf16(10 * 68, 2, kv_heads, 256, dim)

    def run(module: Any, start: int, valid: int, query: torch.Tensor, gates: torch.Tensor, table: torch.Tensor,
            layer: torch.Tensor, **more: Any) -> torch.Tensor:  # fmt: skip
        out = torch.full_like(query, float("nan"))
        module.attend(query, layer[:, 0], layer[:, 1], table, word(start), word(valid), bounds, room, out,
                      scale=dim**-0.5, gate=gates, **more)  # fmt: skip
        return out

    table = torch.randperm(600, device=DEVICE).to(torch.int32)
    for start in (0, 1000, 5000, 70000):
        block = run(fast_paged, start, BLOCK, q, gate, table, pages)
        note(f"attention.apart.{start}", apart(block, run(plain_paged, start, BLOCK, q, gate, table, pages)))
        same = []
        for row in range(BLOCK):
            alone, own = torch.full_like(q, float("inf")), torch.full_like(q, float("nan"))
            alone[0], own[0] = q[row], gate[row]
            same.append(torch.equal(run(fast_paged, start + row, 1, alone, own, table, pages)[0], block[row]))
        note(f"attention.bits.{start}", all(same))
    cuts = [
        (64, 32, 4, 3),
        (64, 32, 4, 4),
        (64, 64, 4, 2),
        (64, 64, 8, 2),
        (128, 32, 8, 3),
        (128, 64, 8, 2),
        (32, 32, 4, 4),
    ]
    for context, layers in ((1024, 40), (16384, 10), (131072 - 16, 1)):
        count = context // 256 + 1
        tables = [
            torch.arange(i * count, (i + 1) * count, device=DEVICE).to(torch.int32) % pages.shape[0]
            for i in range(layers)
        ]
        for length in (0, 64, 128, 256) if context == 1024 else (0, 128, 256, 512) if context == 16384 else (0, 1024):
            ends = bounds
            if length:
                last = max(context + 16, 16384)
                ends = torch.arange(0, last + length, length, device=DEVICE).to(torch.int32)
            space = plain_paged.parts(ends, BLOCK, heads, dim)
            for cut in cuts if not length else cuts[:3]:
                for valid in (1, 16):
                    out = torch.empty_like(q)
                    words = words_of(context - valid, valid)
                    more = {"scale": dim**-0.5, "gate": gate, "cut": fast_paged.Tiles(*cut)}
                    cases = [
                        partial(fast_paged.attend, q, pages[:, 0], pages[:, 1], t, *words, ends, space, out, **more)
                        for t in tables
                    ]
                    timed(f"attention.{context}.s{length}.v{valid}.{cut}", cases, 2 * kv_heads * dim * 2 * context)


def drafter() -> None:
    heads, kv_heads, dim, layers = 32, 8, 128, 6
    q = bf16(BLOCK, heads, dim)
    bounds = plain_paged.split_bounds(131072 + 256, DEVICE)
    room = plain_paged.parts(bounds, BLOCK, heads, dim)
    pages = bf16(layers, 70, 2, kv_heads, 256, dim)
    table = torch.arange(70, device=DEVICE).to(torch.int32)
    out, twin = torch.empty_like(q), torch.empty_like(q)
    for name, causal, window in (("full", False, None), ("sliding", True, 4096)):
        for module, to in ((fast_paged, out), (plain_paged, twin)):
            module.attend(q, pages[0, :, 0], pages[0, :, 1], table, word(16000), word(BLOCK), bounds, room, to,
                          scale=dim**-0.5, causal=causal, window=window)  # type: ignore[attr-defined]  # fmt: skip
        note(f"drafter.{name}.apart", apart(out, twin))
        for cut in ((64, 64, 4, 3), (64, 32, 4, 4), (64, 128, 8, 2)):
            words = words_of(16000, BLOCK)
            timed(
                f"drafter.{name}.{cut}",
                [
                    lambda i=i, cut=cut, words=words, causal=causal, window=window: fast_paged.attend(
                        q, pages[i, :, 0], pages[i, :, 1], table, *words, bounds, room, out,
                        scale=dim**-0.5, causal=causal, window=window, cut=fast_paged.Tiles(*cut),
                    )
                    for i in range(layers)
                ],
                2 * kv_heads * dim * 2 * (window or 16000),
            )  # fmt: skip
    weights = [bf16(layers, 2, kv_heads * dim, 2048, scale=0.02) for _ in range(3)]
    norms = torch.rand(layers, dim, device=DEVICE) + 0.5
    rope = plain_write.rope_table(torch.rand(dim // 2, device=DEVICE), 1.0, 17000)
    tables = table.expand(layers, -1)
    k_pages, v_pages = pages[:, :, 0], pages[:, :, 1]
    context = bf16(BLOCK, 2048)
    for module in (fast_context, plain_context):
        module.write(context, weights[0], norms, rope, tables, word(300), word(9), k_pages, v_pages, 1e-6)
        FOUND.setdefault("kept", []).append(pages[:, 1:2].clone())
    kept = FOUND.pop("kept")
    note("context.apart", apart(kept[0], kept[1]))
    for cut in ((16, 128, 4, 4), (16, 128, 4, 5), (16, 64, 8, 6), (16, 256, 4, 3)):
        words = words_of(300, 5)
        timed(
            f"context.{cut}",
            [
                lambda w=w, cut=cut, words=words: fast_context.write(
                    context, w, norms, rope, tables, *words, k_pages, v_pages, 1e-6, cut=fast_context.Tiles(*cut)
                )
                for w in weights * 4
            ],
            weights[0].numel() * 2,
        )
    many = bf16(8192, 2048)
    words = words_of(0, 8192)
    for cut in ((64, 64, 4, 3), (128, 64, 8, 3)):
        timed(f"context.prefill.{cut}", [lambda cut=cut: fast_context.write(
            many, weights[0], norms, rope, tables, *words, k_pages, v_pages, 1e-6, cut=fast_context.Tiles(*cut))],
            2e-6 * 8192 * 2048 * weights[0].numel() / 2048 * 1e6)  # fmt: skip


def small() -> None:
    put: Any = fast_write.write
    settle: Any = fast_accept.accept
    heads, kv_heads, dim = 16, 2, 256
    rope = plain_write.rope_table(torch.rand(32, device=DEVICE), 1.0, 17000)
    wide = bf16(BLOCK, 2 * heads * dim + 2 * kv_heads * dim)
    q = wide[:, : 2 * heads * dim].view(BLOCK, heads, 2, dim)[:, :, 0]
    k = wide[:, 2 * heads * dim :][:, : kv_heads * dim].view(BLOCK, kv_heads, dim)
    v = wide[:, -kv_heads * dim :].view(BLOCK, kv_heads, dim)
    norms = torch.rand(2, dim, device=DEVICE) + 0.5
    table = torch.arange(70, device=DEVICE).to(torch.int32)
    found = []
    for module in (fast_write, plain_write):
        pages = torch.zeros(70, 2, kv_heads, 256, dim, dtype=torch.bfloat16, device=DEVICE)
        out = torch.empty(BLOCK, heads, dim, dtype=torch.bfloat16, device=DEVICE)
        module.write(q, k, v, *norms, rope, table, word(250), word(BLOCK), pages[:, 0], pages[:, 1], out, 1e-6)
        found.append((out, pages))
    note("write.apart", [apart(f, t) for f, t in zip(*found, strict=True)])
    out, pages = found[0]
    words = words_of(250, BLOCK)
    timed("write.v16", [lambda: put(
        q, k, v, *norms, rope, table, *words, pages[:, 0], pages[:, 1], out, 1e-6)] * 10, 0)  # fmt: skip
    ints: list[Any] = [
        torch.zeros(n, dtype=torch.int32, device=DEVICE) for n in (BLOCK, BLOCK, 3, plain_accept.FIELDS, BLOCK)
    ]
    record = torch.zeros(8, plain_accept.RECORD + BLOCK, dtype=torch.int32, device=DEVICE)
    timed("accept", [lambda: settle(*ints, record, 7)] * 10, 0)


def prefill() -> None:
    weights, n = delta_weights(), 8192
    x, b, a = bf16(n, CHANNELS), bf16(n, HEADS), bf16(n, HEADS)
    found = []
    for module in (fast_prefill, plain_prefill):
        state = torch.zeros(HEADS, WIDTH, WIDTH, device=DEVICE)
        tail = torch.zeros(3, CHANNELS, dtype=torch.bfloat16, device=DEVICE)
        out = torch.full((1024, HEADS, WIDTH), float("nan"), dtype=torch.bfloat16, device=DEVICE)
        module.prefill(x[:1024], b[:1024], a[:1024], weights, 1000, state, tail, out)
        found.append((out, state, tail))
    note("prefill.apart", [apart(f, t) for f, t in zip(*found, strict=True)])
    state, tail = torch.zeros(HEADS, WIDTH, WIDTH, device=DEVICE), bf16(3, CHANNELS)
    out = torch.empty(n, HEADS, WIDTH, dtype=torch.bfloat16, device=DEVICE)
    pieces = [(state.clone(), tail.clone()) for _ in range(2)]
    fast_prefill.prefill(x[:1024], b[:1024], a[:1024], weights, 1024, *pieces[0], out[:1024])
    other = torch.empty_like(out[:1024])
    for first, last in ((0, 192), (192, 1024)):
        rows = slice(first, last)
        fast_prefill.prefill(x[rows], b[rows], a[rows], weights, last - first, *pieces[1], other[rows])
    note("prefill.bits", [torch.equal(*p) for p in (*zip(*pieces, strict=True), (out[:1024], other))])
    for cut in ((32, 64, 4, 4, 4, 2), (32, 64, 4, 8, 4, 1), (32, 32, 4, 4, 8, 2), (16, 64, 4, 4, 4, 2),
                (16, 128, 4, 4, 4, 3), (64, 64, 8, 4, 8, 2)):  # fmt: skip
        timed(f"prefill.{cut}", [lambda cut=cut: fast_prefill.prefill(
            x, b, a, weights, n, state, tail, out, cut=fast_prefill.Tiles(*cut))], 0, 5)  # fmt: skip
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        fast_prefill.prefill(x, b, a, weights, n, state, tail, out)
        torch.cuda.synchronize()
    note("prefill.kernels_us", {e.key: round(e.device_time_total) for e in profile.key_averages()})
    heads, kv_heads, dim = 16, 2, 256
    q, gate = bf16(n, heads, dim), bf16(n, heads, 2, dim)[:, :, 1]
    pages = bf16(40, 2, kv_heads, 256, dim)
    table = torch.randperm(40, device=DEVICE).to(torch.int32)
    read, twin = (torch.full_like(q, float("nan")) for _ in range(2))
    for module, to in ((fast_rows, read), (plain_rows, twin)):
        module.attend(q[:512], pages[:, 0], pages[:, 1], table, 1024, 500, to[:512], scale=dim**-0.5, gate=gate[:512])
    note("rows.apart", apart(read[:512], twin[:512]))
    for rows_cut in ((64, 2, 64, 8, 2), (64, 1, 64, 4, 2), (64, 2, 32, 8, 2), (64, 2, 64, 8, 3), (64, 1, 32, 4, 3)):
        timed(
            f"rows.{rows_cut}",
            [
                lambda cut=rows_cut: fast_rows.attend(
                    q, pages[:, 0], pages[:, 1], table, 0, n, read,
                    scale=dim**-0.5, gate=gate, cut=fast_rows.Tiles(*cut),
                )
            ],
            4 * n * n / 2 * dim * heads,
            5,
        )  # fmt: skip


if __name__ == "__main__":
    main()
