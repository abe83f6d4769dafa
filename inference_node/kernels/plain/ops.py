"""Every kernel's twin in ordinary torch under one roof; `triton/ops.py` has the same names and signatures."""

from inference_node.kernels.plain.accept import accept
from inference_node.kernels.plain.block_conv import block_conv
from inference_node.kernels.plain.candidate_walk import candidate_walk
from inference_node.kernels.plain.draft_context import write as draft_context
from inference_node.kernels.plain.embed import embed
from inference_node.kernels.plain.expert_mlp import expert_down, expert_up
from inference_node.kernels.plain.gated_delta_prefill import prefill as delta_prefill
from inference_node.kernels.plain.gated_delta_step import step as delta_step
from inference_node.kernels.plain.head import head
from inference_node.kernels.plain.kv_write import write as kv_write
from inference_node.kernels.plain.linear import linear
from inference_node.kernels.plain.norm import gated_norm, norm
from inference_node.kernels.plain.paged_attention import attend as paged_attention
from inference_node.kernels.plain.pick import pick
from inference_node.kernels.plain.prefill_attention import attend as prefill_attention
from inference_node.kernels.plain.prefill_experts import prefill_experts
from inference_node.kernels.plain.prefill_linear import prefill_linear
from inference_node.kernels.plain.route import route

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
