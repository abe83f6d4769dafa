"""The kernels for a device under one roof: Triton's on an accelerator, their plain twins on a CPU.

Each has the name that it has in kernels/plain/ops.py and kernels/triton/ops.py, so nothing above knows which runs.
"""

from __future__ import annotations

import torch

from inference_node import kernels
from inference_node.speculate.seam import CHUNK

SEGMENT = 4096
"""Prompt rows of one prefill on an accelerator. Any multiple of CHUNK gives the same bits."""


class Parts:
    """What the forward is made of."""

    def __init__(self, device: torch.device, *, plain: bool | None = None) -> None:
        """plain: for comparisons; by default as the device wants."""
        self.plain = device.type == "cpu" if plain is None else plain
        ops = kernels.ops(device, plain=self.plain)
        self.embed, self.norm, self.gated_norm, self.linear = ops.embed, ops.norm, ops.gated_norm, ops.linear
        self.delta_step, self.kv_write, self.paged_attention = ops.delta_step, ops.kv_write, ops.paged_attention
        self.route, self.expert_up, self.expert_down = ops.route, ops.expert_up, ops.expert_down
        self.head, self.pick, self.accept = ops.head, ops.pick, ops.accept
        self.draft_context, self.block_conv, self.candidate_walk = ops.draft_context, ops.block_conv, ops.candidate_walk
        self.prefill_linear, self.prefill_experts = ops.prefill_linear, ops.prefill_experts
        self.delta_prefill, self.prefill_attention = ops.delta_prefill, ops.prefill_attention
        self.segment = CHUNK if device.type == "cpu" else SEGMENT
