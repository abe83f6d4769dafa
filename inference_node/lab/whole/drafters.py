"""The other drafters, with random weights: what they draft, that texts stay the same, and what they cost."""

from __future__ import annotations

import copy
from typing import Any

import torch

from inference_node.fast.parts import Parts
from inference_node.lab.whole import bits, passes
from inference_node.lab.whole.live import Bench, drafted, impose, like, stand_at, tokens
from inference_node.speculate.loading import MTP_BLOCK
from inference_node.speculate.seam import Sampling

TAUS = {"mtp": 2.8, "dflash2": 7.35}
"""Imposed: of three drafts that are right at 0.77 each; and that which DFlash is measured with."""

PLACES = 12
"""Where drafts in kernels are compared with those of their twins."""


def drafters(bench: Bench) -> None:
    whole = bench.live
    for kind, tau in TAUS.items():
        block = MTP_BLOCK if kind == "mtp" else whole.facts.block
        bench.target = like(bench, "fold", drafter=kind, block=block)
        try:
            twins(bench, f"{kind}_")
            bits.same_text(bench, bench.live, f"{kind}_")
            passes.draft(bench, f"{kind}_")
            stand_at(bench, bench.contexts[0])
            impose(bench, block, 47 if block > MTP_BLOCK else 24)
            said, cycles, seconds = drafted(bench, bench.contexts[0], tau)
            bench.tell(**{f"{kind}_tok_s": said / seconds, f"{kind}_tau": said / cycles})
        finally:
            bench.target = whole


def twins(bench: Bench, name: str) -> None:
    """Drafts of the kernels against those of their twins on this device, from the same states. One that differs is a
    near tie that rounding decided, and what follows it differs too: so first drafts count, and how sure both are."""
    target, runner = bench.live, bench.runner
    own = runner.drafter
    assert own is not None
    other = in_plain_torch(own)
    s, differing, worst = runner.shared, 0, 0.0
    line = tokens(bench, 80 + PLACES * 9, 4)
    for place in range(PLACES):
        committed = line[: 80 + place * 9]
        target.reset()
        target.prefill(committed[:-1])
        target.begin(committed, Sampling(temperature=1.0, seed=place), budget=runner.block + 1)
        found: list[tuple[int, float]] = []
        for drafter in (own, other):
            s.block[1:] = runner.mask
            drafter.run(s, runner.table, runner.model.sampling, own_noise=True)
            found.append((int(s.block[1]), float(s.confidence[0])))
        if found[0][0] == found[1][0]:
            worst = max(worst, abs(found[0][1] - found[1][1]))
        else:
            differing += 1
    bench.tell(**{f"{name}first_drafts": PLACES, f"{name}first_drafts_differing": differing,
                  f"{name}worst_confidence_gap": worst})  # fmt: skip


def in_plain_torch(drafter: Any) -> Any:
    """The same weights, memory and rooms, with the twins of the kernels."""
    other = copy.copy(drafter)
    other.parts = Parts(torch.device("cpu"), plain=True)
    if hasattr(other, "layer"):  # a head runs the target's forward
        other.layer = copy.copy(other.layer)
        other.layer.parts = other.parts
    return other
