"""From a model's files to a transformers module with its weights, or a refusal that names what is wrong.

The module gives the names and shapes that its config calls for; the files must hold exactly those. transformers' own
loader only warns when a tensor is missing and fills it with noise, which would be served as an answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from inference_node.models.errors import BadModel, NodeError
from inference_node.models.files import ModelFiles, Tensors, TensorsInMemory, Told, untold

FAMILIES = ("qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3", "qwen2", "llama", "mistral")
"""model_type of the text part. Their decoder layers have the parts that `models.target` knows."""

ONE_EXPERT = re.compile(r"(?P<experts>.*\.mlp\.experts)\.(?P<index>\d+)\.(?P<part>gate|up|down)_proj\.weight")
NOT_TEXT = re.compile(r"(model\.)?visual\.|.*\.rotary_emb\.inv_freq$")
KEPT_IN_FP32 = re.compile(r".*\.linear_attn\.(A_log|dt_bias)")
"""Small tensors that steer a decay over the whole context; rounding them costs more than it saves."""


def text_config(files: ModelFiles) -> Any:
    """transformers' config of the text part. Raises BadModel for what cannot be served."""
    from transformers import AutoConfig

    if files.gguf is not None:
        try:
            with files.gguf_read_once():
                config = AutoConfig.from_pretrained(files.folder, gguf_file=files.gguf)
        except Exception as error:  # its readers raise whatever a broken file leads them to
            raise BadModel(
                files.folder / files.gguf, "the file", found=f"unreadable ({error})",
                expected="a GGUF file of a model that transformers knows",
            ) from error  # fmt: skip
    else:
        kind = files.config.get("model_type")
        if "quantization_config" in files.config:
            method = files.config["quantization_config"].get("quant_method", "unknown")
            raise BadModel(
                files.folder / "config.json", "quantization_config", found=f"present ({method})",
                expected="absent: weights in bf16, fp16 or fp32", hint="Use --weights to quantise at load.",
            )  # fmt: skip
        try:
            config = AutoConfig.from_pretrained(files.folder)
        except Exception as error:  # its checks of single fields raise kinds of their own
            raise BadModel(
                files.folder / "config.json", f'model_type "{kind}"', found=f"not readable ({error})",
                expected=f"a config of one of {FAMILIES}",
            ) from error  # fmt: skip
    text = config.get_text_config(decoder=True)
    kind = getattr(text, "model_type", config.model_type)  # a nested config that its model does not know stays a dict
    if kind not in FAMILIES:
        raise BadModel(files.folder / "config.json", "model_type", found=f'"{kind}"', expected=f"one of {FAMILIES}")
    return text


def load_module(
    files: ModelFiles, config: Any, dtype: torch.dtype, device: torch.device, told: Told = untold
) -> tuple[nn.Module, Mapping[str, torch.Tensor]]:
    """The causal model with weights on the device, and the tensors of its multi-token head (`mtp.` cut off)."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=dtype)
    tensors = gguf_tensors(files, config, told) if files.gguf is not None else files.tensors()
    return module, fill(module, tensors, config, dtype, device, files.name, told)


ENDS = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")


def load_ends(files: ModelFiles, config: Any, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """The causal model with its embedding, final norm and head alone; everything between stays empty.

    Of a GGUF file all is read, because transformers reads no less.
    """
    from transformers import AutoModelForCausalLM

    if files.gguf is not None:
        module, _ = load_module(files, config, dtype, device)
        module.model.layers = nn.ModuleList()  # type: ignore[union-attr, assignment]
        return module
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=dtype)
    module.model.layers = nn.ModuleList()
    tensors = files.tensors()
    shapes = tensors.shapes()
    here = {_module_name(name): name for name in shapes}
    tied = bool(getattr(config, "tie_word_embeddings", False))
    wanted = {name: tuple(value.shape) for name, value in module.named_parameters(remove_duplicate=False)}
    for name in ENDS[:2] if tied else ENDS:
        if name not in here:
            raise BadModel(files.name, f'tensor "{name}"', found="missing", expected=f"shape {list(wanted[name])}")
        _check(files.name, here[name], shapes[here[name]], wanted[name])
        _put(module, name, tensors.read(here[name]).to(device=device, dtype=dtype, copy=True))
    if tied:
        module.lm_head.weight = module.model.embed_tokens.weight
    result: nn.Module = module.requires_grad_(False).eval()
    return result


def gguf_tensors(files: ModelFiles, config: Any, told: Told) -> Tensors:
    """Dequantised by transformers, under the usual names."""
    from transformers import AutoModelForCausalLM

    told(f"reading {files.gguf}", 0.0)
    try:
        with files.gguf_read_once(told):
            model = AutoModelForCausalLM.from_pretrained(
                files.folder, gguf_file=files.gguf, config=config, dtype=torch.float32
            )
    except Exception as error:  # its readers raise many kinds for what they do not know
        raise NodeError(
            f"transformers could not read {files.folder / str(files.gguf)}: {error}. "
            "Convert the model to safetensors, or serve the file with llama.cpp."
        ) from error
    return TensorsInMemory(model.state_dict())


def fill(
    module: nn.Module,
    tensors: Tensors,
    config: Any,
    dtype: torch.dtype,
    device: torch.device,
    where: str,
    told: Told = untold,
) -> Mapping[str, torch.Tensor]:
    """Put the files' tensors into the module's parameters. Returns the tensors of the multi-token head."""
    shapes = tensors.shapes()
    here = {_module_name(name): name for name in shapes if not NOT_TEXT.match(name) and not name.startswith("mtp.")}
    experts = _single_experts(here)
    wanted = {name: tuple(parameter.shape) for name, parameter in module.named_parameters(remove_duplicate=False)}
    tied = bool(getattr(config, "tie_word_embeddings", False)) and hasattr(module, "lm_head")
    used: set[str] = set()
    for done, (name, shape) in enumerate(wanted.items()):
        if tied and name == "lm_head.weight":
            used.add(name)
            continue
        kind = torch.float32 if KEPT_IN_FP32.match(name) else dtype
        if name in here:
            _check(where, here[name], shapes[here[name]], shape)
            value = tensors.read(here[name]).to(device=device, dtype=kind, copy=True)
            used.add(name)
        elif name in experts:
            value = _stacked(where, experts[name], name, shape, tensors, shapes, kind, device)
            used.update(part for parts in experts[name].values() for part in parts)
        else:
            raise BadModel(where, f'tensor "{name}"', found="missing", expected=f"shape {list(shape)}")
        _put(module, name, value)
        told("loading weights", (done + 1) / len(wanted))
    if tied:
        module.lm_head.weight = module.model.embed_tokens.weight  # type: ignore[union-attr, assignment]
    left = sorted(set(here) - used)
    if left:
        raise BadModel(
            where,
            f'tensor "{here[left[0]]}"',
            found=f"present, and {len(left) - 1} more that this model has no place for",
            expected=f"only the tensors of a {config.model_type}",
        )
    module.requires_grad_(False).eval()
    return {
        name.removeprefix("mtp."): tensors.read(name).to(device=device, dtype=dtype)
        for name in shapes
        if name.startswith("mtp.")
    }


def _module_name(name: str) -> str:
    """Composite checkpoints keep the text part under model.language_model."""
    return re.sub(r"^model\.language_model\.", "model.", name)


def _single_experts(here: Mapping[str, str]) -> dict[str, dict[int, list[str]]]:
    """Fused parameter name -> expert -> its tensors' names [gate, up] or [down], for checkpoints stored per expert."""
    found: dict[str, dict[int, list[str]]] = {}
    order = {"gate": 0, "up": 1, "down": 0}
    for name in here:
        match = ONE_EXPERT.fullmatch(name)
        if match:
            fused = f"{match['experts']}.{'down_proj' if match['part'] == 'down' else 'gate_up_proj'}"
            parts = found.setdefault(fused, {}).setdefault(int(match["index"]), [])
            parts.append(name)
            parts.sort(key=lambda part: order[ONE_EXPERT.fullmatch(part)["part"]])  # type: ignore[index]
    return found


def _stacked(
    where: str,
    parts: Mapping[int, list[str]],
    name: str,
    shape: tuple[int, ...],
    tensors: Tensors,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """One fused tensor [experts, rows, columns] out of single ones, gate above up."""
    pieces = 1 if name.endswith("down_proj") else 2
    value = torch.empty(shape, dtype=dtype, device=device)
    each = (shape[1] // pieces, shape[2])
    back = {_module_name(raw): raw for raw in shapes}
    for expert in range(shape[0]):
        names = parts.get(expert, [])
        if len(names) != pieces:
            raise BadModel(
                where, f'the parts of expert {expert} of "{name}"', found=f"{len(names)} tensors", expected=f"{pieces}"
            )
        for piece, part in enumerate(names):
            _check(where, back[part], shapes[back[part]], each)
            value[expert, piece * each[0] : (piece + 1) * each[0]] = tensors.read(back[part]).to(device)
    return value


def _check(where: str, name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        raise BadModel(
            where, f'the shape of tensor "{name}"', found=list(found), expected=f"{list(expected)} by config"
        )


def _put(module: nn.Module, name: str, value: torch.Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(path), leaf, nn.Parameter(value, requires_grad=False))
