"""Packed weights kept on disk, so that a lossy model is packed once and not at every start.

One file per layer and one for the head, in the safetensors format, in a folder named by what went in: the model's files
with their sizes and times, and the kind. The folder counts once `complete` is in it. A disk that is full is no reason
not to serve: the next start packs again.

Checked by: tests/inference_node/fast/test_packing.py
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from inference_node.fast import reading
from inference_node.fast.reading import Stored
from inference_node.fast.weights import AttentionPart, DeltaPart, DensePart, MixturePart, Weights
from inference_node.kernels.plain.gated_delta_step import DeltaWeights
from inference_node.kernels.plain.packed import Weight
from inference_node.models.files import Told, untold

log = logging.getLogger(__name__)

VERSION = 1
PARTS: dict[str, Any] = {part.__name__: part for part in (DeltaPart, AttentionPart, MixturePart, DensePart)}
INSIDE = {"rule": DeltaWeights, "enter": Weight, "out": Weight, "up": Weight, "down": Weight}


def default_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lamplighter-node" / "packed"


def folder_for(under: Path, where: Mapping[str, Stored], kind: str) -> Path:
    """Named by the files' paths, sizes and times: another download is another folder."""
    told = hashlib.sha256(f"{VERSION} {kind}".encode())
    for file in sorted({stored.file.resolve() for stored in where.values()}):
        status = file.stat()
        told.update(f"{file} {status.st_size} {status.st_mtime_ns}".encode())
    return under / told.hexdigest()[:24]


def find(folder: Path) -> bool:
    return (folder / "complete").is_file()


def write(folder: Path, weights: Weights, told: Told = untold) -> None:
    """Whatever goes wrong leaves nothing behind, and is told in the log only."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        layers = list(zip(weights.mixers, weights.mlps, strict=True))
        for layer, (mixer, mlp) in enumerate(layers):
            _save(folder / _name(layer), {**_flat(mixer, "mixer"), **_flat(mlp, "mlp")})
            told(f"keeping {weights.kind} weights on disk", (layer + 1) / len(layers))
        _save(folder / "top.safetensors", {"norm": weights.norm, **_flat(weights.head, "head")})
        (folder / "complete").touch()
    except OSError as error:
        log.warning("packed weights are not kept: %s cannot be written (%s)", folder, error)
        shutil.rmtree(folder, ignore_errors=True)


def read(folder: Path, layers: int, embedding: torch.Tensor, kind: str, told: Told = untold) -> Weights:
    """What `write` wrote, on the embedding's device. The embedding itself is never packed."""
    device = embedding.device
    mixers: list[Any] = []
    mlps: list[Any] = []
    for layer in range(layers):
        tensors = _load(folder / _name(layer), device)
        mixers.append(_part(tensors, "mixer"))
        mlps.append(_part(tensors, "mlp"))
        told(f"loading {kind} weights", (layer + 1) / layers)
    top = _load(folder / "top.safetensors", device)
    head = Weight(top["head.data"], top.get("head.scale"))
    return Weights(embedding, head, top["norm"], mixers, mlps, kind)


def _name(layer: int) -> str:
    return f"layer-{layer:03d}.safetensors"


def _flat(part: Any, at: str) -> dict[str, torch.Tensor]:
    """Every tensor of a dataclass of dataclasses, by its path; the class of a layer's half is part of it."""
    found: dict[str, torch.Tensor] = {}
    start = f"{at}.{type(part).__name__}" if type(part).__name__ in PARTS else at
    for field in fields(part):
        value = getattr(part, field.name)
        if is_dataclass(value):
            found |= _flat(value, f"{start}.{field.name}")
        elif value is not None:
            found[f"{start}.{field.name}"] = value
    return found


def _part(tensors: Mapping[str, torch.Tensor], at: str) -> Any:
    name = next(name for name in tensors if name.startswith(f"{at}.")).split(".")[1]
    given: dict[str, Any] = {}
    for field in fields(PARTS[name]):
        path = f"{at}.{name}.{field.name}"
        inner = INSIDE.get(field.name)
        if inner is None:
            given[field.name] = tensors[path]
        else:
            given[field.name] = inner(**{
                part.name: tensors[f"{path}.{part.name}"]
                for part in fields(inner)
                if f"{path}.{part.name}" in tensors
            })  # fmt: skip
    return PARTS[name](**given)


def _save(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, path)


def _load(path: Path, device: torch.device) -> dict[str, torch.Tensor]:
    where = reading.header(path)
    into = {name: torch.empty(what.shape, dtype=what.dtype, device=device) for name, what in where.items()}
    reading.read(into, where)
    return into
