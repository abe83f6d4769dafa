"""Compile what the engine launches before it is launched, by as many processes as there are cores.

Triton compiles a kernel when it is first called, one after another; on a lent accelerator that is minutes of its time.
The launchers are called here on tensors that have shapes and no memory (lab/gfx1151_calls.py), and what they would
launch goes into Triton's cache on disk, from which the process that measures takes it.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from inference_node.kernels.triton import expert_mlp
from inference_node.lab.replayed import Call


def compile_all(halves: Sequence[bool]) -> list[str]:
    """What failed, in words; usually nothing. halves: every value of expert_mlp.HALVES that will be used."""
    jobs = [(value, index) for value in halves for index in range(len(_calls()))]
    workers = max(1, min(16, os.cpu_count() or 2))
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return [error for error in pool.imap_unordered(_compile, jobs) if error]


@cache
def _calls() -> list[Call]:
    from inference_node.lab import gfx1151_calls

    return list(gfx1151_calls.calls())


def _compile(job: tuple[bool, int]) -> str:
    expert_mlp.HALVES, index = job
    try:
        with compiled_only():
            _calls()[index]()
        return ""
    except Exception as error:
        return f"{_calls()[index]}: {type(error).__name__}: {error}"[:300]


@contextmanager
def compiled_only() -> Iterator[None]:
    """Within this a launch compiles its kernel into Triton's cache and starts nothing."""
    from triton.runtime.jit import JITFunction

    run = JITFunction.run

    def only_compile(kernel: Any, *args: Any, grid: Any, warmup: bool, **given: Any) -> Any:
        return run(kernel, *args, grid=grid, warmup=True, **given)

    JITFunction.run = only_compile  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        JITFunction.run = run  # type: ignore[method-assign]
