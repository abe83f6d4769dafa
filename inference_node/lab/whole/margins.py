"""How far the fast engine's choices are from fp32, teacher-forced, at a real model's widths."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import torch

from inference_node.fast.target import FastTarget
from inference_node.fast.weights import Weights
from inference_node.lab.fast_model import random_target, text_config
from inference_node.lab.shapes import Shape
from inference_node.lab.whole.live import Bench, tokens
from inference_node.lab.whole.peers import lend

LAYERS, SEQUENCE, HEAD = 8, 2048, 64


def margins(bench: Bench) -> None:
    """The first layers of the target and its head (fp32 of all does not fit beside it): transformers in fp32 over
    random texts; ours, and transformers in the target's type, over the same tokens. A margin is how much higher fp32's
    best logit is than that of the id chosen; a disagreement is a margin above 0."""
    shape = replace(bench.shape, layers=min(LAYERS, bench.shape.layers))
    target = _first_layers(bench, shape)
    exact = _theirs(bench, target, shape, "eager")
    rounded = _theirs(bench, target, shape, "grouped_mm" if bench.device.type == "cuda" else "eager")
    exact.float()
    asked = 20_000 if bench.device.type == "cuda" else 64
    length = min(SEQUENCE, asked) + HEAD
    counted, found = 0, {"fast": Found(), "transformers": Found()}
    for seed in range(-(-asked // (length - HEAD))):
        line = tokens(bench, length, 100 + seed)
        ids = torch.tensor([line], device=bench.device)
        known = target.facts.known_ids
        with torch.backends.cudnn.flags(enabled=False):  # whose convolutions would round to TF32
            logits = exact(ids, use_cache=False).logits[0, HEAD:, :known].float()
        theirs = rounded(ids, use_cache=False).logits[0, HEAD:, :known].argmax(-1)
        found["transformers"].add(logits, theirs)
        found["fast"].add(logits, _ours(target, line))
        counted += length - HEAD
    target.close()
    bench.tell(margin_tokens=counted, margin_layers=shape.layers)
    for who, each in found.items():
        bench.tell(**{f"{who}_disagreement": each.differing / counted, f"{who}_worst_margin": each.worst})
    del exact, rounded
    gc.collect()
    if bench.device.type == "cuda":
        torch.cuda.empty_cache()


class Found:
    """Of one kind of arithmetic."""

    def __init__(self) -> None:
        self.differing, self.worst = 0, 0.0

    def add(self, exact: torch.Tensor, chosen: torch.Tensor) -> None:
        margin = exact.max(-1).values - exact.gather(-1, chosen[:, None].to(torch.int64))[:, 0]
        self.differing += int((margin > 0).sum())
        self.worst = max(self.worst, float(margin.max()))


def _first_layers(bench: Bench, shape: Shape) -> FastTarget:
    whole, n = bench.runner.model.weights, shape.layers
    few = Weights(whole.embedding, whole.head, whole.norm, whole.mixers[:n], whole.mlps[:n], whole.kind)
    return random_target(
        shape, bench.device, context=SEQUENCE + 2 * HEAD, block=bench.live.facts.block, weights=few,
        dtype=bench.runner.model.dtype, drafter="mtp",
    )  # fmt: skip


def _theirs(bench: Bench, target: FastTarget, shape: Shape, experts: str) -> Any:
    from transformers import AutoModelForCausalLM

    config = text_config("qwen3_5_moe", shape)
    config._experts_implementation = experts
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config, dtype=target.runner.model.dtype)
    lend(target.runner.model, module)
    return module


def _ours(target: FastTarget, line: list[int]) -> torch.Tensor:
    """The best id of every row from HEAD on, read in whole blocks."""
    target.reset()
    target.prefill(line[:HEAD])
    block, chosen = target.facts.block, []
    for at in range(HEAD, len(line), block):
        rows = line[at : at + block]
        target.runner.table.open(at, at + 2 * block)
        chosen.append(target.runner.probe(rows, at, len(rows))[: len(rows)].argmax(-1).clone())
    return torch.cat(chosen)
