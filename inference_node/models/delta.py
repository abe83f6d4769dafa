"""Gated DeltaNet layers: a short convolution, then a memory that corrects itself (kernels/plain/gated_delta.py).

In a block the rule is stepped token by token from the state at the block's start, which stays as it is; in a prefill
tile it is done for all rows at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from inference_node.kernels.plain import causal_conv, gated_delta
from inference_node.kernels.plain.gated_delta import DeltaInputs
from inference_node.models.passes import Pass


class Delta:
    """The token mixer of one layer. `index` counts recurrent layers only: its place in the recurrent state."""

    def __init__(self, index: int, layer: Any) -> None:
        self.index = index
        self.norm = layer.input_layernorm
        self.part = layer.linear_attn
        self.taps = int(self.part.conv_kernel_size)
        self.weight = self.part.conv1d.weight.squeeze(1)  # [channels, taps]

    def mix(self, x: torch.Tensor, run: Pass) -> torch.Tensor:
        """x [rows, hidden] plus what it read."""
        conv, state = run.recurrent.conv[self.index], run.recurrent.delta[self.index]
        flow, z, inputs = self._enter(x, conv, run.apply)
        if run.tile:
            inputs = _first_only(inputs, run.valid)
            out, run.delta[self.index] = gated_delta.chunk(inputs, state)
            run.conv[self.index] = causal_conv.tail(flow, conv, run.valid)
        else:
            out, states = gated_delta.step(inputs, state, run.valid)
            out = F.pad(out, (0, 0, 0, 0, 0, x.shape[0] - run.valid))
            if run.notes is not None:
                run.notes.note(self.index, x, flow, states if run.notes.wants_states else [])
        result: torch.Tensor = run.apply("delta.out", self._out, x, out, z)
        return result

    def fold(
        self, x: torch.Tensor, rows: int, conv: torch.Tensor, state: torch.Tensor, apply: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Replay: conv and delta state after the first `rows` of x, the layer's input rows of a verify."""
        flow, _, inputs = self._enter(x, conv, apply)
        return causal_conv.tail(flow, conv, rows), gated_delta.step(inputs, state, rows)[1][-1]

    def _enter(self, x: torch.Tensor, conv: torch.Tensor, apply: Any) -> tuple[torch.Tensor, torch.Tensor, DeltaInputs]:
        """Convolution inputs, output gate, and what enters the rule."""
        flow, z, b, a = apply("delta.in", self._project, x)
        convolved = apply("delta.conv", self._convolve, causal_conv.window(flow, conv, self.taps))
        return flow, z, DeltaInputs(*apply("delta.gates", self._gates, convolved, b, a))

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h, p = self.norm(x), self.part
        return p.in_proj_qkv(h), p.in_proj_z(h), p.in_proj_b(h), p.in_proj_a(h)

    def _convolve(self, read: torch.Tensor) -> torch.Tensor:
        return causal_conv.convolve(read, self.weight, self.part.conv1d.bias)

    def _gates(self, convolved: torch.Tensor, b: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        p, rows = self.part, convolved.shape[0]
        q, k, v = convolved.split([p.key_dim, p.key_dim, p.value_dim], dim=-1)
        repeat = p.num_v_heads // p.num_k_heads
        q, k = (
            gated_delta.normalise(part.reshape(rows, p.num_k_heads, p.head_k_dim)).repeat_interleave(repeat, dim=1)
            for part in (q, k)
        )
        v = v.reshape(rows, p.num_v_heads, p.head_v_dim).to(torch.float32)
        g = -p.A_log.to(torch.float32).exp() * F.softplus(a.to(torch.float32) + p.dt_bias.to(torch.float32))
        return q * p.head_k_dim**-0.5, k, v, g.exp(), g, b.sigmoid().to(torch.float32)

    def _out(self, x: torch.Tensor, read: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        p, rows = self.part, x.shape[0]
        gate = z.reshape(rows, p.num_v_heads, p.head_v_dim)
        return x + p.out_proj(p.norm(read.to(x.dtype), gate).reshape(rows, -1))


def _first_only(inputs: DeltaInputs, valid: int) -> DeltaInputs:
    """Fillers of a tile must neither decay the state nor write to it."""

    def masked(rows: torch.Tensor) -> torch.Tensor:
        rows = rows.clone()
        rows[valid:] = 0.0
        return rows

    if valid == inputs.q.shape[0]:
        return inputs
    return DeltaInputs(*(masked(getattr(inputs, name)) for name in ("q", "k", "v", "decay", "log_decay", "beta")))
