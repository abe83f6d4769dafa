"""From names of models to a fast target that is ready."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from inference_node.fast import dflash2, packing, reading
from inference_node.fast import drafter as drafters
from inference_node.fast import mtp as heads
from inference_node.fast import weights as fast_weights
from inference_node.fast import width as widths
from inference_node.fast.cycle import Runner
from inference_node.fast.dflash2 import SelectingDrafter
from inference_node.fast.drafter import BlockDrafter, DeviceDrafter
from inference_node.fast.forward import Model
from inference_node.fast.measure import costs
from inference_node.fast.mtp import MtpDrafter, MtpWeights
from inference_node.fast.pages import CacheShape, Pages, Table
from inference_node.fast.parts import Parts
from inference_node.fast.recurrent import ROLLBACKS, Recurrent
from inference_node.fast.sizes import NotForFast, Sizes, sizes
from inference_node.fast.target import FastTarget
from inference_node.fast.weights import Weights
from inference_node.kernels.plain.kv_write import PAGE, rope_table
from inference_node.models import files as model_files
from inference_node.models import rope as ropes
from inference_node.models import weights as model_weights
from inference_node.models.draft_weights import LoadedDrafter, load_drafter
from inference_node.models.errors import NodeError
from inference_node.models.files import ModelFiles, Told, untold
from inference_node.models.rope import Rope
from inference_node.speculate.loading import (
    DEFAULT_BLOCK,
    DTYPES,
    MTP_BLOCK,
    SHORT,
    context_of,
    holes,
    stop_ids,
    target_ids,
    usable_device,
)
from inference_node.speculate.propose import NgramDrafter
from inference_node.speculate.seam import CHUNK, Sampling, TargetFacts

log = logging.getLogger(__name__)

LOSSY = ("int8", "mxfp4")
SLICE = 2048
"""Prompt rows between two looks at whether the client is still there, on an accelerator."""

SPARE_PAGES = 32
"""Cache pages beside those of the live sequence and of the kept states: copies that are being written."""


@dataclass(frozen=True, slots=True)
class FastLoaded:
    """A target, and the files that its text side needs."""

    target: FastTarget
    files: ModelFiles

    @property
    def tokenizer(self) -> Any | None:
        """transformers' tokenizer with the model's own chat template, or None."""
        return self.files.tokenizer


def load_fast(
    model: str,
    draft: str = "none",
    *,
    device: str = "cpu",
    weights: str = "bfloat16",
    rollback: str = "fold",
    width: str = "off",
    context: int | None = None,
    block: int | None = None,
    prefix_bytes: int = 1 << 30,
    own_noise: bool = True,
    graphs: bool = True,
    cache: Path | None = None,
    told: Told = untold,
) -> FastLoaded:
    """Load a model with a drafter: the name of one, or none, ngram, mtp.

    weights: as for the reference, or int8 or mxfp4, which lose bits. prefix_bytes: of cache pages that states kept
    between turns may hold beside the live sequence. cache: folder of packed weights, by default the user's.
    Raises NotForFast where the reference could serve, else NodeError.
    """
    kind = weights if weights in LOSSY else "bf16"
    dtype = torch.bfloat16 if weights in LOSSY else DTYPES.get(SHORT.get(weights, weights))
    if dtype is None:
        raise NodeError(f'weights="{weights}"; the fast engine knows {", ".join([*DTYPES, *SHORT, *LOSSY])}.')
    if rollback not in ROLLBACKS:
        raise NodeError(f'rollback="{rollback}"; the fast engine knows {", ".join(ROLLBACKS)}.')
    where = usable_device(device)
    files = model_files.find(model, told)
    if files.gguf is not None:
        raise NotForFast(
            f"{files.gguf} is GGUF, whose blocks the fast engine's kernels do not read. Serve it with --engine "
            "reference, or give --model the safetensors of the same model (a directory or hub id); with --weights int8 "
            "they take the room of a Q8 file."
        )
    config = model_weights.text_config(files)
    shape = sizes(config)
    tokenizer = files.tokenizer
    ids = target_ids(files, config, tokenizer)
    loaded: LoadedDrafter | MtpWeights | None = None
    if draft == "mtp":
        loaded = heads.load(shape, reading.stored(files), files.name, dtype, where, told)
    elif draft not in ("none", "ngram"):
        loaded = load_drafter(model_files.find(draft, told), ids, dtype, where)
        drafters.check(loaded.config)
    trained = loaded.config.block if isinstance(loaded, LoadedDrafter) else None
    rows = block or trained or (MTP_BLOCK if draft == "mtp" else DEFAULT_BLOCK)
    if trained is not None and rows != trained:
        raise NodeError(f"block={rows}; the drafter's is {trained}, and it is trained for that.")
    made = _weights(shape, files, dtype, where, kind, cache or packing.default_folder(), told)
    facts = TargetFacts(
        name=files.name,
        family=config.model_type,
        engine="fast",
        device=str(where),
        weights=SHORT.get(weights, weights) if kind == "bf16" else kind,
        vocab=shape.vocab,
        known_ids=min(ids.known_ids, shape.vocab),
        context=context_of(config, context),
        block=rows,
        stop_ids=tuple(sorted(stop_ids(files, config, tokenizer))),
        drafter=loaded.config.kind if isinstance(loaded, LoadedDrafter) else draft,
        rollback=rollback if shape.recurrent_layers else "none",
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        weight_bytes=made.bytes,
        slice_rows=CHUNK if where.type == "cpu" else SLICE,
    )
    target = assemble(
        made, shape, rope_of(config, where, files.name), facts, loaded,
        width=width, prefix_bytes=prefix_bytes, own_noise=own_noise, graphs=graphs,
        missing=holes(tokenizer, facts.known_ids, where),
    )  # fmt: skip
    if draft == "ngram":
        target.host_drafter = NgramDrafter(rows)
    if where.type != "cpu":
        told("compiling kernels and capturing graphs", 0.0)
        warm(target)
    if width == "adaptive":
        told("measuring the cost of rows", 0.0)
        curve = costs(target.runner)
        target.runner.width.measured(curve)
        log.info(
            "a verify takes %s ms by rows, a draft %.2f ms",
            [round(1e3 * s, 2) for s in curve.verify],
            1e3 * curve.draft,
        )
        target.reset()
    told("ready", 1.0)
    return FastLoaded(target, files)


def warm(target: FastTarget) -> None:
    """Go every usual way once, so that the first request waits for no compiler and no capture."""
    line = [0] * (CHUNK + 3)
    for sampling in (Sampling(), Sampling(temperature=1.0, top_k=20, top_p=0.95)):
        for draft in (True, False):
            target.reset()
            target.prefill(line[:-1])
            target.begin(line, sampling, budget=2, draft=draft)
            target.cycle().read()
    target.reset()


def assemble(
    weights: Weights,
    shape: Sizes,
    rope: Rope,
    facts: TargetFacts,
    drafter: LoadedDrafter | MtpWeights | None = None,
    *,
    width: str = "off",
    prefix_bytes: int = 1 << 30,
    own_noise: bool = True,
    graphs: bool = True,
    missing: torch.Tensor | None = None,
    parts: Parts | None = None,
) -> FastTarget:
    """Put weights, drafter and memory together."""
    device, dtype = weights.embedding.device, weights.embedding.dtype
    with torch.inference_mode():
        positions = facts.context + 2 * facts.block
        parts = parts or Parts(device)
        angles = rope_table(rope.frequency, rope.scale, positions)
        model = Model(weights, shape, angles, block=facts.block, known_ids=facts.known_ids, parts=parts)
        own: DeviceDrafter | None = None
        pools = [CacheShape(shape.attention_layers, shape.kv_heads, shape.head_dim)]
        if isinstance(drafter, MtpWeights):
            own = MtpDrafter(drafter, model, facts.block)
            pools.append(MtpDrafter.cache_shape(shape))
        elif drafter is not None:
            given = (
                drafters.from_module(drafter), drafter.config, drafters.draft_rope(drafter, positions), model.bounds,
                weights.embedding, model.head_weight, parts,
            )  # fmt: skip
            second = drafter.config.kind == "dflash2"
            own = SelectingDrafter(dflash2.from_module(drafter), *given) if second else BlockDrafter(*given)
            pools.append(BlockDrafter.cache_shape(drafter.config))
        table = Table(_pages(pools, positions, prefix_bytes, dtype, device), _table(positions, device))
        runner = Runner(
            model,
            own,
            table,
            Recurrent(shape, facts.block, facts.rollback if facts.rollback != "none" else "fold", dtype, device),
            widths.width(width, facts.block, device),
            block=facts.block,
            positions=positions,
            holes=missing,
            own_noise=own_noise,
            graphs=graphs,
        )
        return FastTarget(runner, facts)


def _weights(
    shape: Sizes, files: ModelFiles, dtype: torch.dtype, device: torch.device, kind: str, cache: Path, told: Told
) -> Weights:
    """From the model's files; packed ones from where they were kept, once they were."""
    where = reading.stored(files)
    if kind == "bf16":
        return fast_weights.load(shape, where, files.name, dtype, device, kind, told)
    folder = packing.folder_for(cache, where, kind)
    if packing.find(folder):
        return packing.read(folder, shape.layers, fast_weights.load_embedding(shape, where, dtype, device), kind, told)
    log.warning("%s weights lose bits: texts are not those of the model as published", kind)
    made = fast_weights.load(shape, where, files.name, dtype, device, kind, told)
    packing.write(folder, made, told)
    return made


def rope_of(config: Any, device: torch.device, where: str) -> Rope:
    """The frequencies of the family's own rotary module."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        body: Any = AutoModelForCausalLM.from_config(config, attn_implementation="eager").model
    return ropes.from_module(type(body.rotary_emb), config, device, where)


def _pages(
    pools: list[CacheShape], positions: int, prefix_bytes: int, dtype: torch.dtype, device: torch.device
) -> Pages:
    each = sum(pool.layers * 2 * pool.kv_heads * PAGE * pool.dim for pool in pools) * dtype.itemsize
    live = -(-positions // PAGE)
    return Pages(pools, live + SPARE_PAGES + min(4 * live, prefix_bytes // max(1, each)), dtype, device)


def _table(positions: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(-(-positions // PAGE) + 1, dtype=torch.int32, device=device)
