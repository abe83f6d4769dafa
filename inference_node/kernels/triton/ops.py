"""Every Triton kernel under one roof; `plain/ops.py` has the same names and signatures."""

from inference_node.kernels.triton.embed import embed
from inference_node.kernels.triton.expert_mlp import expert_down, expert_up
from inference_node.kernels.triton.head import head
from inference_node.kernels.triton.linear import linear
from inference_node.kernels.triton.norm import add_norm, gated_norm, norm
from inference_node.kernels.triton.prefill_experts import prefill_experts
from inference_node.kernels.triton.prefill_linear import prefill_linear
from inference_node.kernels.triton.route import route

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
