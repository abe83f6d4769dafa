"""What a drafter's config says, read from its released formats and checked against the target.

Three formats: z-lab's DFlash (v1) in its older and newer key places, z-lab's DFlash 2, and Speculators' wrapping of
both. Nothing is assumed: three revisions of one file differ in layers, heads, taps, mask id and windows under the same
name.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inference_node.models import rope as ropes
from inference_node.models.errors import BadModel
from inference_node.models.rope import Rope

log = logging.getLogger(__name__)

NEEDED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "rms_norm_eps",
)
DEFAULT_BLOCK = 16  # z-lab's own, where a file has no block_size


@dataclass(frozen=True, slots=True)
class DraftLayer:
    """How one layer's block rows see keys (context rows and each other)."""

    window: int | None
    causal: bool


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """A drafter, whatever format it came in. Layer numbers in `taps` count from 0: outputs of these target layers."""

    kind: str  # dflash | dflash2
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int  # of the target
    draft_vocab: int  # rows of its own head when it has one, else vocab
    eps: float
    biased: bool
    block: int  # rows: the anchor and block - 1 masks
    taps: tuple[int, ...]
    mask_id: int
    layers: tuple[DraftLayer, ...]
    rope_keys: Mapping[str, Any]
    input_scale: float = 1.0
    output_scale: float = 1.0
    softcap: float | None = None
    conv_kernel: int = 0  # DFlash 2 only, as are those below
    conv_group: int = 0
    selector_rank: int = 0
    selector_top: int = 0

    def rope(self, device: torch.device, where: object) -> Rope:
        from transformers.models.qwen3.modeling_qwen3 import Qwen3Config, Qwen3RotaryEmbedding

        config = Qwen3Config(
            head_dim=self.head_dim,
            hidden_size=self.hidden,
            num_attention_heads=self.heads,
            **self.rope_keys,
        )
        return ropes.from_module(Qwen3RotaryEmbedding, config, device, where)


@dataclass(frozen=True, slots=True)
class TargetIds:
    """What a drafter is checked against."""

    layers: int
    hidden: int
    vocab: int  # rows of the embedding
    known_ids: int  # ids below this are in the tokenizer
    taken: Mapping[int, str]  # ids that text uses: end of turn, pad, template tokens; with what they are
    added: frozenset[int]  # other added tokens


def read(config: Mapping[str, Any], where: object) -> DraftConfig:
    """Any of the known formats. Raises BadModel naming the key."""
    if "speculators_model_type" in config:
        return _speculators(config, where)
    return _zlab(config, where)


def check(draft: DraftConfig, target: TargetIds, where: object) -> None:
    """Refuse a drafter that cannot belong to this target."""
    if draft.hidden != target.hidden:
        raise BadModel(where, "hidden_size", found=draft.hidden, expected=f"{target.hidden}, the target's")
    if draft.vocab != target.vocab:
        raise BadModel(
            where, "vocab_size", found=draft.vocab, expected=f"{target.vocab}, the rows of the target's embedding",
            hint="This drafter was made for another vocabulary.",
        )  # fmt: skip
    wrong = [tap for tap in draft.taps if not 0 <= tap < target.layers]
    if wrong or not draft.taps:
        raise BadModel(
            where, "target_layer_ids", found=list(draft.taps), expected=f"layers from 0 to {target.layers - 1}"
        )
    if not 0 <= draft.mask_id < target.vocab:
        raise BadModel(where, "mask_token_id", found=draft.mask_id, expected=f"an id below {target.vocab}")
    if draft.mask_id in target.taken:
        raise BadModel(
            where, "mask_token_id", found=f"{draft.mask_id}, which is {target.taken[draft.mask_id]}",
            expected="an id that no text uses",
        )  # fmt: skip
    if draft.mask_id in target.added:
        log.warning("%s: mask_token_id %d is an added token of the target's tokenizer", where, draft.mask_id)


def _zlab(config: Mapping[str, Any], where: object) -> DraftConfig:
    inner: Mapping[str, Any] = config.get("dflash_config") or {}

    def value(name: str, default: Any = None) -> Any:
        """Newer files keep these in dflash_config, older ones at the top."""
        return inner.get(name, config.get(name, default))

    architectures = config.get("architectures") or []
    kind = "dflash2" if any("DFlash2" in name for name in architectures) else "dflash"
    if architectures and not any("DFlash" in name for name in architectures):
        raise BadModel(
            where, "architectures", found=list(architectures), expected="a DFlashDraftModel or DFlash2DraftModel"
        )
    taps = value("target_layer_ids")
    if taps is None:
        taps = _spread(config.get("num_target_layers"), config.get("num_hidden_layers"), where)
    causal = config.get("is_causal", inner.get("causal"))
    return _build(
        kind, config, where, block=value("block_size", DEFAULT_BLOCK), taps=taps, mask_id=value("mask_token_id"),
        causal=causal, sliding_causal=True, extra=value, draft_vocab=None,
    )  # fmt: skip


def _speculators(config: Mapping[str, Any], where: object) -> DraftConfig:
    kind = config["speculators_model_type"]
    if kind not in ("dflash", "dflash2"):
        raise BadModel(where, "speculators_model_type", found=f'"{kind}"', expected='"dflash" or "dflash2"')
    layers = config.get("transformer_layer_config")
    if not isinstance(layers, Mapping):
        raise BadModel(where, "transformer_layer_config", found="missing", expected="a Qwen3 config")
    if config.get("sample_from_anchor"):
        raise BadModel(
            where, "sample_from_anchor", found=True, expected="false: the anchor's row predicts nothing here"
        )
    taps = config.get("aux_hidden_state_layer_ids")
    if taps is None:
        raise BadModel(where, "aux_hidden_state_layer_ids", found="missing", expected="a list of layer numbers")
    return _build(
        kind,
        layers,
        where,
        block=config.get("block_size"),
        taps=[tap - 1 for tap in taps],  # here 1 is the output of layer 0: the embedding is counted
        mask_id=config.get("mask_token_id"),
        causal=None,
        sliding_causal=not config.get("sliding_window_non_causal", False),
        extra=config.get,
        draft_vocab=config.get("draft_vocab_size"),
    )


def _build(
    kind: str,
    config: Mapping[str, Any],
    where: object,
    *,
    block: Any,
    taps: Sequence[int],
    mask_id: Any,
    causal: bool | None,
    sliding_causal: bool,
    extra: Any,
    draft_vocab: int | None,
) -> DraftConfig:
    for key in NEEDED:
        if config.get(key) is None:
            raise BadModel(where, key, found="missing", expected="a value: drafters differ in it")
    if config.get("hidden_act", "silu") != "silu":
        raise BadModel(where, "hidden_act", found=f'"{config["hidden_act"]}"', expected='"silu"')
    if not isinstance(block, int) or not 2 <= block <= 64:
        raise BadModel(where, "block_size", found=block, expected="rows from 2 to 64")
    if not isinstance(mask_id, int):
        raise BadModel(where, "mask_token_id", found=mask_id, expected="a token id")
    softcap = extra("final_logit_softcapping")
    return DraftConfig(
        kind=kind,
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        vocab=config["vocab_size"],
        draft_vocab=draft_vocab or config["vocab_size"],
        eps=config["rms_norm_eps"],
        biased=bool(config.get("attention_bias", False)),
        block=block,
        taps=tuple(taps),
        mask_id=mask_id,
        layers=_layers(config, causal, sliding_causal, where),
        rope_keys=_rope_keys(config, where),
        input_scale=float(extra("input_embedding_scale") or 1.0),
        output_scale=float(extra("output_multiplier") or 1.0),
        softcap=float(softcap) if softcap else None,
        **(_second(extra, where) if kind == "dflash2" else {}),
    )


def _layers(
    config: Mapping[str, Any], causal: bool | None, sliding_causal: bool, where: object
) -> tuple[DraftLayer, ...]:
    count = config["num_hidden_layers"]
    kinds = config.get("layer_types") or ["full_attention"] * count
    if len(kinds) != count:
        raise BadModel(where, "layer_types", found=f"{len(kinds)} entries", expected=f"{count}, one per layer")
    layers = []
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise BadModel(where, "layer_types", found=f'"{kind}"', expected='"full_attention" or "sliding_attention"')
        sliding = kind == "sliding_attention"
        window = config.get("sliding_window") if sliding else None
        if sliding and (not isinstance(window, int) or window < 1):
            raise BadModel(where, "sliding_window", found=window, expected="a number of rows, for its sliding layers")
        layers.append(DraftLayer(window, bool(causal) if causal is not None else sliding and sliding_causal))
    return tuple(layers)


def _rope_keys(config: Mapping[str, Any], where: object) -> dict[str, Any]:
    """Newer files have rope_parameters, older rope_theta and rope_scaling. What only targets have is refused."""
    nested = config.get("rope_parameters") or config.get("rope_scaling") or {}
    for place, keys in (("", config), ("rope_parameters.", nested)):
        factor = keys.get("partial_rotary_factor")
        if factor not in (None, 1, 1.0):
            raise BadModel(
                where, f"{place}partial_rotary_factor", found=factor, expected="absent, or 1",
                hint="A drafter turns its whole heads; this was inherited from the target's config.",
            )  # fmt: skip
        if keys.get("mrope_section"):
            raise BadModel(where, f"{place}mrope_section", found=keys["mrope_section"], expected="absent")
    found = {key: config[key] for key in ("rope_theta", "rope_scaling", "rope_parameters") if config.get(key)}
    if "rope_parameters" in found:
        found = {"rope_parameters": dict(found["rope_parameters"])}
        if "rope_theta" in config:
            found["rope_parameters"].setdefault("rope_theta", config["rope_theta"])
    if "rope_theta" not in found and "rope_theta" not in found.get("rope_parameters", {}):
        raise BadModel(where, "rope_theta", found="missing", expected="a number, alone or in rope_parameters")
    if config.get("max_position_embeddings"):
        found["max_position_embeddings"] = config["max_position_embeddings"]
    return found


def _second(extra: Any, where: object) -> dict[str, int]:
    names = {
        "conv_kernel": "conv_kernel_size",
        "conv_group": "conv_group_size",
        "selector_rank": "selector_rank",
        "selector_top": "selector_top_k",
    }
    found = {ours: extra(theirs) for ours, theirs in names.items()}
    for ours, value in found.items():
        if not isinstance(value, int) or value < 1:
            raise BadModel(where, names[ours], found=value, expected="a positive number, for a DFlash 2 drafter")
    return found


def _spread(target_layers: Any, draft_layers: Any, where: object) -> list[int]:
    """The taps of files older than the key: evenly from layer 1 to the third last, as many as draft layers."""
    if not isinstance(target_layers, int) or not isinstance(draft_layers, int):
        raise BadModel(
            where, "target_layer_ids", found="missing", expected="a list of layer numbers, or num_target_layers"
        )
    if draft_layers == 1:
        return [target_layers // 2]
    return [round(1 + i * (target_layers - 4) / (draft_layers - 1)) for i in range(draft_layers)]
