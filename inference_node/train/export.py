"""A drafter's files, as z-lab and as Speculators write them; its config is made here before it is trained.

The config that training starts from is the one that is written: what the node will read is what was trained.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from inference_node.models.drafter import DFlash
from inference_node.models.errors import NodeError
from inference_node.train.arm import Arm
from inference_node.train.vocabulary import Vocabulary

FORMATS = ("zlab", "speculators")
CONV = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16}


@dataclass(frozen=True, slots=True)
class TargetShape:
    """What a drafter takes over from its target."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    positions: int
    mask_id: int

    @staticmethod
    def of(config: Any, mask_id: int) -> TargetShape:
        """From transformers' config. A target of experts has no dense width: three times the hidden one then."""
        return TargetShape(
            hidden=config.hidden_size,
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            intermediate=getattr(config, "intermediate_size", None) or 3 * config.hidden_size,
            vocab=config.vocab_size,
            positions=config.max_position_embeddings,
            mask_id=mask_id,
        )


def zlab_config(arm: Arm, target: TargetShape) -> dict[str, Any]:
    """config.json of a drafter in z-lab's format. Its rope is its own and plain: none of the target's is inherited."""
    second = arm.kind == "dflash2"
    sliding = arm.attention == "mixed"
    kinds = ["full_attention"] * arm.layers
    if sliding:
        kinds = ["sliding_attention"] * (arm.layers - 1) + ["full_attention"]
    inner: dict[str, Any] = {"target_layer_ids": list(arm.tapped(target.layers)), "mask_token_id": target.mask_id}
    if second:
        rank = min(CONV["selector_rank"], target.hidden // 4)
        inner |= {**CONV, "selector_rank": rank, "block_size": arm.block}
    config: dict[str, Any] = {
        "architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"],
        "model_type": "qwen3",
        **_body(arm, target, kinds),
        "num_target_layers": target.layers,
        "block_size": arm.block,
        "dflash_config": inner,
        "dtype": "bfloat16",
    }
    if not sliding:  # without a sliding layer the key says it; with them, sliding ones are causal and full ones are not
        config["is_causal"] = arm.attention == "causal"
    return config


def speculators_config(arm: Arm, target: TargetShape, verifier: str) -> dict[str, Any]:
    """config.json in Speculators' format, whose layer ids count the embedding. Causality is a layer's kind there."""
    if arm.attention == "causal":
        kinds = ["sliding_attention"] * arm.layers
    else:
        kinds = ["full_attention"] * arm.layers
        if arm.attention == "mixed":
            kinds[:-1] = ["sliding_attention"] * (arm.layers - 1)
    body = _body(arm, target, kinds)
    if arm.attention == "causal":
        body |= {"sliding_window": target.positions, "use_sliding_window": True}
    rank = min(CONV["selector_rank"], target.hidden // 4)
    return {
        "speculators_model_type": arm.kind,
        "architectures": ["DFlash2DraftModel" if arm.kind == "dflash2" else "DFlashDraftModel"],
        "speculators_config": {
            "algorithm": arm.kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": arm.block - 1}],
            "verifier": {"name_or_path": verifier, "architectures": []},
        },
        "transformer_layer_config": body,
        "draft_vocab_size": arm.vocabulary or target.vocab,
        "block_size": arm.block,
        "aux_hidden_state_layer_ids": [tap + 1 for tap in arm.tapped(target.layers)],
        "mask_token_id": target.mask_id,
        "sliding_window_non_causal": False,
        "sample_from_anchor": False,
        "dtype": "bfloat16",
        **({**CONV, "selector_rank": rank} if arm.kind == "dflash2" else {}),
    }


def _body(arm: Arm, target: TargetShape, kinds: list[str]) -> dict[str, Any]:
    sliding = "sliding_attention" in kinds
    return {
        "hidden_size": target.hidden,
        "num_hidden_layers": arm.layers,
        "num_attention_heads": arm.heads or target.heads,
        "num_key_value_heads": arm.kv_heads or target.kv_heads,
        "head_dim": arm.head_dim or min(128, target.head_dim),
        "intermediate_size": arm.intermediate or target.intermediate,
        "vocab_size": target.vocab,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": target.positions,
        "attention_bias": False,
        "hidden_act": "silu",
        "layer_types": kinds,
        "sliding_window": arm.window if sliding else None,
        "use_sliding_window": sliding,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7},
    }


def write(
    folder: Path,
    module: DFlash,
    arm: Arm,
    target: TargetShape,
    *,
    form: str = "zlab",
    verifier: str = "",
    vocabulary: Vocabulary | None = None,
    head: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write config.json, model.safetensors and provenance.json. Raises NodeError for what a format cannot hold.

    A smaller vocabulary comes with its rows of the target's head and its maps, which only Speculators' format has.
    """
    if form not in FORMATS:
        raise NodeError(f'format "{form}"; known are {", ".join(FORMATS)}.')
    if vocabulary is not None and form == "zlab":
        raise NodeError("z-lab's format has no smaller vocabulary. Export with --format speculators.")
    config = zlab_config(arm, target) if form == "zlab" else speculators_config(arm, target, verifier)
    tensors = {
        _named(name, form): value.detach().to(device="cpu", dtype=dtype).contiguous()
        for name, value in module.named_parameters()
    }
    if vocabulary is not None and head is not None:
        tensors |= {
            "lm_head.weight": head[vocabulary.ids.to(head.device)].detach().to(device="cpu", dtype=dtype).contiguous(),
            "d2t": vocabulary.d2t,
            "t2d": vocabulary.t2d,
        }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _json(folder / "config.json", config)
    if provenance is not None:
        _json(folder / "provenance.json", provenance)
    return folder


def _named(name: str, form: str) -> str:
    """Speculators stores DFlash 2's codebooks as the embeddings they are in its code."""
    return f"{name}.weight" if form == "speculators" and name.endswith("_codebook") else name


def _json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
