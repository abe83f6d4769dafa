"""Routing and experts of a mixture, so that a row's result does not depend on its neighbours.

Each woken expert runs on all rows of the pass (one shape, whoever chose it), and a row adds its experts in the order of
their rank, in fp32. Library versions gather the rows of each expert, so that a row's bits change with the company.
Ties in the router go to the lowest expert. Checked by: tests/inference_node/kernels/test_experts.py
"""

from __future__ import annotations

from collections.abc import Callable

import torch


def route(logits: torch.Tensor, top: int, renormalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights [rows, top] in the logits' type and expert ids [rows, top], best first; a row function."""
    probability = torch.softmax(logits.to(torch.float32), dim=-1)
    weight, expert = torch.sort(probability, dim=-1, descending=True, stable=True)
    weight, expert = weight[:, :top], expert[:, :top]
    if renormalise:
        weight = weight / weight.sum(-1, keepdim=True)
    return weight.to(logits.dtype), expert


def mix(
    rows: torch.Tensor,
    weight: torch.Tensor,
    expert: torch.Tensor,
    valid: int,
    run: Callable[[int, torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, int]:
    """Weighted sum [rows, hidden] fp32 of each row's experts, and how many experts were woken.

    run(e, rows) gives expert e's output for all rows. Rows from `valid` on are fillers: they wake nothing and get 0.
    """
    woken = torch.unique(expert[:valid]).tolist()
    results = torch.stack([run(e, rows).to(torch.float32) for e in woken])  # [woken, rows, hidden]
    place = torch.zeros(max(woken) + 1, dtype=torch.int64, device=rows.device)
    place[woken] = torch.arange(len(woken), device=rows.device)
    # A filler may have chosen an expert that no valid row woke; whatever it reads here is dropped below.
    chosen = place[expert.clamp(max=max(woken))].t()  # [rank, rows]
    part = results[chosen, torch.arange(rows.shape[0], device=rows.device)]  # [rank, rows, hidden]
    part = part * weight.to(torch.float32).t().unsqueeze(-1)
    part[:, valid:] = 0.0
    total = part[0]
    for rank in range(1, part.shape[0]):
        total = total + part[rank]
    return total, len(woken)
