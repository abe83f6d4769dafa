"""A mixture for many rows: prefill. Pairs of row and expert are sorted by expert and go in tiles of one expert each.

    h        [rows, K]               normalised rows
    logits   [rows, E] or [rows, E + 1] fp32, of the router, with the shared expert's gate last if there is one
    up       Weight [E (+1), 2I, K]  as in expert_mlp.py; bf16, int8 or mxfp4
    down     Weight [E (+1), K, I]
    valid    int                     rows that count, from the first; others wake no expert and are not written
    residual [rows, K]               added last; may be `out`
    out      [rows, K]

Same choice of experts and same order of the sum as in a block: ascending id, the shared expert last; but the result of
each expert is rounded to h's type before it is weighed, because the pairs' results pass through memory.
Exactness: a row's bits depend on no other row (one tile for all).
Checked by: tests/inference_node/kernels/triton/test_prefill_experts.py
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from inference_node.kernels.plain.packed import Weight, unpack


def choose(logits: torch.Tensor, experts: int, top: int, renormalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights [rows, top (+1)] fp32 and expert ids [rows, top (+1)] int64, ascending by id, the shared one last.

    A row function in ordinary torch, for both implementations: its sums run over one row's few numbers.
    """
    routed = logits[:, :experts]
    best = torch.sort(routed, dim=-1, descending=True, stable=True).indices[:, :top].sort(-1).values
    peak = routed.amax(-1, keepdim=True)
    weight = torch.exp(routed.gather(1, best) - peak)
    weight = weight / _sum(weight if renormalise else torch.exp(routed - peak))
    if logits.shape[1] == experts:
        return weight, best
    gate = torch.sigmoid(logits[:, experts:])
    return torch.cat([weight, gate], dim=1), torch.cat([best, torch.full_like(best[:, :1], experts)], dim=1)


def _sum(x: torch.Tensor) -> torch.Tensor:
    """[rows, 1]: by halves, because a library's sum may choose its order by the number of rows."""
    while x.shape[1] > 1:
        if x.shape[1] % 2:
            x = torch.cat([x, torch.zeros_like(x[:, :1])], dim=1)
        half = x.shape[1] // 2
        x = x[:, :half] + x[:, half:]
    return x


def prefill_experts(
    h: torch.Tensor,
    logits: torch.Tensor,
    up: Weight,
    down: Weight,
    valid: int,
    residual: torch.Tensor,
    out: torch.Tensor,
    *,
    experts: int,
    top: int,
    renormalise: bool = True,
) -> torch.Tensor:
    """Returns `out`."""
    weight, expert = choose(logits[:valid], experts, top, renormalise)
    total = torch.zeros(valid, out.shape[1], device=out.device)
    for e in torch.unique(expert).tolist():
        first, second = unpack(up[e]), unpack(down[e])
        for row, rank in (expert == e).nonzero().tolist():
            gate, value = F.linear(h[row : row + 1].to(torch.float32, copy=True), first).chunk(2, dim=-1)
            part = F.linear((F.silu(gate) * value).to(h.dtype).to(torch.float32), second)[0]
            total[row] = total[row] + part.to(h.dtype).to(torch.float32) * weight[row, rank]
    out[:valid] = (total + residual[:valid].to(torch.float32)).to(out.dtype)
    return out
