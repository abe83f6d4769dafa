"""The kernels for a device under one roof: Triton's on an accelerator, their plain twins on a CPU.

Both sets have the same names and signatures (kernels/plain and kernels/triton), so nothing above knows which runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from inference_node.speculate.seam import CHUNK

SEGMENT = 4096
"""Prompt rows of one prefill on an accelerator. Any multiple of CHUNK gives the same bits."""


class Parts:
    """What the forward is made of."""

    def __init__(self, device: torch.device, *, plain: bool | None = None) -> None:
        """plain: for comparisons; by default as the device wants."""
        self.plain = device.type == "cpu" if plain is None else plain
        side = "inference_node.kernels.plain" if self.plain else "inference_node.kernels.triton"
        ops = import_module(f"{side}.ops")
        self.embed, self.norm, self.gated_norm = ops.embed, ops.norm, ops.gated_norm
        self.linear, self.prefill_linear = ops.linear, ops.prefill_linear
        self.route, self.expert_up, self.expert_down = ops.route, ops.expert_up, ops.expert_down
        self.prefill_experts, self.head = ops.prefill_experts, ops.head
        self.block_conv, self.candidate_walk = ops.block_conv, ops.candidate_walk

        def of(module: str, name: str) -> Any:
            return getattr(import_module(f"{side}.{module}"), name)

        self.delta_step, self.delta_prefill = of("gated_delta_step", "step"), of("gated_delta_prefill", "prefill")
        self.write, self.write_context = of("kv_write", "write"), of("draft_context", "write")
        self.attend, self.attend_prefill = of("paged_attention", "attend"), of("prefill_attention", "attend")
        self.accept = of("accept", "accept")
        self.pick = of("pick", "pick")
        self.segment = CHUNK if device.type == "cpu" else SEGMENT
