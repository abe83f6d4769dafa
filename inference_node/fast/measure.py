"""The cost curve of this model on this machine: what a verify takes by its rows, and what a draft takes.

Adaptive width needs it. It is measured when the target is loaded, with rows of different tokens, because what a row
costs on a mixture is mostly the experts that it wakes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from inference_node.fast.cycle import Runner
from inference_node.fast.width import Costs

ROUNDS = 7


def costs(runner: Runner, rounds: int = ROUNDS) -> Costs:
    """Leaves an empty sequence. Row counts between the measured ones lie on a line."""
    with torch.inference_mode():
        runner.reset()
        runner.table.open(0, min(runner.positions, (rounds + 3) * 8 * runner.block))
        for name in ("plain", "draft") if runner.drafter is not None else ("plain",):
            runner.begin_pass(start=0, valid=0, fold=0)
            runner.graphs.capture(name, runner.pieces[name])
        measured = {}
        for rows in sorted({1, 2, 4, 8, runner.block} & set(range(1, runner.block + 1))):
            measured[rows] = _seconds(runner, "plain", rows, rounds)
        draft = _seconds(runner, "draft", runner.block, rounds) if runner.drafter is not None else 0.0
        runner.table.truncate(0)
        runner.reset()
    return Costs(tuple(_between(measured, rows) for rows in range(1, runner.block + 1)), draft)


def _seconds(runner: Runner, name: str, rows: int, rounds: int) -> float:
    """Median of one pass; each over other tokens."""
    known, times = runner.model.known_ids, []
    for turn in range(rounds + 2):
        tokens = [(turn * 7919 + row * 104729) % known for row in range(runner.block)]
        runner.begin_pass(start=1, valid=rows, fold=0, tokens=tokens)  # not at 0, where a multi-token head is idle
        times.append(_timed(runner, lambda: runner.graphs.run(name, runner.pieces[name])))
    runner.end_passes()
    return statistics.median(times[2:])


def _timed(runner: Runner, work: Callable[[], None]) -> float:
    runner.synchronize()
    began = time.perf_counter()
    work()
    runner.synchronize()
    return time.perf_counter() - began


def _between(measured: dict[int, float], rows: int) -> float:
    low = max(count for count in measured if count <= rows)
    high = min((count for count in measured if count >= rows), default=low)
    if low == high:
        return measured[low]
    return measured[low] + (measured[high] - measured[low]) * (rows - low) / (high - low)
