"""Fast targets of real shapes with random weights, made on the device: for benches, where no files of 70 GB are.

Weights are drawn in place, so the host holds nothing. Every sublayer adds about as much as it reads. Random routers
wake other numbers of experts than text does, so benches impose routing; random drafts are never right, so they impose
acceptance.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from inference_node.fast import mtp
from inference_node.fast.loading import assemble, rope_of
from inference_node.fast.mtp import MtpWeights
from inference_node.fast.sizes import Sizes, sizes
from inference_node.fast.target import FastTarget
from inference_node.fast.weights import DeltaPart, Weights, empty_layer, finish_layer, packed
from inference_node.kernels.plain.packed import Weight, pack_int8
from inference_node.lab.fabricate import drafter_config, target_config
from inference_node.lab.shapes import Shape, draft_shape
from inference_node.models import draft_config
from inference_node.models import weights as model_weights
from inference_node.models.draft_weights import LoadedDrafter
from inference_node.models.drafter import DFlash
from inference_node.models.files import find
from inference_node.speculate.seam import TargetFacts


def random_target(
    shape: Shape,
    device: torch.device,
    *,
    family: str = "qwen3_5_moe",
    context: int,
    block: int = 16,
    rollback: str = "fold",
    graphs: bool = True,
    dtype: torch.dtype = torch.bfloat16,
    weights: Weights | None = None,
    drafter: str = "dflash",
) -> FastTarget:
    """With a drafter of the released shape: dflash, dflash2 or mtp. weights: of an earlier one, packed or not."""
    config = text_config(family, shape)
    size = sizes(config)
    made = weights or random_weights(size, dtype, device)
    facts = TargetFacts(
        name=f"random {family}", family=size.family, engine="fast", device=str(device), weights=made.kind,
        vocab=size.vocab, known_ids=size.vocab - 8, context=context, block=block, stop_ids=(), drafter=drafter,
        rollback=rollback, weight_bytes=made.bytes,
    )  # fmt: skip
    drafts: LoadedDrafter | MtpWeights
    if drafter == "mtp":
        drafts = random_head(size, dtype, device)
    else:
        drafts = random_drafter(shape, block, device, dtype, "june" if drafter == "dflash" else drafter)
    return assemble(made, size, rope_of(config, device, facts.name), facts, drafts, prefix_bytes=0, graphs=graphs)


def text_config(family: str, shape: Shape) -> Any:
    """transformers' config of a shape."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(target_config(family, shape, [0])), encoding="utf-8")
        return model_weights.text_config(find(folder))


def random_weights(size: Sizes, dtype: torch.dtype, device: torch.device) -> Weights:
    """Drawn layer by layer."""
    torch.manual_seed(0)
    embedding = torch.empty(size.vocab, size.hidden, dtype=dtype, device=device).normal_()
    head = torch.empty_like(embedding).normal_(std=4 * size.hidden**-0.5)
    mixers, mlps = [], []
    for layer in range(size.layers):
        mixer, mlp = empty_layer(size, layer, dtype, device)
        _draw(mixer, mlp)
        finish_layer(size, mixer, mlp)
        mixers.append(mixer)
        mlps.append(mlp)
    return Weights(embedding, Weight(head), torch.ones(size.hidden, device=device), mixers, mlps)


def in_int8(weights: Weights) -> Weights:
    """The same weights packed; the embedding is shared."""
    return Weights(
        weights.embedding, pack_int8(weights.head.data), weights.norm,
        [packed(part, "int8") for part in weights.mixers], [packed(part, "int8") for part in weights.mlps], "int8",
    )  # fmt: skip


def random_head(size: Sizes, dtype: torch.dtype, device: torch.device) -> MtpWeights:
    """The model's own multi-token head."""
    made = mtp.empty(size, dtype, device)
    _draw(made.mixer, made.mlp)
    made.fc.data.normal_(std=made.fc.shape[-1] ** -0.5)
    for norm in (made.embedding_norm, made.hidden_norm, made.norm):
        norm.normal_(std=0.1)
    mtp.finish(size, made)
    return made


def random_drafter(
    shape: Shape, block: int, device: torch.device, dtype: torch.dtype, revision: str = "june"
) -> LoadedDrafter:
    """Of a released file's form."""
    form = draft_shape(revision, shape, block)
    config = draft_config.read(drafter_config(revision, shape, form, shape.vocab - 4, "random"), "random drafter")
    with torch.device("meta"):
        module = DFlash(config)
    module = module.to_empty(device=device).to(dtype)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(False)
        if "norm" in name:
            parameter.normal_(mean=1.0, std=0.1)
        else:
            parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return LoadedDrafter(module, config.rope(device, "random drafter"), None, None)


def _draw(mixer: Any, mlp: Any) -> None:
    """One layer, as files hold it."""
    for weight in _matrices(mixer, mlp):
        weight.normal_(std=weight.shape[-1] ** -0.5)
    mixer.norm.normal_(std=0.1)
    mlp.norm.normal_(std=0.1)
    if isinstance(mixer, DeltaPart):
        mixer.rule.conv.normal_(std=0.5)
        mixer.rule.rate.uniform_(0.01, 0.3).log_()
        mixer.rule.shift.normal_(std=0.5)
        mixer.out_norm.normal_(mean=1.0, std=0.1)
    else:
        mixer.q_norm.normal_(std=0.1)
        mixer.k_norm.normal_(std=0.1)


def _matrices(mixer: Any, mlp: Any) -> Iterator[torch.Tensor]:
    for part in (mixer, mlp):
        for name in ("enter", "out", "up", "down"):
            if hasattr(part, name):
                yield getattr(part, name).data
    if hasattr(mlp, "router"):
        mlp.router.normal_(std=4 * mlp.router.shape[-1] ** -0.5)
