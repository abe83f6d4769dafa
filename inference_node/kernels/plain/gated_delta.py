"""The gated delta rule: a recurrent memory that reads, corrects and writes one outer product per token.

Per token t and value head, in fp32:

    S = exp(g_t) * S;   u = beta_t * (v_t - S^T k_t);   S = S + k_t u^T;   o_t = S^T (q_t / sqrt(K))

    q, k   [n, key_heads, K]     after conv; L2-normalised here
    v      [n, heads, V]         after conv
    g      [n, heads]      fp32  log decay, never above 0
    beta   [n, heads]            write strength, 0 to 1
    state  [heads, K, V]   fp32

Value head h reads key head h // (heads // key_heads).

`step` walks token by token: the rule of every decode, verify and replay, so that they agree to the bit. `chunk` does 64
tokens at once with matrix products: the rule of prefill, where it rounds differently and is much faster.
Origin: Gated Delta Networks (arXiv 2412.06464). Checked by: tests/inference_node/kernels/test_gated_delta.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

CHUNK = 64
"""Rows of one prefill tile. Prefill that is to be equal to the bit starts at absolute multiples of this."""


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """What enters the rule for some rows, all fp32, key heads already repeated to value heads."""

    q: torch.Tensor  # [n, heads, K], normalised and scaled
    k: torch.Tensor  # [n, heads, K], normalised
    v: torch.Tensor  # [n, heads, V]
    decay: torch.Tensor  # [n, heads], exp(g)
    log_decay: torch.Tensor  # [n, heads], g
    beta: torch.Tensor  # [n, heads]


def normalise(x: torch.Tensor) -> torch.Tensor:
    """Unit length along the last axis, in fp32."""
    x = x.to(torch.float32)
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def step(inputs: DeltaInputs, state: torch.Tensor, rows: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Outputs [rows, heads, V] and the state after each of the first `rows` tokens. `state` is not changed."""
    outputs, states = [], []
    for t in range(rows):
        k = inputs.k[t].unsqueeze(-1)
        state = state * inputs.decay[t, :, None, None]
        change = (inputs.v[t] - (state * k).sum(-2)) * inputs.beta[t, :, None]
        state = state + k * change.unsqueeze(-2)
        outputs.append((state * inputs.q[t].unsqueeze(-1)).sum(-2))
        states.append(state)
    return torch.stack(outputs), states


def chunk(inputs: DeltaInputs, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs [n, heads, V] and the state after all n rows. Rows with k, v, beta and log_decay zero change nothing.

    Inside the chunk the corrections u form a triangular system: each row's u is what it wants to write less what the
    rows before it have written already. Its solution gives all outer products at once.
    """
    q, k, v, g = (x.transpose(0, 1).contiguous() for x in (inputs.q, inputs.k, inputs.v, inputs.log_decay))
    beta = inputs.beta.transpose(0, 1).unsqueeze(-1)
    n = q.shape[1]
    since_start = g.cumsum(-1)  # [heads, n]: log decay from the chunk's start through each row
    later = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
    between = (since_start.unsqueeze(-1) - since_start.unsqueeze(-2)).masked_fill(later, -torch.inf).exp()
    reach = since_start.exp().unsqueeze(-1)
    system = torch.bmm(k * beta, k.transpose(1, 2)) * between
    solved = torch.linalg.solve_triangular(
        system, torch.cat([v * beta, k * beta * reach], dim=-1), upper=False, unitriangular=True
    )
    wanted, reading = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    change = wanted - torch.bmm(reading, state)
    outputs = torch.bmm(q * reach, state) + torch.bmm(torch.bmm(q, k.transpose(1, 2)) * between, change)
    to_end = (since_start[:, -1:] - since_start).exp().unsqueeze(-1)
    state = state * since_start[:, -1, None, None].exp() + torch.bmm((k * to_end).transpose(1, 2), change)
    return outputs.transpose(0, 1).contiguous(), state
