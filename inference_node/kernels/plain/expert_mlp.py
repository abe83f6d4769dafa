"""The woken experts of a block, and the shared one among them, in two launches that follow a route.Plan.

Why: at 16 rows there are 128 pairs of row and expert but some 47 distinct experts, so the time is that of reading each
woken expert once. Each is multiplied with all 16 rows of the tile; rows that did not choose it are zeros.

    h        [rows, K]                normalised rows, as `route` wrote them
    up       Weight [E (+1), 2I, K]   gate rows, then up rows, per expert; the shared expert last. bf16, int8 or mxfp4
    down     Weight [E (+1), K, I]    the same kinds
    hidden   [rows, top + 1, I]       between the two: SiLU(gate) * up for the row's choice of that rank
    residual [rows, K]                added last, before the one rounding; may be `out`
    out      [rows, K]
    feed     Feed                     or None; what the norm after this layer needs, see linear.py

    out = residual + sum over the row's experts in ascending id, the shared one last, of weight * (hidden W_down^T)

The shared expert has the width of the others. Nothing is written for rows from `valid` on: the plan names them nowhere
(`valid` is asked only by `down`, for the residual).
Exactness: products in h's type, fp32 sums, the weighted sum in fp32 in the order above, no atomics. A row's bits depend
on no other row and on no expert that it did not choose.
Checked by: tests/inference_node/kernels/triton/test_expert_mlp.py
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from inference_node.kernels.plain.linear import Feed
from inference_node.kernels.plain.packed import Weight, unpack
from inference_node.kernels.plain.route import Plan


def expert_up(h: torch.Tensor, up: Weight, plan: Plan, hidden: torch.Tensor) -> torch.Tensor:
    """Returns `hidden`."""
    for slot in range(int(plan.count[0])):
        matrix = unpack(up[int(plan.woken[slot])])
        for row, rank in enumerate(plan.rank[slot].tolist()):
            if rank >= 0:
                gate, value = F.linear(h[row : row + 1].to(torch.float32, copy=True), matrix).chunk(2, dim=-1)
                hidden[row, rank] = (F.silu(gate) * value)[0].to(hidden.dtype)
    return hidden


def expert_down(
    hidden: torch.Tensor,
    down: Weight,
    plan: Plan,
    valid: torch.Tensor,
    residual: torch.Tensor,
    out: torch.Tensor,
    *,
    feed: Feed | None = None,
) -> torch.Tensor:
    """Returns `out`."""
    rows = int(valid)
    total = torch.zeros(rows, out.shape[1], device=out.device)
    for slot in range(int(plan.count[0])):
        matrix = unpack(down[int(plan.woken[slot])])
        for row, rank in enumerate(plan.rank[slot].tolist()[:rows]):
            if rank >= 0:
                part = F.linear(hidden[row, rank][None].to(torch.float32, copy=True), matrix)[0]
                total[row] = total[row] + part * plan.weight[row, rank]
    out[:rows] = (total + residual[:rows].to(torch.float32)).to(out.dtype)
    if feed is not None:
        for row in range(rows):
            feed.write(row, out[row])
    return out
