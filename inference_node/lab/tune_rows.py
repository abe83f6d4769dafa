# mypy: disable-error-code="call-arg, arg-type, misc"
"""Find the tiles of the small-M kernels on this accelerator, at the 35B's shapes: linear layers, delta step.

    python -m inference_node.lab.tune_rows FOLDER

Every candidate is compiled first, by as many processes as there are cores (they share Triton's cache), with what the
engine needs besides. Then the kernels are checked (against their twins; a row alone against the row in a block; the
same call many times), then candidates are timed in captured graphs over several layers' weights. All that was measured
goes to FOLDER/tiles-measured.json as it comes, and the best to FOLDER/tiles.json, which `fast_bench --tiles` takes.
They belong into `kernels/triton/tiles.py` afterwards: a tile is chosen once, never on the spot.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from inference_node.kernels.plain import gated_delta_step as plain_delta
from inference_node.kernels.plain.gated_delta_step import DeltaMemory, DeltaWeights, Keep
from inference_node.kernels.plain.linear import ROWS
from inference_node.kernels.plain.packed import Weight, pack_int8
from inference_node.kernels.triton import gated_delta_step as fast_delta
from inference_node.kernels.triton import tiles
from inference_node.kernels.triton.linear import linear
from inference_node.kernels.triton.tiles import Tile
from inference_node.lab.compiling import compiled_only
from inference_node.lab.replayed import DEVICE, apart, bf16, replayed_us, word

BLOCK, KEY_HEADS, HEADS, DIM = 16, 16, 32, 128
CHANNELS = 2 * KEY_HEADS * DIM + HEADS * DIM
WIDE = [
    Tile(32, 128, 2, 4),
    Tile(32, 128, 4, 4),
    Tile(32, 256, 4, 3),
    Tile(32, 256, 2, 3),
    Tile(16, 256, 2, 4),
    Tile(16, 512, 4, 3, wk=4),
    Tile(32, 256, 4, 4, wk=4),
]
NARROW = [
    Tile(16, 256, 4, 6, wk=4),
    Tile(16, 512, 4, 4, wk=4),
    Tile(16, 512, 8, 4, wk=8),
    Tile(16, 128, 4, 8, wk=4),
    Tile(16, 256, 2, 6, wk=2),
]
SHAPES = {
    "wide": ((12352, 2048), (9216, 2048), (12288, 2048), (6144, 2048)),
    "narrow": ((2048, 4096), (2048, 6144)),
}
DELTAS = [(8, 2), (8, 1), (8, 4), (4, 2), (16, 2)]


def main() -> int:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    found: dict[str, Any] = {}
    best: dict[str, Any] = {}

    def tell(name: str, value: Any) -> None:
        found[name] = value
        print(f"{time.monotonic() - began:6.1f}s {name}: {value}", flush=True)
        (out / "tiles-measured.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
        (out / "tiles.json").write_text(json.dumps(best, indent=1), encoding="utf-8")

    count = len(_jobs_once())
    workers = max(1, min(16, (os.cpu_count() or 2)))
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        done = pool.imap_unordered(_compile, range(count))
        for name, error in done:
            if error:
                tell(f"compile.{name}", error)
    tell("compiled", count)
    torch.manual_seed(0)
    with torch.inference_mode():
        for part in (_deltas, _linears):
            try:
                part(tell, best)
            except Exception as error:
                tell(f"{part.__name__}.failed", f"{type(error).__name__}: {error}"[:600])
    tell("done", round(time.monotonic() - began, 1))
    return 0


def apply(path: Path) -> None:
    """From now on this process uses the tiles of a file."""
    best = json.loads(path.read_text(encoding="utf-8"))
    if "linear" in best:
        sizes = {name: Tile(**tile) for name, tile in best["linear"].items()}
        before = tiles.linear

        def chosen(n: int, k: int, kind: str = "bf16") -> Tile:
            found = sizes.get(f"{'narrow' if n <= 4096 else 'wide'}.{kind}")
            return found.within(k) if found else before(n, k, kind)

        tiles.linear = chosen
    if "delta" in best:
        fast_delta.V_TILE, fast_delta.ENTER = best["delta"]


# Compiling.


def _jobs() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every candidate as a call on tensors that have shapes and no memory, the heaviest first."""
    from inference_node.lab import gfx1151_calls as shapes

    for v_tile, enter in DELTAS:
        yield f"delta.{v_tile}.{enter}", partial(_meta_delta, v_tile, enter)
    for name, cuts in (("narrow", NARROW), ("wide", WIDE)):
        for kind in ("bf16", "int8"):
            for cut in cuts:
                yield f"linear.{name}.{kind}", partial(_meta_linear, name, *SHAPES[name][0], kind, cut)
    for call in shapes.calls():
        yield "engine", call


@cache
def _jobs_once() -> list[tuple[str, Callable[[], Any]]]:
    return list(_jobs())


def _shaped(kind: str, *shape: int) -> Weight:
    meta = torch.device("meta")
    if kind == "int8":
        return Weight(torch.empty(shape, dtype=torch.int8, device=meta), torch.empty(shape[:-1], device=meta))
    return Weight(torch.empty(shape, dtype=torch.bfloat16, device=meta))


def _meta_linear(name: str, n: int, k: int, kind: str, tile: Tile) -> None:
    from inference_node.lab import gfx1151_calls as shapes

    x, out = shapes.bf16(ROWS, k), shapes.bf16(ROWS, n)
    given: dict[str, Any] = {"squares": shapes.fp32(ROWS, k // 16)}
    if name == "narrow":
        given = {"residual": out}
    linear(x, _shaped(kind, n, k), shapes.int32(1), out, tile=tile, **given)


def _meta_delta(v_tile: int, enter: int) -> None:
    from inference_node.lab import gfx1151_calls as shapes

    fast_delta.V_TILE, fast_delta.ENTER = v_tile, enter
    next(iter(shapes.delta()))()


def _compile(index: int) -> tuple[str, str]:
    """Worker: compile one candidate into Triton's cache, without running it."""
    name = ""
    try:
        name, call = _jobs_once()[index]
        with compiled_only():
            call()
        return name, ""
    except Exception as error:
        return name, f"{type(error).__name__}: {error}"[:300]


# Checking and timing.


def _packed(kind: str, weight: torch.Tensor) -> Weight:
    if kind == "bf16":
        return Weight(weight)
    parts = [pack_int8(part) for part in weight] if weight.dim() == 3 else [pack_int8(weight)]
    if weight.dim() == 2:
        return parts[0]
    return Weight(torch.stack([part.data for part in parts]), torch.stack([part.scale for part in parts]))


def _deltas(tell: Callable[[str, Any], None], best: dict[str, Any]) -> None:
    rate, shift = torch.rand(HEADS, device=DEVICE) * 0.3 + 0.01, torch.randn(HEADS, device=DEVICE)
    weights, tokens = DeltaWeights(bf16(CHANNELS, 4, scale=0.4), rate, shift), 64
    x, b, a = bf16(tokens, CHANNELS), bf16(tokens, HEADS), bf16(tokens, HEADS)

    def memory() -> DeltaMemory:
        return plain_delta.memory(
            block=BLOCK, key_heads=KEY_HEADS, heads=HEADS, width=DIM, value_width=DIM, dtype=torch.bfloat16,
            device=DEVICE,
        )  # fmt: skip

    def walk(module: Any, plan: Sequence[tuple[int, int]], keep: Keep) -> tuple[torch.Tensor, torch.Tensor]:
        own, at, fold, slot = memory(), 0, 0, 0
        read = torch.full((tokens, HEADS, DIM), float("nan"), dtype=torch.bfloat16, device=DEVICE)
        shots = torch.full((2, BLOCK, HEADS, DIM, DIM), float("nan"), device=DEVICE)
        for valid, kept in [*plan, (0, 0)] if keep in (Keep.FOLD, Keep.SNAPSHOTS) else plan:
            rows = [torch.full((BLOCK, y.shape[1]), float("nan"), dtype=y.dtype, device=DEVICE) for y in (x, b, a)]
            for row, y in zip(rows, (x, b, a), strict=True):
                row[:valid] = y[at : at + valid]
            out = torch.full((BLOCK, HEADS, DIM), float("nan"), dtype=torch.bfloat16, device=DEVICE)
            given = (*rows, weights, own, word(slot), word(fold))
            if keep in (Keep.FOLD, Keep.SNAPSHOTS):
                module.step(*given, word(valid), out, keep=keep, snapshots=shots)
            else:
                module.step(*given, word(valid), out, keep=Keep.NOTHING)
                module.step(*given, word(kept), out.clone(), keep=Keep.LAST)
            read[at : at + kept] = out[:kept]
            at, fold, slot = at + kept, kept, 1 - slot
        return read[:40], own.state[slot].clone()

    plan, right = [(5, 3), (16, 1), (16, 16), (9, 2), (7, 5), (16, 13)], True
    scores = []
    twin = walk(plain_delta, [(1, 1)] * 40, Keep.FOLD)
    memories = [memory() for _ in range(30)]
    marks = torch.zeros(30, plain_delta.marks_for(KEY_HEADS, HEADS), dtype=torch.int32, device=DEVICE)
    wide = bf16(BLOCK, CHANNELS + HEADS * DIM + 2 * HEADS)
    rows = (wide[:, :CHANNELS], wide[:, -2 * HEADS : -HEADS], wide[:, -HEADS:])
    out = torch.empty(BLOCK, HEADS, DIM, dtype=torch.bfloat16, device=DEVICE)
    for index, (v_tile, enter) in enumerate(DELTAS):
        fast_delta.V_TILE, fast_delta.ENTER = v_tile, enter
        ones = walk(fast_delta, [(1, 1)] * 40, Keep.FOLD)
        bits = [
            torch.equal(f, o)
            for keep in (Keep.FOLD, Keep.SNAPSHOTS, Keep.LAST)
            for f, o in zip(walk(fast_delta, plan, keep), ones, strict=True)
        ]
        again = all(torch.equal(walk(fast_delta, plan, Keep.FOLD)[1], ones[1]) for _ in range(5))
        distances = [apart(f, t) for f, t in zip(ones, twin, strict=True)]
        right = all(bits) and again and max(distances) < 0.02
        found = []
        for valid, fold in ((1, 1), (16, 0), (16, 5)):
            words = (word(0), word(fold), word(valid))
            turn = [
                partial(fast_delta.step, *rows, weights, m, *words, out, marks=mark)
                for m, mark in zip(memories, marks, strict=True)
            ]
            found.append(round(replayed_us(turn, first=marks.zero_), 2))
        tell(f"delta.v{v_tile}.e{enter}", [*found, f"a row {(found[2] - found[1]) / 5:.3f}", bits, again, distances])
        if right:
            scores.append((found[0] + found[2], index))
    if scores:
        best["delta"] = list(DELTAS[min(scores)[1]])
    tell("delta.best", best.get("delta"))


def _linears(tell: Callable[[str, Any], None], best: dict[str, Any]) -> None:
    for kind in ("bf16", "int8"):
        for name, candidates in (("wide", WIDE), ("narrow", NARROW)):
            totals: dict[int, float] = {}
            for n, k in SHAPES[name]:
                weights = [_packed(kind, bf16(n, k, scale=0.02)) for _ in range(12)]
                x, out = bf16(ROWS, k), bf16(ROWS, n)
                given: dict[str, Any] = {"squares": torch.ones(ROWS, k // 16, device=DEVICE)}
                if name == "narrow":
                    given = {"residual": out}
                for index, tile in enumerate(candidates):
                    try:
                        found = [
                            round(replayed_us([partial(linear, x, w, word(rows), out, tile=tile, **given)
                                          for w in weights * 3]), 2)
                            for rows in (1, ROWS)
                        ]  # fmt: skip
                        totals[index] = totals.get(index, 0.0) + sum(found)
                        tell(f"linear.{n}x{k}.{kind}.{index}", found)
                    except Exception as error:
                        totals[index] = 1e9
                        tell(f"linear.{n}x{k}.{kind}.{index}", f"{type(error).__name__}: {error}"[:150])
                del weights
            chosen = min(totals, key=lambda index: totals[index])
            best.setdefault("linear", {})[f"{name}.{kind}"] = asdict(candidates[chosen])
            tell(f"linear.{name}.{kind}.best", asdict(candidates[chosen]))


if __name__ == "__main__":
    sys.exit(main())
