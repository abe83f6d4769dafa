"""The drafter that goes out with the node: what it says of itself is so, and its target takes what it drafts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from inference_node.__main__ import DEMO_DRAFT, DEMO_MODEL
from inference_node.lab.pairs import MOST_BYTES
from inference_node.speculate.seam import Target
from inference_node.train import evaluate, judge, sample
from inference_node.train.evaluate import Decoded
from inference_node.train.sample import Sample
from inference_node.train.target import OpenTarget, open_target

SETS = ("domain", "open", "questions")


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEMO_DRAFT / "provenance.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def target() -> Iterator[OpenTarget]:
    with torch.inference_mode(False):
        yield open_target(DEMO_MODEL, device="cpu", weights="fp32")


def held(name: str) -> list[Sample]:
    return sample.read(DEMO_DRAFT / f"held-{name}.jsonl")


def test_provenance_is_of_these_weights_and_of_these_texts(told: dict[str, Any]) -> None:
    weights = (DEMO_DRAFT / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == told["weights_sha256"] and len(weights) <= MOST_BYTES
    assert {name: sample.digest(held(name)) for name in SETS} == told["held_sha256"]
    assert told["arm"]["seed"] == 0 and told["command"].startswith("python -m inference_node.lab.small_pair ")
    assert [line["step"] for line in told["curve"]][-1] == told["arm"]["steps"]
    assert len(told["commit"]) == 40 and told["samples_sha256"]


def test_its_figures_are_those_of_the_recorded_page(told: dict[str, Any]) -> None:
    page = Path(__file__).parents[3] / "docs" / "figures" / "small-pair.json"
    figures = json.loads(page.read_text(encoding="utf-8"))["figures"]
    for name in SETS:
        assert figures[f"prompts_{name}"] == len(held(name)) >= 128
        assert figures[f"tau_{name}"] == told["judged"][name]["value"]


@pytest.mark.slow
def test_its_target_takes_what_it_drafts_and_says_the_same_without_it(target: OpenTarget) -> None:
    served = evaluate.pair(target, judge.learner_from(str(DEMO_DRAFT), target))
    drafted = {name: [answered(served, text) for text in held(name)[:3]] for name in SETS}
    for name, least in (("domain", 2.8), ("open", 1.2), ("questions", 1.2)):  # three texts are few
        assert evaluate.tau(drafted[name]) > least, f"{name}: a drafter that does not fit has 1.0"
        assert answered(served, held(name)[0], draft=False).tokens == drafted[name][0].tokens


def answered(served: Target, text: Sample, *, draft: bool = True) -> Decoded:
    return evaluate.decode(served, text.prompt, most=32, draft=draft)
