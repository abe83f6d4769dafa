"""Where each row of a block goes: the norm before a mixture, its router, and the plan that the expert kernels follow.

    x        [rows, K]                    1 to 16 rows; the layer's residual stream
    factor   [K]                fp32      of the norm before the mixture
    router   [E, K] or [E + 1, K]         float; with row E the gate of a shared expert, if the layer has one
    valid    [1]                int32     rows that count; the others are routed nowhere
    h        [rows, K]                    written: the normalised rows, which the experts read
    imposed  [rows, top]        int32     or None; for benches: these experts instead of the best, weights as for them
    mark     [1]                int32     a zero that the kernel counts in, or None: it makes one. Not for the twin

and a `Plan`, all of it written:

    expert   [16, top]          int32     the row's best experts, ascending by id; of equal ones the lowest ids are best
    weight   [16, top + 1]      fp32      their softmax over themselves (`renormalise`) or over all experts;
                                          the last column: sigmoid of the shared expert's gate
    woken    [slots]            int32     distinct experts of all valid rows, ascending, then E if there is a shared one
    rank     [slots, 16]        int32     for a woken expert and a row: the column of `weight` (the shared one: top), or
                                          -1. This is the tokens sorted by expert, dense because a block has 16 rows
    count    [2]                int32     slots in use; routed experts among them. Both 0 with no valid row

slots = min(E, 16 * top) + 1. Entries past the count, and rows from `valid` on, may hold anything (but -1 in the
ranks of slots in use). `woken`, `rank` and `count` are complete after `expert_up`: that kernel needs the layout anyway
and keeps it for those after it.
Exactness: logits are fp32 sums of (x * factor, rounded to x's type) times the router, times rsqrt(mean(x^2) + eps); a
row's choice and bits depend on no other row. The twin sums in another order, so choices agree but for near ties.
Checked by: tests/inference_node/kernels/triton/test_route.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from inference_node.kernels.plain.linear import ROWS


@dataclass(frozen=True, slots=True)
class Plan:
    """Room for one layer's routing, and scratch of the kernels; one plan can serve all layers in turn."""

    weight: torch.Tensor
    expert: torch.Tensor
    woken: torch.Tensor
    rank: torch.Tensor
    count: torch.Tensor
    parts: torch.Tensor  # [PARTS, 16, E + 2] fp32 scratch
    place: torch.Tensor  # [16, E + 1 or more] int8 scratch: the column of `weight` by expert, or -1
    low: torch.Tensor  # int32 [1] scratch: woken experts in the lower half of the ids
    tickets: torch.Tensor  # int32 [TILES] scratch, zeros between launches
    experts: int
    shared: bool

    @property
    def top(self) -> int:
        return int(self.expert.shape[1])


PARTS = 8
"""Pieces of K that the router kernel sums by themselves."""


TILES = 1024
"""Tiles of output features that a kernel may have programs wait for each other in."""


def plan(experts: int, top: int, shared: bool, device: torch.device) -> Plan:
    """Room for blocks of up to 16 rows."""
    if not 0 < top <= experts:
        raise ValueError(f"{top} experts a token of {experts}")
    slots = min(experts, ROWS * top) + 1
    return Plan(
        weight=torch.zeros(ROWS, top + 1, device=device),
        expert=torch.zeros(ROWS, top, dtype=torch.int32, device=device),
        woken=torch.zeros(slots, dtype=torch.int32, device=device),
        rank=torch.full((slots, ROWS), -1, dtype=torch.int32, device=device),
        count=torch.zeros(2, dtype=torch.int32, device=device),
        parts=torch.zeros(PARTS, ROWS, experts + 2, device=device),
        place=torch.full((ROWS, -(-(experts + 1) // 16) * 16), -1, dtype=torch.int8, device=device),
        low=torch.zeros(1, dtype=torch.int32, device=device),
        tickets=torch.zeros(TILES, dtype=torch.int32, device=device),
        experts=experts,
        shared=shared,
    )


def route(
    x: torch.Tensor,
    factor: torch.Tensor,
    router: torch.Tensor,
    valid: torch.Tensor,
    h: torch.Tensor,
    plan: Plan,
    *,
    eps: float = 1e-6,
    renormalise: bool = True,
    imposed: torch.Tensor | None = None,
    mark: torch.Tensor | None = None,
) -> None:
    """Fills `h` and `plan`."""
    rows, top, experts = int(valid), plan.top, plan.experts
    matrix = router.to(torch.float32)
    plan.expert.fill_(-1)
    for row in range(rows):
        wide = x[row : row + 1].to(torch.float32, copy=True)
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        h[row] = (wide * scale * factor)[0].to(h.dtype)
        logits = (F.linear((wide * factor).to(x.dtype).to(torch.float32), matrix) * scale)[0]
        routed = logits[:experts]
        best = torch.sort(routed, descending=True, stable=True).indices[:top]
        if imposed is not None:
            best = imposed[row].to(torch.int64)
        best = best.sort().values
        weight = torch.exp(routed[best] - routed.max())
        weight = weight / (weight.sum() if renormalise else torch.exp(routed - routed.max()).sum())
        plan.weight[row, :top], plan.expert[row] = weight, best.to(torch.int32)
        if plan.shared:
            plan.weight[row, top] = torch.sigmoid(logits[experts])
    woken = torch.unique(plan.expert[:rows])
    routed_count = woken.shape[0]
    if plan.shared and rows:
        woken = torch.cat([woken, woken.new_tensor([experts])])
    plan.woken[: woken.shape[0]] = woken
    plan.rank.fill_(-1)
    for slot in range(routed_count):
        row, column = (plan.expert[:rows] == woken[slot]).nonzero(as_tuple=True)
        plan.rank[slot, row] = column.to(torch.int32)
    if plan.shared and rows:
        plan.rank[routed_count, :rows] = top
    plan.count.copy_(torch.tensor([woken.shape[0], routed_count]))
