"""Times of passes, cycles and generations at each context and number of woken experts."""

from __future__ import annotations

import time

import torch

from inference_node.lab.fast_model import in_int8, random_target
from inference_node.lab.whole.live import (
    CYCLES,
    Anything,
    Bench,
    accepted,
    begin,
    captured,
    drafted,
    generation,
    impose,
    passes_of,
    profiled,
    stand_at,
    synchronize,
    timed,
    tokens,
    top,
    woken_by_router,
)
from inference_node.speculate.seam import Sampling

WOKEN = (8, 31, 47, 88, 102)
TAUS = {"tau_7_35": 7.35, "tau_4_9": 4.9}


def copy(bench: Bench) -> None:
    """Bytes read and written per second by a large copy."""
    size = (4 << 30) if bench.device.type == "cuda" else (16 << 20)
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=bench.device)
    into = torch.empty_like(source)
    seconds = timed(bench, lambda: into.copy_(source), 10)
    bench.tell(copy_tb_s=2 * size / seconds / 1e12)


def verify(bench: Bench) -> None:
    """Decode and verify at each context and number of woken experts; and what folding costs."""
    runner = bench.runner
    for context in bench.contexts:
        end = "" if context == bench.contexts[0] else f"_{context // 1024}k"
        stand_at(bench, context)
        impose(bench, 1, min(8, top(bench) * 1))
        bench.tell(**{f"decode_ms{end}": 1e3 * passes_of(bench, 1)})
        for woken in WOKEN:
            impose(bench, 16, woken)
            bench.tell(**{f"verify16_e{woken}_ms{end}": 1e3 * passes_of(bench, runner.block)})
    stand_at(bench, bench.contexts[0])
    for rows in (1, 2, 4, 8, 16):
        if rows <= runner.block:
            impose(bench, rows, None)
            seconds = passes_of(bench, rows)
            bench.tell(**{f"verify_rows_{rows}_ms": 1e3 * seconds, f"woken_rows_{rows}": woken_by_router(bench)})
    impose(bench, 16, 47)
    replay = captured(bench, "verify")
    runner.begin_pass(start=bench.start, valid=runner.block, fold=0)
    none = timed(bench, replay, bench.repeat)
    runner.begin_pass(start=bench.start, valid=runner.block, fold=min(5, runner.block))
    some = timed(bench, replay, bench.repeat)
    bench.tell(fold_share=(some - none) / none, verify_unfolded_ms=1e3 * none)


def draft(bench: Bench, name: str = "") -> None:
    for context in bench.contexts:
        stand_at(bench, context)
        replay = captured(bench, "draft")
        bench.runner.begin_pass(start=bench.start, valid=bench.runner.block, fold=0)
        end = "" if context == bench.contexts[0] else f"_{context // 1024}k"
        bench.tell(**{f"{name}draft_ms{end}": 1e3 * timed(bench, replay, bench.repeat)})


def gaps(bench: Bench) -> None:
    """Share of a cycle's graph in which no kernel runs: one less the sum of kernel times over the wall time."""
    stand_at(bench, bench.contexts[0])
    impose(bench, 16, 47)
    accepted(bench, 7.35)
    replay = captured(bench, "cycle")
    bench.runner.begin_pass(start=bench.start, valid=bench.runner.block, fold=0)
    wall = timed(bench, replay, bench.repeat)
    kernels, count = profiled(replay)
    busy = sum(kernels.values()) / 1e6
    bench.tell(cycle_ms=1e3 * wall, kernels_per_cycle=count, busy_ms=1e3 * busy, gap_share=1 - busy / wall)
    bench.runner.end_passes()
    impose(bench, 1, 8)
    replay = captured(bench, "plain")
    bench.runner.begin_pass(start=bench.start, valid=1, fold=0)
    print("  decode:")
    profiled(replay)
    bench.runner.end_passes()


def eta(bench: Bench) -> None:
    """Tokens per second of whole generations, read one cycle behind as the engine does, acceptance imposed."""
    target = bench.live
    for context in bench.contexts:
        end = "" if context == bench.contexts[0] else f"_{context // 1024}k"
        for name, tau in TAUS.items():
            stand_at(bench, context)
            impose(bench, 16, 47)
            said, cycles, seconds = drafted(bench, context, tau)
            bench.tell(**{f"tok_s_{name}{end}": said / seconds, f"measured_{name}{end}": said / cycles})
    for woken in (8, 31, 88):
        impose(bench, 16, woken)
        said, _, seconds = drafted(bench, bench.contexts[0], 7.35)
        bench.tell(**{f"tok_s_tau_7_35_e{woken}": said / seconds})
    bench.runner.shared.imposed = None
    stand_at(bench, bench.contexts[0])
    impose(bench, 1, 8)
    begin(bench, bench.contexts[0], budget=400, draft=False)
    said, _, seconds = generation(target, CYCLES if bench.device.type == "cuda" else 6)
    bench.tell(plain_tok_s=said / seconds)


def prefill(bench: Bench) -> None:
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

        busy = sum(profiled(again, 1)[0].values()) / 1e6
        bench.tell(prefill_busy_s=busy)


def constrained(bench: Bench) -> None:
    """The same generation under a grammar that allows everything: masks made and sent for every row."""
    target = bench.live
    stand_at(bench, bench.contexts[0])
    impose(bench, 16, 47)
    context = bench.contexts[0]
    said, _, seconds = drafted(bench, context, 7.35, constraint=Anything(target.facts.known_ids))
    bench.tell(constrained_tok_s_tau_7_35=said / seconds)
    said, _, seconds = drafted(bench, context, 7.35, sampling=Sampling(temperature=1.0, seed=1, top_k=20, top_p=0.95))
    bench.tell(filtered_tok_s_tau_7_35=said / seconds)
    bench.runner.shared.imposed = None


def long(bench: Bench) -> None:
    """Requests of equal context one after another: the last tenth against the first."""
    impose(bench, 16, 47)
    speeds = []
    for _ in range(50 if bench.device.type == "cuda" else 2):
        said, _, seconds = drafted(bench, bench.contexts[0], 7.35)
        speeds.append(said / seconds)
    tenth = max(1, len(speeds) // 10)
    bench.tell(last_over_first=sum(speeds[-tenth:]) / sum(speeds[:tenth]))
    bench.runner.shared.imposed = None


def int8(bench: Bench) -> None:
    """The same weights packed: lossy, half the bytes."""
    whole = bench.live
    less = in_int8(whole.runner.model.weights)
    bench.target = random_target(
        bench.shape, bench.device, context=whole.facts.context, block=whole.facts.block, weights=less, graphs=True
    )
    try:
        stand_at(bench, bench.contexts[0])
        impose(bench, 1, 8)
        bench.tell(int8_decode_ms=1e3 * passes_of(bench, 1), int8_weight_gb=less.bytes / 1e9)
        impose(bench, 16, 47)
        bench.tell(int8_verify16_e47_ms=1e3 * passes_of(bench, bench.runner.block))
        said, _, seconds = drafted(bench, bench.contexts[0], 7.35)
        bench.tell(int8_tok_s_tau_7_35=said / seconds)
    finally:
        bench.target = whole
