"""From names of models to a target that is ready: the one place that puts files, models and drafters together."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch

from inference_node.models import files as model_files
from inference_node.models import weights as model_weights
from inference_node.models.draft_config import TargetIds
from inference_node.models.draft_weights import load_drafter
from inference_node.models.errors import BadModel, NodeError
from inference_node.models.files import ModelFiles, Told, untold
from inference_node.models.mtp import MultiToken
from inference_node.models.target import TextModel
from inference_node.speculate.dflash import DFlashDrafter
from inference_node.speculate.mtp import MtpDrafter
from inference_node.speculate.propose import Drafter, NgramDrafter, NoDrafter
from inference_node.speculate.reference import ReferenceTarget, make_target
from inference_node.speculate.seam import TargetFacts

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
DEFAULT_BLOCK = 16  # rows of a verify when no drafter's file says otherwise
MTP_BLOCK = 4  # its head is trained for one step ahead; each further draft leans on the one before


@dataclass(frozen=True, slots=True)
class Loaded:
    """A target, and the files that its text side needs."""

    target: ReferenceTarget
    files: ModelFiles

    @property
    def tokenizer(self) -> Any | None:
        """transformers' tokenizer with the model's own chat template, or None."""
        return self.files.tokenizer


def load_reference(
    model: str,
    draft: str = "none",
    *,
    device: str = "cpu",
    weights: str = "bfloat16",
    rollback: str = "replay",
    context: int | None = None,
    block: int | None = None,
    own_noise: bool = True,
    told: Told = untold,
) -> Loaded:
    """Load a model with a drafter: the name of one, or none, ngram, mtp.

    weights: float32, bfloat16 or float16 (or fp32, bf16, fp16). context: positions, by default the model's own limit.
    block: rows of a verify, by default the drafter's; 1 is the fastest plain decode, whose bits differ from a block's.
    own_noise: sampled drafts use the noise of their position. Raises NodeError.
    """
    dtype = DTYPES.get(SHORT.get(weights, weights))
    if dtype is None:
        raise NodeError(f'weights="{weights}"; the reference knows {", ".join([*DTYPES, *SHORT])}.')
    where = usable_device(device)
    files = model_files.find(model, told)
    config = model_weights.text_config(files)
    tokenizer = files.tokenizer
    ids = target_ids(files, config, tokenizer)
    drafter_files = None if draft in ("none", "ngram", "mtp") else model_files.find(draft, told)
    drafter = None if drafter_files is None else load_drafter(drafter_files, ids, dtype, where)
    rows = block or (drafter.config.block if drafter else MTP_BLOCK if draft == "mtp" else DEFAULT_BLOCK)
    if drafter is not None and rows != drafter.config.block:
        raise NodeError(f"block={rows}; the drafter's is {drafter.config.block}, and it is trained for that.")
    module, mtp = model_weights.load_module(files, config, dtype, where, told)
    text = TextModel(module, config, block=rows, known_ids=ids.known_ids, where=files.name)
    if drafter is not None:
        drafts: Drafter = DFlashDrafter(drafter, text)
    elif draft == "mtp":
        drafts = MtpDrafter(MultiToken(mtp, text, files.name), rows)
    elif draft == "ngram":
        drafts = NgramDrafter(rows)
    else:
        drafts = NoDrafter(rows)
    facts = TargetFacts(
        name=files.name,
        family=config.model_type,
        engine="reference",
        device=str(where),
        weights=SHORT.get(weights, weights),
        vocab=text.vocab,
        known_ids=text.known_ids,
        context=context_of(config, context),
        block=rows,
        stop_ids=tuple(sorted(stop_ids(files, config, tokenizer))),
        drafter=drafts.name,
        rollback=rollback if text.deltas else "none",
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        weight_bytes=text.weight_bytes,
    )
    told("ready", 1.0)
    return Loaded(
        make_target(text, drafts, facts, own_noise=own_noise, holes=holes(tokenizer, text.known_ids, text.device)),
        files,
    )


def stop_ids(files: ModelFiles, config: Any, tokenizer: Any | None) -> set[int]:
    """End-of-turn ids, from the generation config, the config and the tokenizer together."""
    found: set[int] = set()
    for value in (
        files.generation_config.get("eos_token_id"),
        getattr(config, "eos_token_id", None),
        getattr(tokenizer, "eos_token_id", None),
    ):
        if value is not None:
            found |= {value} if isinstance(value, int) else set(value)
    return found


def target_ids(files: ModelFiles, config: Any, tokenizer: Any | None) -> TargetIds:
    """What a drafter is checked against."""
    taken = {token: "an end-of-turn token" for token in stop_ids(files, config, tokenizer)}
    pad = getattr(config, "pad_token_id", None)
    if pad is not None:
        taken.setdefault(pad, "the pad token")
    added: frozenset[int] = frozenset()
    known = config.vocab_size
    if tokenizer is not None:
        known = max(tokenizer.get_vocab().values()) + 1
        if tokenizer.pad_token_id is not None:
            taken.setdefault(tokenizer.pad_token_id, "the pad token")
        names = {int(token): str(added) for token, added in tokenizer.added_tokens_decoder.items()}
        template = tokenizer.chat_template or ""
        for token, name in names.items():
            if name in str(template):
                taken.setdefault(token, f"{name} of the chat template")
        added = frozenset(names)
    if known > config.vocab_size:
        raise BadModel(
            files.folder, "tokenizer", found=f"ids up to {known - 1}",
            expected=f"ids below vocab_size={config.vocab_size}",
        )  # fmt: skip
    return TargetIds(config.num_hidden_layers, config.hidden_size, config.vocab_size, known, taken, added)


def holes(tokenizer: Any | None, ids: int, device: torch.device) -> torch.Tensor | None:
    """Bool [ids], true for ids that no tokenizer entry has; None where there are none."""
    if tokenizer is None:
        return None
    known = set(tokenizer.get_vocab().values())
    missing = [token for token in range(ids) if token not in known]
    if not missing:
        return None
    found = torch.zeros(ids, dtype=torch.bool, device=device)
    found[missing] = True
    return found


def context_of(config: Any, asked: int | None) -> int:
    """Positions a sequence may have."""
    most = int(config.max_position_embeddings)
    if asked is not None and not 1 <= asked <= most:
        raise NodeError(f"context={asked}; this model's positions end at {most}.")
    return asked or most


def usable_device(name: str) -> torch.device:
    """Raises NodeError when nothing can be put on it."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise NodeError(f'device="{name}" cannot be used here: {str(error).splitlines()[0]}') from error
    return device
