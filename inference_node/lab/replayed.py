"""Kernels on an accelerator, timed and compared: what bench_kernels, tune_rows and tune_blocks share."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

DEVICE = torch.device("cuda")

Call = Callable[[], Any]


def replayed_us(calls: Sequence[Call], *, first: Call | None = None, repeat: int = 7) -> float:
    """Microseconds of one call when all follow one another in a captured graph: the median over replays.

    first: done once in front of them, in the same graph.
    """
    before = [] if first is None else [first]
    for call in (*before, calls[0]):  # compiled before anything is captured
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in (*before, *calls):
            call()
    graph.replay()
    spent = []
    for _ in range(repeat):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        spent.append(start.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(spent)


def bf16(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape, device=DEVICE) * scale).to(torch.bfloat16)


def word(value: int) -> torch.Tensor:
    """[1] int32: how kernels are told a number that changes between replays."""
    return torch.tensor([value], dtype=torch.int32, device=DEVICE)


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference over the largest value."""
    return round(float((found.float() - expected.float()).abs().max() / expected.float().abs().max()), 6)
