"""The second half of a layer: a dense MLP, or a router with experts (kernels/plain/experts.py) and maybe a shared
one."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from inference_node.kernels.plain import experts
from inference_node.kernels.plain.rows import aligned
from inference_node.models.passes import Pass


class Dense:
    def __init__(self, layer: Any) -> None:
        self.norm = layer.post_attention_layernorm
        self.part = layer.mlp

    def mix(self, x: torch.Tensor, run: Pass) -> torch.Tensor:
        result: torch.Tensor = run.apply("mlp", self._rows, x)
        return result

    def _rows(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.part(self.norm(x))


class Experts:
    def __init__(self, layer: Any) -> None:
        self.norm = layer.post_attention_layernorm
        self.part = layer.mlp
        self.renormalise = bool(getattr(self.part.gate, "norm_topk_prob", True))  # Qwen3.5 has no switch: always

    def mix(self, x: torch.Tensor, run: Pass) -> torch.Tensor:
        h, weight, expert, shared = run.apply("moe.route", self._route, x)

        def one(e: int, rows: torch.Tensor) -> torch.Tensor:
            name = aligned("moe.expert", self.part.experts.gate_up_proj[e], self.part.experts.down_proj[e])
            result: torch.Tensor = run.apply(name, lambda r: self._expert(e, r), rows)
            return result

        total, woken = experts.mix(h, weight, expert, run.valid, one)
        run.woken.append(woken)
        return x + (total + shared).to(x.dtype)

    def _route(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h, p = self.norm(x), self.part
        weight, expert = experts.route(F.linear(h, p.gate.weight), p.gate.top_k, self.renormalise)
        if not hasattr(p, "shared_expert"):
            return h, weight, expert, torch.zeros_like(h, dtype=torch.float32)
        # One output column: as a sum, because a matrix product with one column sums in an order of its own.
        gate = (h.to(torch.float32) * p.shared_expert_gate.weight[0].to(torch.float32)).sum(-1, keepdim=True)
        return h, weight, expert, torch.sigmoid(gate) * p.shared_expert(h).to(torch.float32)

    def _expert(self, e: int, rows: torch.Tensor) -> torch.Tensor:
        p = self.part.experts
        gate, up = F.linear(rows, p.gate_up_proj[e]).chunk(2, dim=-1)
        return F.linear(p.act_fn(gate) * up, p.down_proj[e])
