"""What a model's config says, as the numbers that kernels and buffers are made by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inference_node.models.errors import NodeError

HYBRID_MOE, HYBRID, MOE, PLAIN = "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3"
FAMILIES = (HYBRID_MOE, HYBRID, MOE, PLAIN)
"""model_type of the text part. The reference serves more of them."""


class NotForFast(NodeError):
    """The reference engine can serve this, the fast one cannot."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A Gated DeltaNet layer."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values side by side."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class Mixture:
    experts: int
    top: int
    width: int  # of one expert
    shared: int  # width of the shared expert; 0: there is none
    renormalise: bool


@dataclass(frozen=True, slots=True)
class Sizes:
    family: str
    hidden: int
    layers: int
    recurrent: tuple[bool, ...]  # per layer: a DeltaNet layer, else attention
    heads: int
    kv_heads: int
    head_dim: int
    gated: bool  # a gate beside each query
    plus_one: bool  # norms multiply by 1 + w, the DeltaNet's own aside
    eps: float
    intermediate: int  # of a dense MLP; 0 with experts
    delta: Delta | None
    mixture: Mixture | None
    vocab: int
    tied: bool
    positions: int

    @property
    def recurrent_layers(self) -> int:
        return sum(self.recurrent)

    @property
    def attention_layers(self) -> int:
        return self.layers - self.recurrent_layers


def sizes(config: Any) -> Sizes:
    """From transformers' text config. Raises NotForFast."""
    family = config.model_type
    if family not in FAMILIES:
        raise NotForFast(f'The fast engine does not know model_type "{family}"; it knows {", ".join(FAMILIES)}.')
    hybrid = family in (HYBRID_MOE, HYBRID)
    kinds = list(getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers)
    other = sorted(set(kinds) - {"full_attention", "linear_attention"})
    if other:
        raise NotForFast(f"The fast engine has no {other[0]} layers.")
    if getattr(config, "attention_bias", False):
        raise NotForFast("The fast engine has no biases in attention layers.")
    if getattr(config, "mlp_only_layers", None) or getattr(config, "decoder_sparse_step", 1) != 1:
        raise NotForFast("The fast engine has no models that mix dense layers with layers of experts.")
    mixture = None
    if family in (HYBRID_MOE, MOE):
        mixture = Mixture(
            experts=config.num_experts,
            top=config.num_experts_per_tok,
            width=config.moe_intermediate_size,
            shared=getattr(config, "shared_expert_intermediate_size", 0) or 0,
            renormalise=bool(getattr(config, "norm_topk_prob", True)),
        )
    delta = None
    if hybrid:
        delta = Delta(
            key_heads=config.linear_num_key_heads,
            value_heads=config.linear_num_value_heads,
            key_dim=config.linear_key_head_dim,
            value_dim=config.linear_value_head_dim,
            taps=config.linear_conv_kernel_dim,
        )
    return Sizes(
        family=family,
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        recurrent=tuple(kind == "linear_attention" for kind in kinds),
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        gated=hybrid,
        plus_one=hybrid,
        eps=config.rms_norm_eps,
        intermediate=0 if mixture else config.intermediate_size,
        delta=delta,
        mixture=mixture,
        vocab=config.vocab_size,
        tied=bool(getattr(config, "tie_word_embeddings", False)),
        positions=config.max_position_embeddings,
    )
