"""From files to the kernels' layout, or a refusal that names what is wrong."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference_node.fast.loading import load_fast
from inference_node.fast.sizes import NotForFast
from inference_node.lab.fabricate import fabricate_target
from inference_node.models.errors import BadModel
from inference_node.speculate.seam import Sampling
from tests.inference_node.helpers import generate, prompt


@pytest.fixture
def damaged(fabricated, tmp_path):
    """damaged(change) -> the folder of a model whose tensors were changed."""

    def of(change, family: str = "qwen3_5_moe"):
        folder = tmp_path / "damaged"
        shutil.copytree(fabricated(family).target, folder)
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return str(folder)

    return of


def test_a_missing_tensor_is_named(damaged):
    with pytest.raises(BadModel, match=r"layers\.2\.linear_attn\.in_proj_b\.weight.*missing"):
        load_fast(damaged(lambda t: t.pop("model.language_model.layers.2.linear_attn.in_proj_b.weight")), block=8)


def test_a_tensor_of_another_shape_is_named_with_both(damaged):
    def cut(tensors):
        name = "model.language_model.layers.3.self_attn.o_proj.weight"
        tensors[name] = tensors[name][:, :-1].contiguous()

    with pytest.raises(BadModel, match=r"o_proj\.weight.*\[64, 63\].*\[64, 64\]"):
        load_fast(damaged(cut), block=8)


def test_a_tensor_without_a_place_is_named(damaged):
    with pytest.raises(BadModel, match=r"layers\.9\.extra"):
        load_fast(damaged(lambda t: t.update({"model.language_model.layers.9.extra": torch.zeros(1)})), block=8)


def test_experts_by_themselves_are_the_fused_ones(tmp_path, fabricated):
    one = fabricate_target(tmp_path / "single", "qwen3_5_moe", per_expert=True)
    said = []
    for folder in (one, fabricated("qwen3_5_moe").target):
        target = load_fast(str(folder), weights="fp32", block=8, prefix_bytes=0).target
        said.append(generate(target, prompt(20), Sampling(), 8))
    assert said[0] == said[1]


def test_what_only_the_reference_serves_is_said_so(fabricated):
    with pytest.raises(NotForFast, match='"llama"'):
        load_fast(str(fabricated("llama").target))


def test_a_model_without_a_multi_token_head_is_refused_and_one_with_a_strange_one_too(damaged, fabricated):
    with pytest.raises(BadModel, match=r"tensors under mtp\. is missing"):
        load_fast(str(fabricated("qwen3").target), "mtp")
    with pytest.raises(BadModel, match=r"mtp\.layers\.1\.norm"):
        load_fast(damaged(lambda t: t.update({"mtp.layers.1.norm.weight": torch.zeros(1)}), "qwen3_5"), "mtp")


def test_a_gguf_file_is_refused_with_what_to_do_instead(tmp_path):
    file = tmp_path / "small.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(NotForFast, match=r"small\.gguf is GGUF.*--engine reference, or give --model the safetensors"):
        load_fast(str(file))
