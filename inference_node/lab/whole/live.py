"""A target at work, and how a bench makes it do what it wants: imposed routing and acceptance, places, times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from inference_node.fast.cycle import Runner
from inference_node.fast.target import FastTarget
from inference_node.lab.fast_model import random_target
from inference_node.lab.shapes import SHAPES, Shape
from inference_node.speculate.seam import Cut, Sampling

CYCLES = 200
"""Of a generation that is timed, and the period of the imposed acceptance: every run has exactly the stated mean."""


@dataclass
class Bench:
    """One run: a target, what was found, and where it is told."""

    shape: Shape
    device: torch.device
    contexts: tuple[int, ...]
    repeat: int
    bit_positions: int
    text_tokens: int
    out: Path | None
    commit: str | None = None  # what is measured, where git does not know it
    found: dict[str, float] = field(default_factory=dict)
    target: FastTarget | None = None

    @property
    def shape_name(self) -> str:
        return next(name for name, shape in SHAPES.items() if shape is self.shape)

    @property
    def live(self) -> FastTarget:
        assert self.target is not None, "made by main"
        return self.target

    @property
    def start(self) -> int:
        return len(self.live.rows)

    @property
    def runner(self) -> Runner:
        return self.live.runner

    def tell(self, **values: float) -> None:
        for name, value in values.items():
            self.found[name] = value
            print(f"{name} = {value:.6g}", flush=True)


class Anything:
    """A grammar that allows every id: its cost is that of making and sending masks."""

    def __init__(self, ids: int) -> None:
        self.words = -(-ids // 32)

    def masks(self, drafts: Sequence[int]) -> torch.Tensor:
        return torch.full((len(drafts) + 1, self.words), -1, dtype=torch.int32)

    def advance(self, tokens: Sequence[int]) -> None:
        pass


def tokens(bench: Bench, count: int, seed: int) -> list[int]:
    most = min(bench.shape.vocab - 64, 100_000)
    return torch.randint(most, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def synchronize(bench: Bench) -> None:
    if bench.device.type == "cuda":
        torch.cuda.synchronize()


def timed(bench: Bench, work: Callable[[], Any], repeat: int) -> float:
    """Median seconds of one run, on the device's clock where there is one."""
    for _ in range(3):
        work()
    if bench.device.type != "cuda":
        return statistics.median(_walls(work, min(repeat, 3)))
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeat + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(one.elapsed_time(other) for one, other in pairwise(marks)) / 1e3


def graphed(bench: Bench, work: Callable[[], None]) -> Callable[[], None]:
    if bench.device.type != "cuda":
        return work
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    return graph.replay


def profiled(work: Callable[[], Any], count: int = 10) -> tuple[dict[str, float], float]:
    """Microseconds by kernel name of one run, and how many kernels it has. Prints the longest."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(count):
            work()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = {}
    for event in seen.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times.setdefault(event.name[:60], []).append(event.device_time_total)
    for name, each in sorted(times.items(), key=lambda item: -sum(item[1]))[:16]:
        print(f"  {sum(each) / count:9.1f} us {len(each) / count:7.1f} x {statistics.median(each):8.2f} {name}")
    return {name: sum(each) / count for name, each in times.items()}, sum(map(len, times.values())) / count


def impose(bench: Bench, rows: int, woken: int | None) -> None:
    """From now on every layer's block of `rows` rows wakes this many experts; None: the router's own choice.

    Contents change, the tensor does not: captured graphs read it.
    """
    model, mixture = bench.runner.model, bench.runner.model.sizes.mixture
    if mixture is None:
        return
    if woken is None:
        forget_captures(bench, imposed=False)
        return
    random = torch.Generator().manual_seed(woken)
    layers = []
    for _ in range(model.sizes.layers):
        some = torch.randperm(mixture.experts, generator=random)[: max(woken, mixture.top)].tolist()
        layers.append([_choice(some, row, rows, mixture.top) for row in range(16)])
    made = torch.tensor(layers, dtype=torch.int32, device=bench.device)
    if model.imposed is None:
        model.imposed = made
        forget_captures(bench, imposed=True)
    else:
        model.imposed.copy_(made)


def _choice(some: Sequence[int], row: int, rows: int, top: int) -> list[int]:
    """A row's experts, so that all rows together choose each of `some` at least once, if they can."""
    step = max(1, (len(some) - top) / max(1, rows - 1)) if rows > 1 else 0
    first = round(row * min(step, top))
    return [some[(first + place) % len(some)] for place in range(top)]


def forget_captures(bench: Bench, *, imposed: bool) -> None:
    if not imposed:
        bench.runner.model.imposed = None
    bench.runner.graphs.forget()


def accepted(bench: Bench, tau: float) -> None:
    """From now on cycles accept by a seeded sequence whose mean over CYCLES is tau - 1 to the last draft.

    The sequence of the first generation and that of a later one are the same: its place is the cycle's number.
    """
    runner = bench.runner
    counts = imposed_counts(tau, runner.block - 1)
    made = torch.tensor(counts, dtype=torch.int32, device=bench.device)
    if runner.shared.imposed is None:
        runner.shared.imposed = made
        runner.graphs.forget()
    else:
        runner.shared.imposed.copy_(made)


def imposed_counts(tau: float, most: int) -> list[int]:
    """CYCLES numbers of accepted drafts, spread as if each draft had one chance to be right, with tau - 1 as mean."""
    mean = min(tau - 1, 0.95 * most)
    random = torch.Generator().manual_seed(7)
    draws = torch.rand(CYCLES, most, generator=random)
    counts = (draws < _chance(mean, most)).to(torch.int64).cumprod(1).sum(1).tolist()
    missing, at = round(mean * CYCLES) - sum(counts), 0
    while missing:
        step = 1 if missing > 0 else -1
        if 0 <= counts[at % CYCLES] + step <= most:
            counts[at % CYCLES] += step
            missing -= step
        at += 7  # no neighbours: 7 and CYCLES have no common factor
    return counts


def _chance(mean: float, most: int) -> float:
    """Of each draft to be right, so that a block accepts `mean` of them."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if sum(middle**i for i in range(1, most + 1)) < mean:
            low = middle
        else:
            high = middle
    return low


def stand_at(bench: Bench, context: int) -> None:
    """A sequence of this many rows. Their values do not matter to time, so they are not computed at long contexts."""
    target = bench.live
    if target.position == context:
        return
    target.reset()
    target.runner.table.open(0, min(context + 4096, target.runner.positions))
    if context <= 256:
        target.prefill(tokens(bench, context, 1))
        return
    for pool in target.runner.table.pages.pools:
        for page in target.runner.table.held:
            pool[page].normal_()
    target.rows = tokens(bench, context, 1)


def begin(
    bench: Bench, context: int, *, budget: int, draft: bool = True, sampling: Sampling = Sampling(), **more: Any
) -> None:
    target = bench.live
    room = target.facts.context - context - 1
    target.begin([*target.rows, 5], sampling, budget=min(budget, room), draft=draft, **more)


def drafted(bench: Bench, context: int, tau: float, **more: Any) -> tuple[int, int, float]:
    """A generation with drafts that are accepted with this mean, exactly."""
    stand_at(bench, context)
    accepted(bench, tau)
    begin(bench, context, budget=round(tau * (CYCLES + 8)) + 200, **more)
    return generation(bench.live, CYCLES if bench.device.type == "cuda" else 6)


def generation(target: FastTarget, cycles: int) -> tuple[int, int, float]:
    """Tokens, cycles and seconds of so many cycles of a generation under way, after a few to warm up. It goes on."""
    pending = target.cycle()
    for _ in range(4):
        ahead = target.cycle()
        pending.read()
        pending = ahead
    began = time.perf_counter()
    said = done = 0
    for _ in range(cycles):
        ahead = target.cycle()
        result = pending.read()
        said += len(result.tokens)
        done += 1
        pending = ahead
        if result.cut is Cut.IDLE:
            break
    seconds = time.perf_counter() - began
    pending.read()
    return said, max(1, done), seconds


def passes_of(bench: Bench, rows: int) -> float:
    """Seconds of one plain graph over this many rows: verify, choice and settling."""
    runner = bench.runner
    if runner.shared.imposed is not None:
        runner.shared.imposed.zero_()
    replay = captured(bench, "plain")
    runner.begin_pass(start=bench.start, valid=rows, fold=0)
    seconds = timed(bench, replay, bench.repeat)
    runner.end_passes()
    return seconds


def captured(bench: Bench, name: str) -> Callable[[], None]:
    """The piece as a graph (or as it is, on a CPU), captured with no rows in it."""
    runner = bench.runner
    if runner.graphs.missing((name,)):
        runner.begin_pass(start=bench.start, valid=0, fold=0)
        runner.graphs.capture(name, runner.pieces[name])
    return lambda: runner.graphs.run(name, runner.pieces[name])


def woken_by_router(bench: Bench) -> float:
    return float(bench.runner.model.woken.to(torch.float32).mean()) if bench.runner.model.woken.numel() else 0.0


def top(bench: Bench) -> int:
    mixture = bench.runner.model.sizes.mixture
    return mixture.top if mixture is not None else 1


def like(bench: Bench, rollback: str, *, drafter: str = "dflash", block: int | None = None) -> FastTarget:
    """A target over the same weights with another rollback or drafter."""
    live = bench.live
    return random_target(
        bench.shape, bench.device, context=live.facts.context, block=block or live.facts.block, rollback=rollback,
        weights=live.runner.model.weights, dtype=live.runner.model.dtype, drafter=drafter,
    )  # fmt: skip


def _walls(work: Callable[[], Any], repeat: int) -> Iterator[float]:
    for _ in range(repeat):
        began = time.perf_counter()
        work()
        yield time.perf_counter() - began
