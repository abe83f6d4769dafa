"""From a drafter's files to a DFlash module with its weights, or a refusal that names what is wrong."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from inference_node.models import draft_config
from inference_node.models.draft_config import DraftConfig, TargetIds
from inference_node.models.drafter import DFlash
from inference_node.models.errors import BadModel
from inference_node.models.files import ModelFiles, Tensors
from inference_node.models.rope import Rope

BORROWED = ("embed_tokens.weight", "lm_head.weight", "t2d", "d2t", "verifier_lm_head.weight", "verifier_norm.weight")
"""What Speculators may store besides: the target's own tensors, and maps between vocabularies."""


@dataclass(frozen=True, slots=True)
class LoadedDrafter:
    module: DFlash
    rope: Rope
    head: torch.Tensor | None  # fp32, its own over a smaller vocabulary; None: the target's
    head_ids: torch.Tensor | None  # the target's id of each of its head's rows

    @property
    def config(self) -> DraftConfig:
        return self.module.config


def load_drafter(files: ModelFiles, target: TargetIds, dtype: torch.dtype, device: torch.device) -> LoadedDrafter:
    """Read, check against the target, and put on the device."""
    where = files.folder / "config.json"
    config = draft_config.read(files.config, where)
    draft_config.check(config, target, where)
    tensors = files.tensors()
    with torch.device("meta"):
        module = DFlash(config)
    _fill(module, tensors, files.name, dtype, device)
    head, ids = _own_head(config, tensors, files.name, device)
    return LoadedDrafter(module, config.rope(device, where), head, ids)


def _fill(module: DFlash, tensors: Tensors, where: str, dtype: torch.dtype, device: torch.device) -> None:
    shapes = tensors.shapes()
    # One dialect writes the codebooks with ".weight", as the embeddings they are in its code.
    here = {name.removesuffix(".weight") if "_codebook" in name else name: name for name in shapes}
    wanted = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    for name, shape in wanted.items():
        if name not in here:
            raise BadModel(where, f'tensor "{name}"', found="missing", expected=f"shape {list(shape)}")
        found = shapes[here[name]]
        if found != shape:
            raise BadModel(
                where, f'the shape of tensor "{name}"', found=list(found), expected=f"{list(shape)} by config"
            )
        path, _, leaf = name.rpartition(".")
        value = tensors.read(here[name]).to(device=device, dtype=dtype, copy=True)
        setattr(module.get_submodule(path), leaf, nn.Parameter(value, requires_grad=False))
    left = sorted(set(here) - set(wanted) - set(BORROWED))
    if left:
        raise BadModel(
            where,
            f'tensor "{left[0]}"',
            found=f"present, and {len(left) - 1} more that this drafter has no place for",
            expected=f"only the {len(wanted)} tensors of a {module.config.kind} drafter",
        )
    module.eval()


def _own_head(
    config: DraftConfig, tensors: Tensors, where: str, device: torch.device
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """A reduced vocabulary: its head, and the target's id of each row. d2t holds the distance from row to id."""
    if config.draft_vocab == config.vocab:
        return None, None
    shapes = tensors.shapes()
    for name, shape in (("lm_head.weight", (config.draft_vocab, config.hidden)), ("d2t", (config.draft_vocab,))):
        found = shapes.get(name)
        if found != shape:
            raise BadModel(
                where, f'tensor "{name}"', found="missing" if found is None else list(found),
                expected=f"shape {list(shape)}, because draft_vocab_size is below vocab_size",
            )  # fmt: skip
    ids = torch.arange(config.draft_vocab) + tensors.read("d2t").to(torch.int64)
    if int(ids.min()) < 0 or int(ids.max()) >= config.vocab:
        raise BadModel(
            where, 'tensor "d2t"', found=f"ids from {int(ids.min())} to {int(ids.max())}",
            expected=f"ids from 0 to {config.vocab - 1}",
        )  # fmt: skip
    return tensors.read("lm_head.weight").to(device=device, dtype=torch.float32), ids.to(device)
