"""Every Triton kernel under one roof; `plain/ops.py` has the same names and signatures."""

from inference_node.kernels.triton.accept import accept
from inference_node.kernels.triton.block_conv import block_conv
from inference_node.kernels.triton.candidate_walk import candidate_walk
from inference_node.kernels.triton.draft_context import write as draft_context
from inference_node.kernels.triton.embed import embed
from inference_node.kernels.triton.expert_mlp import expert_down, expert_up
from inference_node.kernels.triton.gated_delta_prefill import prefill as delta_prefill
from inference_node.kernels.triton.gated_delta_step import step as delta_step
from inference_node.kernels.triton.head import head
from inference_node.kernels.triton.kv_write import write as kv_write
from inference_node.kernels.triton.linear import linear
from inference_node.kernels.triton.norm import gated_norm, norm
from inference_node.kernels.triton.paged_attention import attend as paged_attention
from inference_node.kernels.triton.pick import pick
from inference_node.kernels.triton.prefill_attention import attend as prefill_attention
from inference_node.kernels.triton.prefill_experts import prefill_experts
from inference_node.kernels.triton.prefill_linear import prefill_linear
from inference_node.kernels.triton.route import route

__all__ = [
    "accept",
    "block_conv",
    "candidate_walk",
    "delta_prefill",
    "delta_step",
    "draft_context",
    "embed",
    "expert_down",
    "expert_up",
    "gated_norm",
    "head",
    "kv_write",
    "linear",
    "norm",
    "paged_attention",
    "pick",
    "prefill_attention",
    "prefill_experts",
    "prefill_linear",
    "route",
]
