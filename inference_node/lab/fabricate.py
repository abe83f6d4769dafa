"""Random models and drafters of given shapes in the real file formats: for tests, and for benches at real sizes.

Weights are random but not arbitrary: every sublayer adds about as much as it reads, recurrent memories last for tens to
hundreds of tokens, and the head is scaled until the best logit stands at least 1 above the second at half of all
positions. (With default initialisation that gap is so small that any margin counts as rounding, and a check on margins
cannot fail.)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from inference_node.lab.shapes import SMALL, DraftShape, Shape, draft_shape
from inference_node.lab.tokenizer import ADDED, write_tokenizer
from inference_node.models import weights as model_weights
from inference_node.models.drafter import DFlash
from inference_node.models.errors import NodeError
from inference_node.models.files import find
from inference_node.models.mtp import Head
from inference_node.models.target import TextModel
from inference_node.state.whole import SequenceState

FAMILIES = ("qwen3_5_moe", "qwen3_5", "qwen3_moe", "qwen3", "llama")
HYBRID = ("qwen3_5_moe", "qwen3_5")
REVISIONS = ("april", "april-2", "june", "dflash2", "speculators", "speculators-reduced", "speculators-dflash2")
WANTED_GAP = 1.25
TOKENIZER_ROWS = 4096  # larger vocabularies go without a tokenizer

Named = Iterator[tuple[str, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Fabricated:
    """Folders of a target and of a drafter that belong together."""

    target: Path
    drafter: Path


def fabricate_target(
    folder: Path,
    family: str,
    shape: Shape = SMALL,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    scale_head: bool = True,
    sharded: bool | None = None,
    per_expert: bool | None = None,
    mtp: bool | None = None,
    text: Iterable[str] = (),
) -> Path:
    """Write a target model. per_expert: experts as single tensors; mtp: with a multi-token head.

    Both default to what the family's own files have. sharded: a file per layer, by default for more than eight layers.
    text: what the tokenizer's pieces are made from, instead of a few sentences.
    """
    if family not in FAMILIES:
        raise NodeError(f'family="{family}"; known are {", ".join(FAMILIES)}.')
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(folder, shape.vocab, text=text) if shape.vocab <= TOKENIZER_ROWS else None
    stops = [tokenizer.convert_tokens_to_ids(name) for name in ("<|im_end|>", "<|endoftext|>")] if tokenizer else [0]
    _write_json(folder / "config.json", target_config(family, shape, stops))
    _write_json(folder / "generation_config.json", {"eos_token_id": stops, "pad_token_id": stops[-1]})
    single = family == "qwen3_moe" if per_expert is None else per_expert
    with_mtp = family in HYBRID if mtp is None else mtp
    shards = shape.layers > 8 if sharded is None else sharded
    _write_tensors(folder, lambda: _target_tensors(folder, family, seed, dtype, single, with_mtp), shards)
    if scale_head:
        _scale_head(folder, median_gap(folder))
    return folder


def fabricate_drafter(
    folder: Path,
    target: Path,
    revision: str = "june",
    shape: Shape = SMALL,
    *,
    seed: int = 1,
    block: int = 8,
    dtype: torch.dtype = torch.bfloat16,
) -> Path:
    """Write a drafter for a fabricated target, in one of the released formats."""
    if revision not in REVISIONS:
        raise NodeError(f'revision="{revision}"; known are {", ".join(REVISIONS)}.')
    folder.mkdir(parents=True, exist_ok=True)
    files = find(str(target))
    known = len(files.tokenizer) if files.tokenizer is not None else shape.vocab - 8
    mask = known if revision not in ("april", "april-2") else known - len(ADDED) + ADDED.index("<|unused_0|>")
    form = draft_shape(revision, shape, block)
    _write_json(folder / "config.json", drafter_config(revision, shape, form, mask, str(target)))
    _write_tensors(folder, lambda: _draft_tensors(folder, revision, shape, seed, dtype), sharded=False)
    return folder


def fabricate_pair(
    folder: Path, family: str, revision: str = "june", *, seed: int = 0, block: int = 8, mtp: bool | None = None
) -> Fabricated:
    """A small target and its drafter."""
    target = fabricate_target(folder / "target", family, seed=seed, mtp=mtp)
    return Fabricated(target, fabricate_drafter(folder / "drafter", target, revision, seed=seed + 1, block=block))


def median_gap(folder: Path, tokens: int = 512) -> float:
    """Median distance of the two best logits over random tokens, in logit units, computed in fp32."""
    files = find(str(folder))
    config = model_weights.text_config(files)
    module, _ = model_weights.load_module(files, config, torch.float32, torch.device("cpu"))
    model = TextModel(module, config, block=8, known_ids=config.vocab_size, where=files.name)
    state = SequenceState(model.shapes())
    ids = torch.randint(config.vocab_size, (tokens,), generator=torch.Generator().manual_seed(7)).tolist()
    gaps = []
    with torch.inference_mode():
        for start in range(0, tokens, 64):
            hidden = model.tile(ids[start : start + 64], state).hidden
            best = torch.topk(hidden.to(torch.float32) @ model.head.t(), 2, dim=-1).values
            gaps.append(best[:, 0] - best[:, 1])
    return float(torch.cat(gaps).median())


def target_config(family: str, s: Shape, stops: list[int]) -> dict[str, Any]:
    """config.json of a target in the family's own form."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e7}
    text: dict[str, Any] = {
        "vocab_size": s.vocab,
        "hidden_size": s.hidden,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": s.positions,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "rope_parameters": rope,
        "eos_token_id": stops[0],
        "dtype": "bfloat16",
    }
    if family in ("qwen3_5_moe", "qwen3_moe"):
        text |= {
            "num_experts": s.experts,
            "num_experts_per_tok": s.experts_per_token,
            "moe_intermediate_size": s.expert_width,
        }
    if family != "qwen3_5_moe":
        text["intermediate_size"] = s.intermediate or s.hidden * 3
    if family == "qwen3_moe":
        text |= {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    if family not in HYBRID:
        kind = {"qwen3_moe": "Qwen3MoeForCausalLM", "qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}[family]
        return {"architectures": [kind], "model_type": family, **text}
    sections = max(1, s.head_dim // 4 // 2 // 3)
    text |= {
        "model_type": f"{family}_text",
        "rope_parameters": {
            **rope,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [s.head_dim // 8 - 2 * sections, sections, sections],
        },
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": s.linear_dim,
        "linear_value_head_dim": s.linear_dim,
        "linear_num_key_heads": s.linear_key_heads,
        "linear_num_value_heads": s.linear_value_heads,
        "layer_types": ["full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(s.layers)],
        "mtp_num_hidden_layers": 1,
    }
    if family == "qwen3_5_moe":
        text["shared_expert_intermediate_size"] = s.expert_width
    kind = "Qwen3_5MoeForConditionalGeneration" if family == "qwen3_5_moe" else "Qwen3_5ForConditionalGeneration"
    return {
        "architectures": [kind],
        "model_type": family,
        "text_config": text,
        "vision_config": {"model_type": f"{family}_vision", "depth": 1, "hidden_size": 16, "num_heads": 2},
        "image_token_id": s.vocab - 1,
        "video_token_id": s.vocab - 2,
        "tie_word_embeddings": False,
    }


def _target_tensors(folder: Path, family: str, seed: int, dtype: torch.dtype, single: bool, with_mtp: bool) -> Named:
    """Every tensor under its name in the released files."""
    from transformers import AutoModelForCausalLM

    config = model_weights.text_config(find(str(folder)))
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config)
    prefix = "model.language_model." if family in HYBRID else "model."
    plus_one = family in HYBRID
    for name, parameter in module.named_parameters():
        value = _random(name, tuple(parameter.shape), seed, dtype, plus_one)
        where = name.replace("model.", prefix, 1) if name.startswith("model.") else name
        if single and ".experts." in name:
            yield from _one_by_one(where, value)
        else:
            yield where, value
    if with_mtp:
        for name, value in _mtp(module, config, seed, dtype, plus_one):
            yield f"mtp.{name}", value
    if family in HYBRID:
        yield "model.visual.patch_embed.proj.weight", torch.zeros(16, 3, 2, 4, 4, dtype=dtype)
        yield "model.visual.blocks.0.norm1.weight", torch.ones(16, dtype=dtype)


def _mtp(module: Any, config: Any, seed: int, dtype: torch.dtype, plus_one: bool) -> Named:
    """The multi-token head's tensors, shaped by the same classes that will read them."""
    with torch.device("meta"):
        head = Head(SimpleNamespace(module=module, config=config, hidden=config.hidden_size))  # type: ignore[arg-type]
    for name, parameter in head.named_parameters():
        yield name, _random(f"mtp.{name}", tuple(parameter.shape), seed, dtype, plus_one)


def _one_by_one(fused: str, value: torch.Tensor) -> Named:
    """A fused expert tensor as the single ones of older files."""
    base, _, part = fused.rpartition(".")
    for expert, rows in enumerate(value):
        if part == "down_proj":
            yield f"{base}.{expert}.down_proj.weight", rows.clone()
        else:
            gate, up = rows.chunk(2)
            yield f"{base}.{expert}.gate_proj.weight", gate.clone()
            yield f"{base}.{expert}.up_proj.weight", up.clone()


def _random(name: str, shape: tuple[int, ...], seed: int, dtype: torch.dtype, plus_one: bool) -> torch.Tensor:
    """Scaled by what the tensor is for. Each name has its own stream, so a tensor does not depend on the others."""
    generator = torch.Generator().manual_seed(hash_of(name) ^ seed)
    leaf = name.split(".")[-2] if name.endswith(".weight") else name.split(".")[-1]
    if leaf == "A_log":
        return torch.empty(shape).uniform_(0.01, 0.3, generator=generator).log().to(dtype)
    noise = torch.randn(shape, generator=generator)
    if leaf == "dt_bias":
        return (noise * 0.5).to(dtype)
    if "norm" in leaf:
        centre = 0.0 if plus_one and "linear_attn.norm" not in name else 1.0
        return (centre + 0.1 * noise).to(dtype)
    if leaf == "embed_tokens":
        return noise.to(dtype)
    if leaf == "conv1d":
        return (noise * 0.5).to(dtype)
    if leaf.endswith("_codebook") or leaf == "base_kernel":
        return (noise * 0.3).to(dtype)
    if name.endswith("mlp.gate.weight"):  # decided routers, as trained ones are: near ties would flip with any rounding
        noise = noise * 4
    return (noise * shape[-1] ** -0.5).to(dtype)


def hash_of(name: str) -> int:
    """31 bits that stay the same between runs, unlike hash()."""
    value = 17
    for byte in name.encode():
        value = (value * 31 + byte) % (2**31 - 1)
    return value


def drafter_config(revision: str, s: Shape, d: DraftShape, mask: int, target: str) -> dict[str, Any]:
    """config.json of a drafter in a released form."""
    second = "dflash2" in revision
    kinds = ["full_attention"] * d.layers
    if d.window is not None:
        kinds = ["sliding_attention"] * (d.layers if second else d.layers - 1) + ([] if second else ["full_attention"])
    base: dict[str, Any] = {
        "model_type": "qwen3",
        "hidden_size": s.hidden,
        "num_hidden_layers": d.layers,
        "num_attention_heads": d.heads,
        "num_key_value_heads": d.kv_heads,
        "head_dim": d.head_dim,
        "intermediate_size": d.intermediate,
        "vocab_size": s.vocab,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": s.positions,
        "attention_bias": False,
        "hidden_act": "silu",
        "layer_types": kinds,
        "sliding_window": d.window,
        "use_sliding_window": d.window is not None,
        "dtype": "bfloat16",
    }
    selector = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 8 if s.hidden < 1024 else 256}
    selector["selector_top_k"] = 16
    if revision.startswith("speculators"):
        reduced = s.vocab // 2 if revision == "speculators-reduced" else s.vocab
        return {
            "speculators_model_type": "dflash2" if second else "dflash",
            "architectures": ["DFlash2DraftModel" if second else "DFlashSpeculator"],
            "speculators_version": "0.9.0",
            "speculators_config": {
                "algorithm": "dflash",
                "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": d.block - 1}],
                "default_proposal_method": "greedy",
                "verifier": {"name_or_path": target, "architectures": []},
            },
            "transformer_layer_config": {**base, "rope_parameters": {"rope_type": "default", "rope_theta": 1e7}},
            "draft_vocab_size": reduced,
            "block_size": d.block,
            "aux_hidden_state_layer_ids": [tap + 1 for tap in d.taps],
            "mask_token_id": mask,
            "sliding_window_non_causal": second,
            "sample_from_anchor": False,
            **(selector if second else {}),
        }
    inner: dict[str, Any] = {"target_layer_ids": list(d.taps), "mask_token_id": mask}
    config = {
        **base,
        "num_target_layers": s.layers,
        "architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"],
    }
    if d.yarn:
        window = max(64, s.positions // 8)
        return {
            **config, "rope_theta": 1e7, "block_size": d.block, "dflash_config": inner,
            "rope_scaling": {
                "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": window, "beta_fast": 32.0,
                "beta_slow": 1.0,
            },
        }  # fmt: skip
    if revision == "april-2":
        return {**config, "rope_theta": 1e7, "rope_scaling": None, "block_size": d.block, "dflash_config": inner}
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e7}
    if second:
        return {**config, "is_causal": False, "dflash_config": {**inner, "block_size": d.block, **selector}}
    return {**config, "block_size": d.block, "dflash_config": inner}


def _draft_tensors(folder: Path, revision: str, s: Shape, seed: int, dtype: torch.dtype) -> Named:
    from inference_node.models import draft_config

    config = draft_config.read(json.loads((folder / "config.json").read_text(encoding="utf-8")), folder)
    with torch.device("meta"):
        module = DFlash(config)
    for name, parameter in module.named_parameters():
        yield name, _random(name, tuple(parameter.shape), seed, dtype, plus_one=False)
    if config.draft_vocab < config.vocab:
        ids = torch.arange(config.draft_vocab) * 2  # every other id of the target
        yield "d2t", ids - torch.arange(config.draft_vocab)
        chosen = torch.zeros(config.vocab, dtype=torch.bool)
        chosen[ids] = True
        yield "t2d", chosen
        yield "lm_head.weight", _random("lm_head.weight", (config.draft_vocab, s.hidden), seed, dtype, plus_one=False)


def _write_tensors(folder: Path, tensors: Any, sharded: bool) -> None:
    """One file, or one per layer with an index, so that a large model never is in memory at once."""
    if not sharded:
        save_file(dict(tensors()), folder / "model.safetensors", metadata={"format": "pt"})
        return
    where: dict[str, str] = {}
    batch: dict[str, torch.Tensor] = {}
    group = ""
    for name, value in chain(tensors(), [("", torch.empty(0))]):
        this = name.split(".layers.")[-1].split(".")[0] if ".layers." in name else "rest"
        if batch and (this != group or not name):
            file = f"model-{len(set(where.values())) + 1:05d}.safetensors"
            save_file(batch, folder / file, metadata={"format": "pt"})
            where |= dict.fromkeys(batch, file)
            batch = {}
        group = this
        if name:
            batch[name] = value
    _write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": where})


def _scale_head(folder: Path, gap: float) -> None:
    """Multiply the head so that the median gap is as wanted; a power of two, which loses no bit of any weight."""
    factor = 2.0 ** max(0, torch.tensor(WANTED_GAP / gap).log2().ceil().int().item())
    for path in sorted(folder.glob("*.safetensors")):
        tensors = load_file(path)
        if "lm_head.weight" in tensors:
            tensors["lm_head.weight"] = tensors["lm_head.weight"] * factor
            save_file(tensors, path, metadata={"format": "pt"})


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
