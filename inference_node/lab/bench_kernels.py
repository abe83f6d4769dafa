"""What each kernel of the fast engine takes by itself: `lamplighter-node bench kernels`.

Per kernel and row count: the time, the bytes that have to move, their share of the copy bandwidth that the same device
just measured, and the launches. Weights of several layers take turns, as in a model, so that the second-level cache is
no help; on an accelerator the turns are replays of one captured graph. Experts are woken by imposed routing (8 by one
row; 31, 47, 88 and 102 by sixteen), since random routers wake other numbers than text does.

On a CPU the same cases run on the twins, which says nothing about speed but that the bench works.

    python -m inference_node.lab.bench_kernels --shape 35b-a3b --out docs/figures
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from inference_node.kernels import ops
from inference_node.kernels.plain.head import chosen
from inference_node.kernels.plain.linear import ROWS, feed
from inference_node.kernels.plain.packed import Weight, pack_int8, pack_mxfp4
from inference_node.kernels.plain.route import plan as room_for
from inference_node.lab import figures
from inference_node.lab.replayed import Call, replayed_us
from inference_node.lab.shapes import SHAPES, Shape

WOKEN = ((8, 1), (31, ROWS), (47, ROWS), (88, ROWS), (102, ROWS))
"""Distinct experts, and the rows that wake them."""

IN_TURN_BYTES = 400 << 20
"""Weights that take turns weigh at least this much: several times any second-level cache."""


LAUNCHES_IN_TURN = 240
"""Calls in one captured graph, at least, where a case has few: starting a graph takes some 20 us itself."""


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel at one size. Each call works on weights of its own."""

    name: str
    calls: Sequence[Call]
    bytes: int  # that one call has to read or write at least
    first: Call | None = None  # done once before the calls, which are then not repeated: zeroes what they count in


@dataclass(frozen=True, slots=True)
class Measured:
    """A case's median."""

    name: str
    us: float
    bytes: int
    launches: int

    def share(self, copy_tb_s: float) -> float:
        """Of the copy bandwidth."""
        return self.bytes / (self.us * 1e-6) / (copy_tb_s * 1e12)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a table; with --out writes kernels.json."""
    parser = argparse.ArgumentParser(prog="lamplighter-node bench kernels", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shape", choices=sorted(SHAPES), default=None, help="default: 35b-a3b, on a CPU small")
    parser.add_argument("--device", default=None, help="default: the first accelerator, else cpu")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--repeat", type=int, default=7, help="replays of which the median is taken")
    parser.add_argument("--out", type=Path, default=None, help="folder for kernels.json")
    parser.add_argument("--commit", default=None, help="what is measured, where the checkout is a copy that cannot say")
    given = parser.parse_args(arguments)
    device = torch.device(given.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    shape = given.shape or ("small" if device.type == "cpu" else "35b-a3b")
    copy = copy_tb_s(device)
    print(f"{figures.machine()}, shapes of {shape}; copies run at {copy:.2f} TB/s\n")
    print(f"{'kernel':34} {'us':>9} {'MB':>9} {'TB/s':>6} {'share':>6} {'launches':>8}")
    found: dict[str, float] = {"copy_tb_s": copy}
    for case in cases(SHAPES[shape], device, given.only):
        m = measure(case, device, given.repeat)
        share = m.share(copy)
        print(
            f"{m.name:34} {m.us:9.2f} {m.bytes / 1e6:9.2f} {share * copy:6.2f} {share:6.0%} {m.launches:8}", flush=True
        )
        found |= {f"{m.name}_us": m.us, f"{m.name}_share": share, f"{m.name}_launches": m.launches}
    if given.out is not None:
        more = {"shape": shape} | ({} if given.commit is None else {"commit": given.commit})
        path = figures.record(given.out, "kernels", figures.command("bench_kernels", parser, given), found, **more)
        print(f"\n{path}")
    return 0


def cases(shape: Shape, device: torch.device, only: str = "") -> Iterator[Case]:
    """Made one group at a time, so that a group's weights are gone before the next one's come."""
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    bench = _Maker(shape, device, dtype)
    groups = (
        bench.layers, bench.norms, bench.routing, bench.experts, bench.packed_experts, bench.head, bench.prefill,
    )  # fmt: skip
    for group in groups:
        for case in group():
            if only in case.name:
                yield case


def measure(case: Case, device: torch.device, repeat: int) -> Measured:
    """The median time of a call when calls follow one another, in a graph where the device has graphs."""
    for call in case.calls[:2]:
        call()
    if device.type == "cpu":
        times = [_seconds(call) for _ in range(repeat) for call in case.calls]
        return Measured(case.name, statistics.median(times) * 1e6, case.bytes, 0)
    torch.cuda.synchronize()
    launches = _launches(case.calls[0])
    turns = list(case.calls) * (max(1, LAUNCHES_IN_TURN // len(case.calls)) if case.first is None else 1)
    return Measured(case.name, replayed_us(turns, first=case.first, repeat=repeat), case.bytes, launches)


def copy_tb_s(device: torch.device) -> float:
    """Bytes read plus bytes written by a large copy, in TB/s."""
    count = (1 << 31) if device.type == "cuda" else (1 << 24)
    source = torch.empty(count, dtype=torch.int32, device=device).random_()
    target = torch.empty_like(source)
    times = []
    for _ in range(6):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 2 * source.numel() * 4 / statistics.median(times[1:]) / 1e12


def imposed(experts: int, woken: int, rows: int, top: int) -> torch.Tensor:
    """[rows, top] int32: `woken` distinct experts in all, spread evenly, none twice in a row."""
    if not top <= woken <= min(experts, rows * top):
        raise ValueError(f"{rows} rows of {top} experts out of {experts} cannot wake {woken}")
    pool = torch.randperm(experts, generator=torch.Generator().manual_seed(woken))[:woken]
    places = (torch.arange(rows)[:, None] * top + torch.arange(top)[None, :]) % woken
    return pool[places].to(torch.int32)


class _Maker:
    """Cases of one model's shapes."""

    def __init__(self, shape: Shape, device: torch.device, dtype: torch.dtype) -> None:
        self.shape, self.device, self.dtype = shape, device, dtype
        self.ops = ops(device)
        self.size = 2 if dtype == torch.bfloat16 else 4

    def layers(self) -> Iterator[Case]:
        """The linear layers of a decode step, for 1 and 16 rows, in bf16 and int8."""
        s = self.shape
        channels = 2 * s.linear_key_heads * s.linear_dim + s.linear_value_heads * s.linear_dim
        values = s.linear_value_heads * s.linear_dim
        attention = (2 * s.heads + 2 * s.kv_heads) * s.head_dim
        for kind in ("bf16", "int8"):
            for name, n, k in (
                ("delta_in", channels + values + 2 * s.linear_value_heads, s.hidden),
                ("attention_in", attention, s.hidden),
                ("attention_out", s.hidden, s.heads * s.head_dim),
            ):
                weights = self._turns(partial(self._weight, kind, n, k))
                ends = name == "attention_out"
                x, out = self._rows(k), self._rows(n)
                given: dict[str, Any] = {"squares": torch.ones(ROWS, k // 16, device=self.device)}
                if ends:
                    given = {"residual": out, "feed": feed(ROWS, self._ones(n), self.dtype)}
                for rows in (1, ROWS):
                    calls = [partial(self.ops.linear, x, w, self._int(rows), out, **given) for w in weights]
                    size = weights[0].bytes + rows * (k + n) * self.size
                    yield Case(f"{name}{_suffix(kind)}_{rows}", calls, size)
            yield from self._gated(kind, values)

    def _gated(self, kind: str, values: int) -> Iterator[Case]:
        """The layer after a delta rule, its norm and gate included."""
        hidden, factor = self.shape.hidden, self._ones(self.shape.linear_dim)
        weights = self._turns(partial(self._weight, kind, hidden, values))
        x, gate, out = self._rows(values), self._rows(values), self._rows(hidden)
        for rows in (1, ROWS):
            calls = [
                partial(self.ops.linear, x, w, self._int(rows), out, norm=factor, gate=gate, residual=out)
                for w in weights
            ]
            size = weights[0].bytes + rows * (2 * values + 2 * hidden) * self.size
            yield Case(f"delta_out{_suffix(kind)}_{rows}", calls, size)

    def norms(self) -> Iterator[Case]:
        """Launches that are all latency: what a kernel costs at least."""
        x, out, factor = self._rows(self.shape.hidden), self._rows(self.shape.hidden), self._ones(self.shape.hidden)
        table = torch.randn(64, self.shape.hidden, device=self.device).to(self.dtype)
        ids = torch.arange(ROWS, dtype=torch.int32, device=self.device)
        for rows in (1, ROWS):
            valid, size = self._int(rows), 2 * rows * self.shape.hidden * self.size
            yield Case(f"norm_{rows}", [partial(self.ops.norm, x, factor, out, valid=valid)], size)
            yield Case(f"embed_{rows}", [partial(self.ops.embed, ids, table, out, valid=valid)], size)

    def routing(self) -> Iterator[Case]:
        s = self.shape
        x, h, factor = self._rows(s.hidden), self._rows(s.hidden), self._ones(s.hidden)
        where = room_for(s.experts, s.experts_per_token, True, self.device)
        routers = [self._weight("bf16", s.experts + 1, s.hidden).data for _ in range(4 if s.hidden < 999 else 400)]
        marks = torch.zeros(len(routers), dtype=torch.int32, device=self.device)
        for rows in (1, ROWS):
            valid = self._int(rows)
            calls = [
                partial(self.ops.route, x, factor, router, valid, h, where, mark=mark)
                for router, mark in zip(routers, marks.split(1), strict=True)
            ]
            yield Case(f"route_{rows}", calls, routers[0].numel() * self.size, first=marks.zero_)

    def experts(self) -> Iterator[Case]:
        yield from self._experts("bf16")

    def packed_experts(self) -> Iterator[Case]:
        yield from self._experts("int8")
        yield from self._experts("mxfp4")

    def head(self) -> Iterator[Case]:
        """Greedy and with noise; the bar's bytes are the weight's."""
        s = self.shape
        x, seed = self._rows(s.hidden), torch.tensor([3, 4], dtype=torch.int32, device=self.device)
        squares = torch.ones(ROWS, s.hidden // 16, device=self.device)
        position = torch.arange(ROWS, dtype=torch.int32, device=self.device)
        room = chosen(s.vocab, self.device)
        for kind in ("bf16", "int8"):
            weight = self._weight(kind, s.vocab, s.hidden)
            for rows, heat in ((1, 0.0), (ROWS, 0.0), (ROWS, 0.8)):
                valid, temperature = self._int(rows), torch.tensor([heat], device=self.device)
                name = f"head{_suffix(kind)}_{rows}{'_sampled' if heat else ''}"
                head = partial(self.ops.head, x, weight, valid, temperature, seed, position, room, squares=squares)
                yield Case(name, [head], weight.bytes)

    def prefill(self) -> Iterator[Case]:
        """Bound by arithmetic, not by bytes: the share of the copy bandwidth is low by nature."""
        s = self.shape
        rows = 32 if s.hidden < 999 else 2048
        values = s.linear_value_heads * s.linear_dim
        x, residual = (torch.randn(rows, k, device=self.device).to(self.dtype) for k in (values, s.hidden))
        out = torch.empty_like(residual)
        weight = self._weight("bf16", s.hidden, values)
        linear = partial(self.ops.prefill_linear, x, weight, out, residual=residual)
        yield Case(f"prefill_linear_{rows}", [linear], weight.bytes + rows * (values + 2 * s.hidden) * self.size)
        up, down = self._stacks("bf16")
        logits = torch.randn(rows, s.experts + 1, device=self.device)
        mixture = partial(
            self.ops.prefill_experts, residual, logits, up, down, rows, residual, out,
            experts=s.experts, top=s.experts_per_token,
        )  # fmt: skip
        yield Case(f"prefill_experts_{rows}", [mixture], up.bytes + down.bytes)

    def _experts(self, kind: str) -> Iterator[Case]:
        s = self.shape
        if kind == "mxfp4" and (s.hidden % 32 or s.expert_width % 32):
            return
        top = s.experts_per_token
        stacks = [self._stacks(kind) for _ in range(3)]
        x, h, out = (self._rows(s.hidden) for _ in range(3))
        hidden = torch.randn(ROWS, top + 1, s.expert_width, device=self.device).to(self.dtype)
        fed = feed(ROWS, self._ones(s.hidden), self.dtype)
        router = self._weight("bf16", s.experts + 1, s.hidden).data
        for woken, rows in (*WOKEN, *([(s.experts, ROWS)] if s.experts < ROWS else [])):
            if not top <= woken <= min(s.experts, rows * top):
                continue
            where, valid = room_for(s.experts, top, True, self.device), self._int(rows)
            ids = torch.zeros(ROWS, top, dtype=torch.int32, device=self.device)
            ids[:rows] = imposed(s.experts, woken, rows, top).to(self.device)
            self.ops.route(x, self._ones(s.hidden), router, valid, h, where, imposed=ids)
            self.ops.expert_up(h, stacks[0][0], where, hidden)
            if int(where.count[1]) != woken:
                raise RuntimeError(f"{int(where.count[1])} experts were woken, not {woken}")
            share = (woken + 1) / (s.experts + 1)
            ups = [partial(self.ops.expert_up, h, up, where, hidden) for up, _ in stacks]
            downs = [partial(self.ops.expert_down, hidden, down, where, valid, x, out, feed=fed) for _, down in stacks]
            yield Case(f"expert_up{_suffix(kind)}_e{woken}", ups, int(stacks[0][0].bytes * share))
            yield Case(f"expert_down{_suffix(kind)}_e{woken}", downs, int(stacks[0][1].bytes * share))

    def _stacks(self, kind: str) -> tuple[Weight, Weight]:
        s = self.shape
        return (
            self._weight(kind, s.experts + 1, 2 * s.expert_width, s.hidden),
            self._weight(kind, s.experts + 1, s.hidden, s.expert_width),
        )

    def _weight(self, kind: str, *shape: int) -> Weight:
        """Packed in pieces, so that no fp32 copy of a stack of experts is ever whole."""
        packs: dict[str, Callable[[torch.Tensor], Weight]] = {"bf16": Weight, "int8": pack_int8, "mxfp4": pack_mxfp4}
        pack = packs[kind]
        if len(shape) == 2:
            return pack((torch.randn(*shape, device=self.device) * 0.02).to(self.dtype))
        parts = [self._weight(kind, *shape[1:]) for _ in range(shape[0])]
        scales = [part.scale for part in parts if part.scale is not None]
        return Weight(torch.stack([part.data for part in parts]), torch.stack(scales) if scales else None)

    def _turns(self, make: Callable[[], Weight]) -> list[Weight]:
        first = make()
        count = 2 if self.shape.hidden < 999 else max(3, IN_TURN_BYTES // first.bytes)
        return [first, *(make() for _ in range(count - 1))]

    def _rows(self, width: int) -> torch.Tensor:
        return torch.randn(ROWS, width, device=self.device).to(self.dtype)

    def _ones(self, width: int) -> torch.Tensor:
        return torch.ones(width, device=self.device)

    def _int(self, value: int) -> torch.Tensor:
        return torch.tensor([value], dtype=torch.int32, device=self.device)


def _suffix(kind: str) -> str:
    return "" if kind == "bf16" else f"_{kind}"


def _seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _launches(call: Call) -> int:
    """Kernels that one call starts, by torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    return sum(event.count for event in seen.key_averages() if getattr(event, "device_time_total", 0) > 0)


if __name__ == "__main__":
    sys.exit(main())
