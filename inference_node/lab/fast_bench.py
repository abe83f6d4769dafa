"""What the fast engine takes on this machine, at real shapes: `lamplighter-node bench verify` and `bench eta`.

A random model is made on the device. Routing is imposed to wake a given number of experts per block, acceptance by a
seeded sequence with a stated mean; fold and drafter context follow it as they would a real one. Times are medians over
replays of the captured graphs; bits are compared at every position. Results are told as they come and written at the
end, so that a run that is cut short has still said what it found.

    python -m inference_node.lab.fast_bench --shape 35b-a3b --out docs/figures
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from inference_node.fast import reading
from inference_node.fast import weights as fast_weights
from inference_node.fast.cycle import Runner
from inference_node.fast.sizes import Sizes, sizes
from inference_node.fast.target import FastTarget
from inference_node.fast.weights import DeltaPart, MixturePart, layer_places
from inference_node.lab import figures
from inference_node.lab.fabricate import _target_config
from inference_node.lab.fast_model import in_int8, random_target, random_weights
from inference_node.lab.shapes import SHAPES, Shape
from inference_node.models import weights as model_weights
from inference_node.models.files import ModelFiles, find
from inference_node.speculate.seam import Cut, Sampling

WOKEN = (8, 31, 47, 88, 102)
ROLLBACKS = ("fold", "snapshots", "replay")
TAUS = {"tau_7_35": 7.35, "tau_4_9": 4.9}
CYCLES = 200
"""Of a generation that is timed, and the period of the imposed acceptance: every run has exactly the stated mean."""
PARTS = (
    "copy",
    "verify",
    "draft",
    "gaps",
    "eta",
    "bits",
    "int8",
    "constrained",
    "text",
    "prefill",
    "long",
    "experts",
    "transformers",
    "loading",
)


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
    found: dict[str, float] = field(default_factory=dict)
    target: FastTarget | None = None

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
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            (self.out / "fast-partial.json").write_text(json.dumps(self.found, indent=1), encoding="utf-8")


def run(bench: Bench, parts: Sequence[str]) -> None:
    """Every part by itself: what fails is told and the rest goes on."""
    for part in parts:
        began = time.perf_counter()
        try:
            with torch.inference_mode():
                globals()[f"_{part}"](bench)
        except Exception:
            print(f"{part} FAILED\n{traceback.format_exc()}", flush=True)
            if bench.target is not None:
                bench.runner.model.imposed = bench.runner.shared.imposed = None
        print(f"-- {part}: {time.perf_counter() - began:.1f} s", flush=True)


# The parts.


def _copy(bench: Bench) -> None:
    """Bytes read and written per second by a large copy."""
    size = (4 << 30) if bench.device.type == "cuda" else (16 << 20)
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=bench.device)
    into = torch.empty_like(source)
    seconds = timed(bench, lambda: into.copy_(source), 10)
    bench.tell(copy_tb_s=2 * size / seconds / 1e12)


def _bits(bench: Bench) -> None:
    """Logits of each row alone against those in a block with neighbours, for each rollback, any width, any fold."""
    positions = mismatches = 0
    line = tokens(bench, bench.bit_positions + 80, 3)
    alone = None
    for rollback in ROLLBACKS:
        target = _like(bench, rollback)
        start = 64
        if alone is None:
            target.reset()
            target.prefill(line[:start])
            alone = [_logits(target, [token], start + at, 1)[0] for at, token in enumerate(line[start:-16])]
        target.reset()
        target.prefill(line[:start])
        random = torch.Generator().manual_seed(5)
        at = start
        while at < len(line) - 16:
            width, kept = _width(random, target.facts.block), 0
            kept = int(torch.randint(1, width + 1, (), generator=random))
            block = line[at : at + kept] + torch.randint(500, (width - kept,), generator=random).tolist()
            rows = _logits(target, block, at, kept)
            for row in range(kept):
                if at + row - start < len(alone):
                    positions += 1
                    mismatches += not torch.equal(rows[row], alone[at + row - start])
            at += kept
    bench.tell(bit_positions=positions, bit_mismatches=mismatches)


def _text(bench: Bench) -> None:
    """The same text with drafts and without, greedy and sampled, for as many tokens as --text says."""
    total = wrong = 0
    line = tokens(bench, 280, 3)
    target = _like(bench, "fold")
    samplings = (
        Sampling(),
        Sampling(temperature=1.0, seed=4),
        Sampling(temperature=0.8, seed=5, top_k=20, top_p=0.95),
    )
    for sampling in samplings:
        asked = max(1, bench.text_tokens // len(samplings))
        plain = _said(target, line[:200], sampling, asked, draft=False)
        told = _said(target, line[:200], sampling, asked, draft=True)
        total += len(plain)
        wrong += abs(len(plain) - len(told)) + sum(one != other for one, other in zip(plain, told, strict=False))
        bench.tell(text_tokens=total, text_mismatches=wrong)


def _verify(bench: Bench) -> None:
    """Decode and verify at each context and number of woken experts; and what folding costs."""
    runner = bench.runner
    for context in bench.contexts:
        end = "" if context == bench.contexts[0] else f"_{context // 1024}k"
        _stand_at(bench, context)
        impose(bench, 1, min(8, _top(bench) * 1))
        bench.tell(**{f"decode_ms{end}": 1e3 * _passes(bench, 1)})
        for woken in WOKEN:
            impose(bench, 16, woken)
            bench.tell(**{f"verify16_e{woken}_ms{end}": 1e3 * _passes(bench, runner.block)})
    _stand_at(bench, bench.contexts[0])
    for rows in (1, 2, 4, 8, 16):
        if rows <= runner.block:
            impose(bench, rows, None)
            seconds = _passes(bench, rows)
            bench.tell(**{f"verify_rows_{rows}_ms": 1e3 * seconds, f"woken_rows_{rows}": _woken(bench)})
    impose(bench, 16, 47)
    replay = _captured(bench, "verify")
    runner.begin_pass(start=bench.start, valid=runner.block, fold=0)
    none = timed(bench, replay, bench.repeat)
    runner.begin_pass(start=bench.start, valid=runner.block, fold=min(5, runner.block))
    some = timed(bench, replay, bench.repeat)
    bench.tell(fold_share=(some - none) / none, verify_unfolded_ms=1e3 * none)


def _draft(bench: Bench) -> None:
    for context in bench.contexts:
        _stand_at(bench, context)
        replay = _captured(bench, "draft")
        bench.runner.begin_pass(start=bench.start, valid=bench.runner.block, fold=0)
        end = "" if context == bench.contexts[0] else f"_{context // 1024}k"
        bench.tell(**{f"draft_ms{end}": 1e3 * timed(bench, replay, bench.repeat)})


def _gaps(bench: Bench) -> None:
    """Share of a cycle's graph in which no kernel runs: one less the sum of kernel times over the wall time."""
    _stand_at(bench, bench.contexts[0])
    impose(bench, 16, 47)
    accepted(bench, 7.35)
    replay = _captured(bench, "cycle")
    bench.runner.begin_pass(start=bench.start, valid=bench.runner.block, fold=0)
    wall = timed(bench, replay, bench.repeat)
    kernels, count = _profiled(replay)
    busy = sum(kernels.values()) / 1e6
    bench.tell(cycle_ms=1e3 * wall, kernels_per_cycle=count, busy_ms=1e3 * busy, gap_share=1 - busy / wall)
    bench.runner.end_passes()
    impose(bench, 1, 8)
    replay = _captured(bench, "plain")
    bench.runner.begin_pass(start=bench.start, valid=1, fold=0)
    print("  decode:")
    _profiled(replay)
    bench.runner.end_passes()


def _profiled(work: Callable[[], Any], count: int = 10) -> tuple[dict[str, float], float]:
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


def _eta(bench: Bench) -> None:
    """Tokens per second of whole generations, read one cycle behind as the engine does, acceptance imposed."""
    target = bench.live
    for context in bench.contexts:
        end = "" if context == bench.contexts[0] else f"_{context // 1024}k"
        for name, tau in TAUS.items():
            _stand_at(bench, context)
            impose(bench, 16, 47)
            said, cycles, seconds = _drafted(bench, context, tau)
            bench.tell(**{f"tok_s_{name}{end}": said / seconds, f"measured_{name}{end}": said / cycles})
    for woken in (8, 31, 88):
        impose(bench, 16, woken)
        said, _, seconds = _drafted(bench, bench.contexts[0], 7.35)
        bench.tell(**{f"tok_s_tau_7_35_e{woken}": said / seconds})
    bench.runner.shared.imposed = None
    _stand_at(bench, bench.contexts[0])
    impose(bench, 1, 8)
    begin(bench, bench.contexts[0], budget=400, draft=False)
    said, _, seconds = _generation(target, CYCLES if bench.device.type == "cuda" else 6)
    bench.tell(plain_tok_s=said / seconds)


def _drafted(bench: Bench, context: int, tau: float, **more: Any) -> tuple[int, int, float]:
    """A generation with drafts that are accepted with this mean, exactly."""
    _stand_at(bench, context)
    accepted(bench, tau)
    begin(bench, context, budget=round(tau * (CYCLES + 8)) + 200, **more)
    return _generation(bench.live, CYCLES if bench.device.type == "cuda" else 6)


def _prefill(bench: Bench) -> None:
    target = bench.live
    rows = min(8192 if bench.device.type == "cuda" else 256, target.facts.context - 64)
    line = tokens(bench, rows, 9)
    bench.runner.model.imposed = None
    times = []
    for _ in range(3):
        target.reset()
        synchronize(bench)
        began = time.perf_counter()
        target.prefill(line)
        synchronize(bench)
        times.append(time.perf_counter() - began)
    bench.tell(prefill_tok_s=rows / min(times[1:]), prefill_first_s=times[0])
    if bench.device.type == "cuda":

        def again() -> None:
            target.reset()
            target.prefill(line)

        busy = sum(_profiled(again, 1)[0].values()) / 1e6
        bench.tell(prefill_busy_s=busy)


def _constrained(bench: Bench) -> None:
    """The same generation under a grammar that allows everything: masks made and sent for every row."""
    target = bench.live
    _stand_at(bench, bench.contexts[0])
    impose(bench, 16, 47)
    context = bench.contexts[0]
    said, _, seconds = _drafted(bench, context, 7.35, constraint=Anything(target.facts.known_ids))
    bench.tell(constrained_tok_s_tau_7_35=said / seconds)
    said, _, seconds = _drafted(bench, context, 7.35, sampling=Sampling(temperature=1.0, seed=1, top_k=20, top_p=0.95))
    bench.tell(filtered_tok_s_tau_7_35=said / seconds)
    bench.runner.shared.imposed = None


def _long(bench: Bench) -> None:
    """Requests of equal context one after another: the last tenth against the first."""
    impose(bench, 16, 47)
    speeds = []
    for _ in range(50 if bench.device.type == "cuda" else 2):
        said, _, seconds = _drafted(bench, bench.contexts[0], 7.35)
        speeds.append(said / seconds)
    tenth = max(1, len(speeds) // 10)
    bench.tell(last_over_first=sum(speeds[-tenth:]) / sum(speeds[:tenth]))
    bench.runner.shared.imposed = None


def _experts(bench: Bench) -> None:
    """A layer's mixture against transformers' implementations, at equal routing: the smallest ratio over 1-16 rows."""
    from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as theirs

    runner = bench.runner
    model, mixture = runner.model, runner.model.sizes.mixture
    assert mixture is not None
    bench.runner.model.imposed = None
    parts = [part for part in model.weights.mlps if isinstance(part, MixturePart)][:8]
    config = _config_of(bench)
    ratios = []
    for rows in (1, 4, 16):
        valid = torch.tensor([rows], dtype=torch.int32, device=bench.device)
        x = torch.randn(16, model.sizes.hidden, device=bench.device).to(model.dtype)
        out = torch.empty_like(x)

        def ours(x: torch.Tensor = x, valid: torch.Tensor = valid, out: torch.Tensor = out) -> None:
            for part, plan in zip(parts, model.plans, strict=False):
                model.parts.route(x, part.norm, part.router, valid, model.normed, plan)
                model.parts.expert_up(model.normed, part.up, plan, model.expert_hidden)
                model.parts.expert_down(model.expert_hidden, part.down, plan, valid, x, out)

        best = None
        for kind in ("grouped_mm", "batched_mm", "eager"):
            try:
                blocks = [_their_block(theirs, config, part, kind) for part in parts]
                hidden = x[None, :rows]

                def run_them(blocks: Any = blocks, hidden: torch.Tensor = hidden) -> None:
                    for block in blocks:
                        block(hidden)

                seconds = timed(bench, run_them, 10)
                bench.tell(**{f"experts_{kind}_rows_{rows}_ms": 1e3 * seconds / len(parts)})
                best = seconds if best is None else min(best, seconds)
            except Exception as error:
                print(f"  transformers {kind} at {rows} rows: {type(error).__name__}: {str(error)[:200]}", flush=True)
        mine = timed(bench, graphed(bench, ours), bench.repeat)
        bench.tell(**{f"experts_fast_rows_{rows}_ms": 1e3 * mine / len(parts)})
        if best is not None:
            ratios.append(best / mine)
            bench.tell(**{f"experts_ratio_rows_{rows}": best / mine})
    if ratios:
        bench.tell(experts_vs_transformers=min(ratios))


def _transformers(bench: Bench) -> None:
    """A decode step of unmodified transformers over the very same tensors, with its fastest experts."""
    from transformers import AutoModelForCausalLM

    best = None
    for kind in ("grouped_mm", "batched_mm"):
        try:
            config = _config_of(bench)
            config._experts_implementation = kind
            with torch.device("meta"):
                module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
            _lend(bench, module)
            ids = torch.tensor([tokens(bench, 1024, 4)], device=bench.device)
            past = module(ids, use_cache=True).past_key_values
            times = []
            for step in range(8):
                synchronize(bench)
                began = time.perf_counter()
                past = module(ids[:, step : step + 1], past_key_values=past, use_cache=True).past_key_values
                synchronize(bench)
                times.append(time.perf_counter() - began)
            seconds = statistics.median(times[2:])
            bench.tell(**{f"transformers_{kind}_decode_ms": 1e3 * seconds})
            best = seconds if best is None else min(best, seconds)
        except Exception:
            print(f"  transformers {kind}: {traceback.format_exc()[-1500:]}", flush=True)
    if best is not None:
        bench.tell(transformers_decode_ms=1e3 * best)


def _int8(bench: Bench) -> None:
    """The same weights packed: lossy, half the bytes."""
    whole = bench.live
    less = in_int8(whole.runner.model.weights)
    bench.target = random_target(
        bench.shape, bench.device, context=whole.facts.context, block=whole.facts.block, weights=less, graphs=True
    )
    try:
        _stand_at(bench, bench.contexts[0])
        impose(bench, 1, 8)
        bench.tell(int8_decode_ms=1e3 * _passes(bench, 1), int8_weight_gb=less.bytes / 1e9)
        impose(bench, 16, 47)
        bench.tell(int8_verify16_e47_ms=1e3 * _passes(bench, bench.runner.block))
        said, _, seconds = _drafted(bench, bench.contexts[0], 7.35)
        bench.tell(int8_tok_s_tau_7_35=said / seconds)
    finally:
        bench.target = whole


def _loading(bench: Bench) -> None:
    """Half the layers from disk: GB/s into the device (cold, if the page cache may be dropped) and the host's peak."""
    shape = replace(bench.shape, layers=bench.shape.layers // 2)
    bench.target = None
    gc.collect()  # a runner and its pieces know each other
    torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory(dir=bench.out) as folder:
        files, size = _written(Path(folder), shape, bench.device)
        began, before = time.perf_counter(), _peak_reset()
        made = fast_weights.load(size, reading.stored(files), "half", torch.bfloat16, bench.device)
        synchronize(bench)
        seconds = time.perf_counter() - began
        bench.tell(loading_gb=made.bytes / 1e9, loading_gb_s=made.bytes / seconds / 1e9)
        bench.tell(loading_host_peak_gb=_peak() - before, loading_cache_dropped=float(_dropped()))


# What the parts are made of.


def _written(folder: Path, shape: Shape, device: torch.device) -> tuple[ModelFiles, Sizes]:
    """A random model of this shape as files under the released names."""
    (folder / "config.json").write_text(json.dumps(_target_config("qwen3_5_moe", shape, [0])), encoding="utf-8")
    files = find(str(folder))
    size = sizes(model_weights.text_config(files))
    made = random_weights(size, torch.bfloat16, device)
    top = {"embed_tokens.weight": made.embedding, "norm.weight": made.norm, "lm_head.weight": made.head.data}
    for layer in range(-1, size.layers):
        if layer >= 0:
            mixer, mlp = made.mixers[layer], made.mlps[layer]
            top = {place.name: place.into for place in layer_places(size, layer, mixer, mlp, single=False)}
        named = {name if name == "lm_head.weight" else f"model.language_model.{name}": t for name, t in top.items()}
        save_file({name: tensor.cpu() for name, tensor in named.items()}, folder / f"part-{layer + 1:02d}.safetensors")
    os.sync()
    with suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("3")
    return files, size


def _dropped() -> bool:
    return os.access("/proc/sys/vm/drop_caches", os.W_OK)


def _peak_reset() -> float:
    """The process's resident memory in GB; the peak is counted from here on."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> float:
    return _status("VmHWM")


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024 / 1e9


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


def _stand_at(bench: Bench, context: int) -> None:
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


def _generation(target: FastTarget, cycles: int) -> tuple[int, int, float]:
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


def _passes(bench: Bench, rows: int) -> float:
    """Seconds of one plain graph over this many rows: verify, choice and settling."""
    runner = bench.runner
    if runner.shared.imposed is not None:
        runner.shared.imposed.zero_()
    replay = _captured(bench, "plain")
    runner.begin_pass(start=bench.start, valid=rows, fold=0)
    seconds = timed(bench, replay, bench.repeat)
    runner.end_passes()
    return seconds


def _captured(bench: Bench, name: str) -> Callable[[], None]:
    """The piece as a graph (or as it is, on a CPU), captured with no rows in it."""
    runner = bench.runner
    if runner.graphs.missing((name,)):
        runner.begin_pass(start=bench.start, valid=0, fold=0)
        runner.graphs.capture(name, runner.pieces[name])
    return lambda: runner.graphs.run(name, runner.pieces[name])


def _woken(bench: Bench) -> float:
    return float(bench.runner.model.woken.to(torch.float32).mean()) if bench.runner.model.woken.numel() else 0.0


def _top(bench: Bench) -> int:
    mixture = bench.runner.model.sizes.mixture
    return mixture.top if mixture is not None else 1


def _width(random: torch.Generator, block: int) -> int:
    return int(torch.randint(1, block + 1, (), generator=random))


def _like(bench: Bench, rollback: str) -> FastTarget:
    """A target over the same weights with another rollback."""
    live = bench.live
    return random_target(
        bench.shape, bench.device, context=live.facts.context, block=live.facts.block, rollback=rollback,
        weights=live.runner.model.weights, dtype=live.runner.model.dtype,
    )  # fmt: skip


def _logits(target: FastTarget, block: Sequence[int], start: int, kept: int) -> torch.Tensor:
    """Logits of a block's rows that stay: the first `kept`."""
    target.runner.table.open(start, start + 2 * target.runner.block)
    return target.runner.probe(block, start, kept)[:kept].clone()


def _said(target: FastTarget, line: Sequence[int], sampling: Sampling, budget: int, *, draft: bool) -> list[int]:
    target.reset()
    target.prefill(line[:-1])
    target.begin(line, sampling, budget=budget, draft=draft)
    said: list[int] = []
    while (result := target.cycle().read()).cut is not Cut.IDLE:
        said += result.tokens
    return said


def _walls(work: Callable[[], Any], repeat: int) -> Iterator[float]:
    for _ in range(repeat):
        began = time.perf_counter()
        work()
        yield time.perf_counter() - began


def _config_of(bench: Bench) -> Any:
    from inference_node.lab.fast_model import text_config

    return text_config("qwen3_5_moe", bench.shape)


def _their_block(theirs: Any, config: Any, part: MixturePart, kind: str) -> Any:
    config._experts_implementation = kind
    with torch.device("meta"):
        block = theirs.Qwen3_5MoeSparseMoeBlock(config)
    lend_mixture(block, part)
    return block.eval()


def lend_mixture(block: Any, part: MixturePart) -> None:
    """transformers' module over our tensors, without a copy."""
    count = part.router.shape[0] - 1
    half = part.up.shape[1] // 2
    put(block.gate, "weight", part.router[:count])
    put(block.shared_expert_gate, "weight", part.router[count:])
    put(block.experts, "gate_up_proj", part.up.data[:count])
    put(block.experts, "down_proj", part.down.data[:count])
    put(block.shared_expert.gate_proj, "weight", part.up.data[count, :half])
    put(block.shared_expert.up_proj, "weight", part.up.data[count, half:])
    put(block.shared_expert.down_proj, "weight", part.down.data[count])


def put(module: Any, name: str, value: torch.Tensor) -> None:
    setattr(module, name, torch.nn.Parameter(value, requires_grad=False))


def _lend(bench: Bench, module: Any) -> None:
    """A whole transformers model over our tensors. Norms and rates are small copies in its own form."""
    weights, s = bench.runner.model.weights, bench.runner.model.sizes
    dtype = bench.runner.model.dtype
    d = s.delta
    assert d is not None
    body = module.model
    put(body.embed_tokens, "weight", weights.embedding)
    put(module.lm_head, "weight", weights.head.data)
    put(body.norm, "weight", (weights.norm - 1).to(dtype))
    body.rotary_emb = type(body.rotary_emb)(module.config).to(bench.device)
    for layer, mixer, mlp in zip(body.layers, weights.mixers, weights.mlps, strict=True):
        put(layer.input_layernorm, "weight", (mixer.norm - 1).to(dtype))
        put(layer.post_attention_layernorm, "weight", (mlp.norm - 1).to(dtype))
        assert isinstance(mlp, MixturePart)
        lend_mixture(layer.mlp, mlp)
        if isinstance(mixer, DeltaPart):
            part = layer.linear_attn
            rows = mixer.enter.data.split([d.channels, d.values, d.value_heads, d.value_heads])
            for name, value in zip(("qkv", "z", "b", "a"), rows, strict=True):
                put(getattr(part, f"in_proj_{name}"), "weight", value)
            put(part.conv1d, "weight", mixer.rule.conv[:, None])
            put(part, "A_log", mixer.rule.rate.log())
            put(part, "dt_bias", mixer.rule.shift.clone())
            put(part.norm, "weight", mixer.out_norm.to(dtype))
            put(part.out_proj, "weight", mixer.out.data)
        else:
            part = layer.self_attn
            keys = s.kv_heads * s.head_dim
            rows = mixer.enter.data.split([2 * s.heads * s.head_dim, keys, keys])
            for name, value in zip("qkv", rows, strict=True):
                put(getattr(part, f"{name}_proj"), "weight", value)
            put(part.q_norm, "weight", (mixer.q_norm - 1).to(dtype))
            put(part.k_norm, "weight", (mixer.k_norm - 1).to(dtype))
            put(part.o_proj, "weight", mixer.out.data)
    module.eval()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lamplighter-node bench", description="Measure the fast engine.")
    parser.add_argument("--shape", default="35b-a3b", choices=sorted(SHAPES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--contexts", default="1024,16384")
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--positions", type=int, default=2048, help="for the comparison of bits, per rollback")
    parser.add_argument("--text", type=int, default=768, help="tokens that are compared with drafts and without")
    parser.add_argument("--tiles", type=Path, help="of lab/tune_rows.py, in place of those in kernels/triton/tiles.py")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--name", default="fast-h200", help="of the figure file")
    parser.add_argument("--commit", help="of the tree that is measured, where git does not know it")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    contexts = tuple(int(context) for context in options.contexts.split(","))
    if options.tiles is not None:
        from inference_node.lab import tune_rows

        tune_rows.apply(options.tiles)
    shape, out = SHAPES[options.shape], options.out
    bench = Bench(shape, device, contexts, options.repeat, options.positions, options.text, out)
    began = time.perf_counter()
    block = 16 if options.shape != "small" else 8
    room = max(contexts[-1] + 4096, 8192 + 64, options.positions + 512)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.inference_mode():
        bench.target = random_target(
            bench.shape, device, context=min(room, bench.shape.positions - 64), block=block, dtype=dtype
        )
    synchronize(bench)
    print(f"{bench.live.facts.weight_bytes / 1e9:.1f} GB of weights made in {time.perf_counter() - began:.1f} s")
    run(bench, options.parts.split(","))
    if options.out is not None and device.type == "cuda":
        command = f"python -m inference_node.lab.fast_bench --shape {options.shape} --parts {options.parts}"
        more = {"model": f"random, shape {options.shape}"} | ({"commit": options.commit} if options.commit else {})
        print(figures.record(options.out, options.name, command, bench.found, **more))
    return 0


if __name__ == "__main__":
    sys.exit(main())
