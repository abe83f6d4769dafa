"""Weights on their way before the launch that reads them: each launch may call its successor's into the cache.

Why: a decode step pays 4.8 us a launch beyond its bytes. Memory rests while one launch drains, while the next one
starts, and through all that reads little (delta rule, attention, routing). A weight that was called for meanwhile is
read from the second-level cache. A call is a hint: it waits for nothing, holds no register and changes no result, so
how much is called may follow from anything.

    after    any weight           what the next launch reads, from its first byte on; None: nothing
    pieces   int                  of PIECE bytes that are called for; they are dealt to the launch's programs in turn

What is called is at most BYTES: it has to survive in the cache until it is read. Only NVIDIA's chips from 9.0 on have
the instruction (`cp.async.bulk.prefetch.L2`); elsewhere nothing is called.
Checked by: tests/inference_node/kernels/triton/test_ahead.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BYTES = 0
"""At most so many of the next launch's weight; 0: nothing is called. Off until a run on a card has shown a gain:
`lab/fast_bench.py` measures it."""

EARLY = False
"""Whether a program calls before its own loads rather than after them."""

PIECE = 4096
EACH = tl.constexpr(128)
"""Pieces of one program, at most: one a thread."""


def pieces(after: torch.Tensor | None) -> int:
    """How many of this weight are called for."""
    if after is None or not BYTES or not _can(after.device):
        return 0
    return min(BYTES, after.numel() * after.element_size()) // PIECE


def when(count: int) -> int:
    """How a kernel is compiled for so many pieces (AHEAD): 0 not at all, 1 after its own loads, 2 before them."""
    return 0 if not count else 2 if EARLY else 1


def _can(device: torch.device) -> bool:
    if device.type == "cpu" or torch.version.hip:
        return False
    return device.type == "meta" or torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit
def call(p_after, pieces, i, n, PIECE: tl.constexpr):
    """Pieces i, i + n, i + 2n, ... of those at p_after, in a launch of n programs of which this is the i-th."""
    o_piece = i + tl.arange(0, EACH) * n
    b_size = tl.where(o_piece < pieces, PIECE, 0)
    b_address = p_after.to(tl.int64) + o_piece.to(tl.int64) * PIECE
    tl.inline_asm_elementwise(
        """
        {
        .reg .pred is_piece;
        setp.ne.u32 is_piece, $2, 0;
        @is_piece cp.async.bulk.prefetch.L2.global [$1], $2;
        mov.u32 $0, 0;
        }
        """,
        "=r,l,r",
        [b_address, b_size],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
