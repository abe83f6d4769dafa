"""Two processes in two network namespaces: the cable is pulled and nothing is lost or seen twice."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference_node.lab import two_boxes
from inference_node.models.errors import NodeError
from inference_node.train import sample as samples

KEYS = {"block": 4, "rows": 128, "anchors": 8, "taps": two_boxes.TAPS, "steps": 12, "layers": 1, "intermediate": 64}


def test_a_pulled_cable_changes_nothing_and_a_wrong_model_gets_nothing(fabricated, tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("two boxes need root and ip (apt-get install iproute2)")
    model = fabricated("qwen3").target
    other = tmp_path / "other"
    other.mkdir()
    for file in model.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    weights = load_file(other / "model.safetensors")
    weights["model.layers.2.mlp.up_proj.weight"] *= 1.5
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    samples.write(tmp_path / "texts.jsonl", two_boxes.texts_of(30, 60))
    made = two_boxes.Boxes()
    try:
        made.make()
    except NodeError as error:
        if "Operation not permitted" not in str(error):
            raise
        pytest.skip(str(error))
    try:
        made.limit(20)
        with two_boxes.serving(made, model):
            told = two_boxes.cut_and_mended(made, tmp_path, model, KEYS, away_s=3.0)
            assert told["weights_equal"] and told["texts_equal"] and told["steps_once"], told
            assert any("does not answer" in one for one in told["said"]), told
            with pytest.raises(NodeError, match="fingerprint"):
                two_boxes.heard(two_boxes.training(made, tmp_path, "wrong", model=other, keys=KEYS))
    finally:
        made.remove()
    assert bool(torch.load(tmp_path / "cut" / "weights.pt").isfinite().all())
