"""Marks by which programs of one launch wait for each other.

A mark is an int32 word that is zero at the start and counts pieces of work that are done. Only programs that wait for
nobody, or for earlier ones, may be waited for. A wait gives up after SPINS tries: a broken mark is a wrong result and
not a hang.

Checked by: tests/inference_node/kernels/triton/test_gated_delta_step.py, test_route.py
"""

from __future__ import annotations

import triton
import triton.language as tl

SPINS = tl.constexpr(1 << 18)


@triton.jit
def finish(p_mark):
    """All that this program has written is there for whoever sees the mark. Returns what it was before."""
    tl.debug_barrier()
    return tl.atomic_add(p_mark, 1, sem="acq_rel")


@triton.jit
def wait(p_mark, count):
    """Until `count` pieces are done."""
    tries = 0
    seen = tl.atomic_add(p_mark, 0, sem="acquire")
    while (seen < count) & (tries < SPINS):
        seen = tl.atomic_add(p_mark, 0, sem="acquire")
        tries += 1
    tl.debug_barrier()
