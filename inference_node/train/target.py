"""The target as the trainer needs it: files, module, and what a drafter takes over from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from inference_node.models import files as model_files
from inference_node.models import weights as model_weights
from inference_node.models.draft_config import TargetIds
from inference_node.models.errors import NodeError
from inference_node.models.files import ModelFiles, Told, untold
from inference_node.models.target import TextModel
from inference_node.speculate import loading
from inference_node.train.export import TargetShape


@dataclass(frozen=True)
class OpenTarget:
    """A target's module on a device. Drafters are trained beside it and measured in front of it."""

    files: ModelFiles
    config: Any  # transformers', of the text part
    module: nn.Module
    ids: TargetIds
    shape: TargetShape
    device: torch.device
    stop_ids: tuple[int, ...]

    def text_model(self, block: int) -> TextModel:
        """The serving forward over the same weights, for blocks of so many rows."""
        return TextModel(self.module, self.config, block=block, known_ids=self.ids.known_ids, where=self.files.name)


def open_target(
    model: str,
    *,
    device: str = "cpu",
    weights: str = "fp32",
    mask_id: int | None = None,
    told: Told = untold,
    ends_only: bool = False,
) -> OpenTarget:
    """Load a target by name. mask_id: the id that stands for a token to be drafted; by default one that no text uses.

    ends_only: embedding, final norm and head, in host memory: what a trainer needs whose states come from a node.
    Raises NodeError.
    """
    dtype = loading.DTYPES.get(loading.SHORT.get(weights, weights))
    if dtype is None:
        raise NodeError(f'weights="{weights}"; training knows {", ".join([*loading.DTYPES, *loading.SHORT])}.')
    where = loading.usable_device(device)
    files = model_files.find(model, told)
    config = model_weights.text_config(files)
    tokenizer = files.tokenizer
    ids = loading.target_ids(files, config, tokenizer)
    shape = TargetShape.of(config, unused_id(ids, files.name) if mask_id is None else mask_id)
    if ends_only:
        module = model_weights.load_ends(files, config, dtype, torch.device("cpu"))
        stops = tuple(sorted(loading.stop_ids(files, config, tokenizer)))
        return OpenTarget(files, config, module, ids, shape, where, stops)
    module, _ = model_weights.load_module(files, config, dtype, where, told)
    body: Any = module.model
    body.rotary_emb = type(body.rotary_emb)(config=config).to(where)  # its frequencies are in no file
    stops = tuple(sorted(loading.stop_ids(files, config, tokenizer)))
    return OpenTarget(files, config, module, ids, shape, where, stops)


def usual_device(name: str) -> str:
    """The one that is named, else the first accelerator, else the CPU."""
    return name or ("cuda" if torch.cuda.is_available() else "cpu")


def unused_id(ids: TargetIds, where: str) -> int:
    """An id that no text has: a row of the embedding past the tokenizer's ids, else an added token of no known use."""
    if ids.known_ids < ids.vocab:
        return ids.known_ids
    free = sorted(ids.added - set(ids.taken))
    if not free:
        raise NodeError(f"{where}: every id is used by text. Name one with --mask-id that your texts do not have.")
    return free[-1]
