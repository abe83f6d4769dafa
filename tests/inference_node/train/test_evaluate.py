"""Judging by the text: over the same states that training and serving have."""

from __future__ import annotations

import torch

from inference_node.train import arm as arms
from inference_node.train import evaluate
from inference_node.train.features import States
from inference_node.train.session import Session
from tests.inference_node.train.conftest import random_samples


def test_the_targets_states_are_not_computed_in_the_drafters_precision(opened, monkeypatch) -> None:
    """A target in fp32 or fp16 would give other states here than those it was trained on, and those it is served."""
    arm = arms.made({"block": 4, "rows": 64, "anchors": 8, "taps": 2, "layers": 1})
    session = Session.over(opened("llama"), arm, random_samples((30, 20)))
    inner, seen = session.source.states, []

    def states(samples) -> list[States]:
        seen.append(torch.is_autocast_enabled("cpu"))
        return inner(samples)

    monkeypatch.setattr(session.source, "states", states)
    monkeypatch.setattr(evaluate, "precision", lambda device: torch.autocast("cpu", torch.bfloat16))
    found = evaluate.forced(session.learner, session.source, session.samples)
    assert seen == [False] and found.blocks > 0


def test_whole_blocks_are_counted_until_there_are_enough(opened) -> None:
    arm = arms.made({"block": 4, "rows": 64, "anchors": 8, "taps": 2, "layers": 1})
    session = Session.over(opened("llama"), arm, random_samples((30,) * 6))
    few = evaluate.forced(session.learner, session.source, session.samples, blocks=1).blocks
    assert 0 < few <= 8 < evaluate.forced(session.learner, session.source, session.samples).blocks <= 24
