"""What a training step needs on the trainer's device, counted from the shapes before anything is put there.

Weights, gradients, moments, head and embedding are exact. What the backward pass keeps is counted tensor by tensor from
the modules' code: per row of a block and layer, and per row of context. A test compares both with what torch keeps.
Checked by: tests/inference_node/train/test_memory.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from inference_node.models import draft_config
from inference_node.models.drafter import DFlash
from inference_node.train.arm import Arm
from inference_node.train.export import TargetShape, zlab_config
from inference_node.train.step import blocks_at_once

RUNTIME = 800_000_000
"""An accelerator's context, workspaces and what its allocator loses: assumed, not counted."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the device. `held` is there all the time; the backward pass and the optimizer's step come in turns."""

    held: Mapping[str, int]
    backward: Mapping[str, int]
    optimizer: int  # temporaries of the step
    host: int  # beside it, in the machine's own memory: the target's ends, and states that are fetched ahead

    @property
    def total(self) -> int:
        return sum(self.held.values()) + max(sum(self.backward.values()), self.optimizer)

    def told(self) -> str:
        parts = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in {**self.held, **self.backward}.items() if size)
        return f"{self.total / 1e9:.2f} GB are predicted on the device ({parts}), {self.host / 1e9:.2f} GB beside it."

    def advice(self, arm: Arm) -> str:
        each = self.backward["blocks"] / arm.anchors
        return (
            f"An anchor takes {each / 1e6:.1f} MB here: lower anchors ({arm.anchors}), rows ({arm.rows}) or layers "
            f"({arm.layers}), or name a vocabulary."
        )


def predicted(arm: Arm, shape: TargetShape, *, remote: bool = True, flex: bool = True, ahead: int = 2) -> Memory:
    """For an arm on a target. flex: on an accelerator, in bf16 over fp32 weights; else in fp32 without a runtime.

    The target's own weights, where they are on the same device, come on top, and copies that attention makes then.
    """
    with torch.device("meta"):
        module = DFlash(draft_config.read(zlab_config(arm, shape), arm.name))
    weights = 4 * sum(weight.numel() for weight in module.parameters())
    c = module.config
    hidden, queries, keys = c.hidden, c.heads * c.head_dim, c.kv_heads * c.head_dim
    inner, taps, layers = c.intermediate, len(c.taps), len(c.layers)
    ids, ends = arm.vocabulary or shape.vocab, 2 if remote else 4
    slots, last = arm.anchors * arm.block, arm.loss != "data"
    if flex:  # fp32 along the residual; every linear keeps its own bf16 copy of its input
        row = 26 * hidden + 12 * queries + 10 * keys + 8 * inner
        context = 2 * taps * hidden + 8 * hidden + layers * (4 * hidden + 10 * keys)
    else:
        row = 24 * hidden + 20 * queries + 20 * keys + 16 * inner
        context = 4 * taps * hidden + 12 * hidden + layers * 16 * keys
    logits = {"data": 4, "teacher": 5, "kl": 9}[arm.loss] + (2 if arm.kind == "dflash2" else 0)
    at_once = min(slots, blocks_at_once(ids, arm.block) * arm.block)
    sent = 2 * arm.rows * hidden * (taps + last)
    return Memory(
        held={
            "weights": weights,
            "gradients": weights,
            "moments": 2 * weights,
            "head": 4 * ids * hidden,
            "embedding": ends * shape.vocab * hidden,
            "states": sent,
            "runtime": RUNTIME if flex else 0,
        },
        backward={
            "blocks": slots * (layers * row + (8 if flex else 12) * hidden + (2 * hidden if last else 0)),
            "context": arm.rows * context,
            "logits": 4 * logits * at_once * ids,
        },
        optimizer=weights,
        host=(2 * ends * shape.vocab * hidden + 2 * (ahead + 1) * sent) if remote else 0,
    )
