"""Lossy weights: packed once, kept on disk, and called what they are."""

import logging
from pathlib import Path

import pytest
import torch

from inference_node.fast import packing
from inference_node.fast.loading import load_fast
from inference_node.kernels.plain.packed import unpack
from inference_node.speculate.seam import Sampling
from tests.inference_node.helpers import generate, prompt


@pytest.mark.parametrize("kind", ["int8", "mxfp4"])
def test_packed_weights_are_read_back_as_they_were_packed(fabricated, tmp_path, caplog, kind):
    pair = fabricated("qwen3_5_moe")
    with caplog.at_level(logging.WARNING):
        first = load_fast(str(pair.target), weights=kind, block=8, cache=tmp_path, prefix_bytes=0).target
    assert f"{kind} weights lose bits" in caplog.text
    assert first.facts.weights == kind
    caplog.clear()
    again = load_fast(str(pair.target), weights=kind, block=8, cache=tmp_path, prefix_bytes=0).target
    assert not caplog.text, "nothing is packed the second time"
    one, other = first.runner.model.weights, again.runner.model.weights
    for part, same in zip((*one.mixers, *one.mlps), (*other.mixers, *other.mlps), strict=True):
        left, right = packing._flat(part, "x"), packing._flat(same, "x")
        assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
    assert torch.equal(one.head.data, other.head.data) and one.head.kind == ("int8" if kind == "int8" else "bf16")
    assert one.mlps[0].up.kind == kind and one.mixers[0].enter.kind == ("int8" if kind == "int8" else "bf16")
    sampling = Sampling(temperature=0.8, seed=1)
    assert generate(again, prompt(20), sampling, 8) == generate(first, prompt(20), sampling, 8)


def test_int8_is_near_what_was_packed_and_smaller(fabricated, fast, tmp_path):
    pair = fabricated("qwen3_5_moe")
    packed = load_fast(str(pair.target), weights="int8", block=8, cache=tmp_path, prefix_bytes=0).target
    whole = fast("qwen3_5_moe", "none", "bf16").target
    for less, true in zip(packed.runner.model.weights.mlps, whole.runner.model.weights.mlps, strict=True):
        apart = (unpack(less.up) - true.up.data.to(torch.float32)).abs().amax(-1)
        assert bool((apart <= true.up.data.to(torch.float32).abs().amax(-1) / 254 + 1e-6).all())
    assert packed.facts.weight_bytes < 0.7 * whole.facts.weight_bytes


def test_another_file_or_kind_is_another_folder_and_a_half_written_one_does_not_count(fabricated, tmp_path):
    from inference_node.fast import reading
    from inference_node.models.files import find

    where = reading.stored(find(str(fabricated("qwen3_5_moe").target)))
    other = reading.stored(find(str(fabricated("qwen3_5").target)))
    folders = {packing.folder_for(tmp_path, where, "int8"), packing.folder_for(tmp_path, where, "mxfp4")}
    assert len(folders | {packing.folder_for(tmp_path, other, "int8")}) == 3
    half = packing.folder_for(tmp_path, where, "int8")
    half.mkdir()
    (half / "layer-000.safetensors").touch()
    assert not packing.find(half)


def test_a_disk_that_cannot_be_written_does_not_keep_a_model_from_being_served(fabricated, caplog):
    pair = fabricated("qwen3_5_moe")
    with caplog.at_level(logging.WARNING):
        target = load_fast(
            str(pair.target), weights="int8", block=8, cache=Path("/proc/nowhere"), prefix_bytes=0
        ).target
    assert "cannot be written" in caplog.text and target.facts.weights == "int8"
