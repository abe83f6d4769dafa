"""A layer's mixture of experts as a whole: the norm before it, its router, the woken experts, the weighted sum.

    x        [rows, K]                  1 to 16 rows; the layer's residual stream
    factor   [K]              fp32      of the norm
    router   [E (+1), K]                float; with row E the gate of a shared expert, if the layer has one
    up, down Weight                     as in expert_mlp.py; the shared expert last
    valid    [1]              int32     rows that count
    room     Room                       the plan (route.py) and what lies between the parts, all of it written
    out      [rows, K]                  may be x itself; rows from `valid` on are left alone
    imposed  [16, top]        int32     or None; for benches: these experts instead of the best
    feed     Feed                       or None; what the norm after this layer needs

The formulas are those of route.py and expert_mlp.py one after the other. `place`, `mask` and `marks` are scratch of the
kernel; `weight`, `expert` and `count` of the plan are results.
Exactness: a row's bits depend on no other row and on no expert that it did not choose.
Checked by: tests/inference_node/kernels/triton/test_mixture.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inference_node.kernels.plain.expert_mlp import expert_down, expert_up
from inference_node.kernels.plain.linear import ROWS, Feed
from inference_node.kernels.plain.packed import Weight
from inference_node.kernels.plain.route import Plan, route
from inference_node.kernels.plain.route import plan as room_for_plan

APART = 32
"""Words between two marks: programs that wait for one do not hold up those that count another."""

NARROWEST = 16
"""Output features of the narrowest piece of the second product."""


@dataclass(frozen=True, slots=True)
class Room:
    """Of one layer. All but `marks` and the plan's `count` may be shared by layers that run one after another."""

    plan: Plan
    mask: torch.Tensor  # [16, E / 32, rounded up to a power of two] int32: a row's experts as bits
    marks: torch.Tensor  # int32: pieces taken and finished, APART words apart; zero before the kernel starts
    normed: torch.Tensor  # [16, K]
    hidden: torch.Tensor  # [16, top + 1, I]
    partial: torch.Tensor  # [16, top + 1, K] fp32

    @property
    def slots(self) -> int:
        """Most experts that a block can wake."""
        return int(self.plan.woken.shape[0])


def marks_for(slots: int, k: int) -> int:
    """Words of `marks`."""
    return (3 + slots + -(-k // NARROWEST)) * APART


def room(
    experts: int, top: int, shared: bool, *, hidden: int, width: int, dtype: torch.dtype, device: torch.device
) -> Room:
    """For experts of `width` between rows of `hidden`."""
    plan = room_for_plan(experts, top, shared, device)
    words = 1 << max(0, -(-experts // 32) - 1).bit_length()
    return Room(
        plan,
        mask=torch.zeros(ROWS, words, dtype=torch.int32, device=device),
        marks=torch.zeros(marks_for(plan.woken.shape[0], hidden), dtype=torch.int32, device=device),
        normed=torch.zeros(ROWS, hidden, dtype=dtype, device=device),
        hidden=torch.zeros(ROWS, top + 1, width, dtype=dtype, device=device),
        partial=torch.zeros(ROWS, top + 1, hidden, device=device),
    )


def mixture(
    x: torch.Tensor,
    factor: torch.Tensor,
    router: torch.Tensor,
    up: Weight,
    down: Weight,
    valid: torch.Tensor,
    room: Room,
    out: torch.Tensor,
    *,
    eps: float = 1e-6,
    renormalise: bool = True,
    imposed: torch.Tensor | None = None,
    feed: Feed | None = None,
    fresh: bool = False,
) -> torch.Tensor:
    """Returns `out`. fresh: the room's marks are zero already; the twin has no use for them."""
    rows = slice(x.shape[0])
    route(
        x, factor, router, valid, room.normed[rows], room.plan, eps=eps, renormalise=renormalise, imposed=imposed
    )  # fmt: skip
    expert_up(room.normed, up, room.plan, room.hidden)
    return expert_down(room.hidden[rows], down, room.plan, valid, x, out, feed=feed)
