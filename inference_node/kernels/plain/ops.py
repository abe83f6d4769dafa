"""Every kernel's twin in ordinary torch under one roof; `triton/ops.py` has the same names."""

from inference_node.kernels.plain.embed import embed
from inference_node.kernels.plain.expert_mlp import expert_down, expert_up
from inference_node.kernels.plain.head import head
from inference_node.kernels.plain.linear import linear
from inference_node.kernels.plain.norm import add_norm, gated_norm, norm
from inference_node.kernels.plain.prefill_experts import prefill_experts
from inference_node.kernels.plain.prefill_linear import prefill_linear
from inference_node.kernels.plain.route import route

__all__ = [
    "add_norm",
    "embed",
    "expert_down",
    "expert_up",
    "gated_norm",
    "head",
    "linear",
    "norm",
    "prefill_experts",
    "prefill_linear",
    "route",
]
