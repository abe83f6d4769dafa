"""Target files: what is read out of them, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference_node.lab.fabricate import fabricate_target
from inference_node.models import files, weights
from inference_node.models.errors import BadModel, NodeError
from inference_node.speculate.loading import load_reference


@pytest.fixture
def copy(fabricated, tmp_path):
    """copy(family) -> a folder of its own that a test may spoil."""

    def of(family: str = "qwen3_5_moe") -> Path:
        return Path(shutil.copytree(fabricated(family).target, tmp_path / family))

    return of


def change(folder: Path, edit) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def module_of(folder: Path):
    found = files.find(str(folder))
    config = weights.text_config(found)
    return weights.load_module(found, config, torch.float32, torch.device("cpu"))


def test_text_is_read_from_under_the_language_model_and_vision_is_skipped(copy):
    folder = copy()
    names = load_file(folder / "model.safetensors")
    assert any(name.startswith("model.visual.") for name in names)
    module, mtp = module_of(folder)
    expected = names["model.language_model.layers.0.linear_attn.in_proj_qkv.weight"].float()
    assert torch.equal(module.model.layers[0].linear_attn.in_proj_qkv.weight, expected)
    assert "fc.weight" in mtp and "layers.0.self_attn.q_proj.weight" in mtp


def test_experts_may_be_stored_one_by_one_or_fused(tmp_path):
    fused = fabricate_target(tmp_path / "fused", "qwen3_5_moe", scale_head=False, per_expert=False)
    single = fabricate_target(tmp_path / "single", "qwen3_5_moe", scale_head=False, per_expert=True)
    assert len(load_file(single / "model.safetensors")) > len(load_file(fused / "model.safetensors"))
    (one, _), (other, _) = module_of(fused), module_of(single)
    for (name, a), (_, b) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_files_may_be_sharded(tmp_path):
    whole = fabricate_target(tmp_path / "whole", "qwen3_5", scale_head=False)
    parts = fabricate_target(tmp_path / "parts", "qwen3_5", scale_head=False, sharded=True)
    assert len(list(parts.glob("*.safetensors"))) > 3
    (one, _), (other, _) = module_of(whole), module_of(parts)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_decays_keep_fp32_when_the_rest_is_rounded(copy):
    folder = copy("qwen3_5")
    change(folder, lambda t: t.update({n: v.float() * 1.0001 for n, v in t.items() if n.endswith("A_log")}))
    found = files.find(str(folder))
    module, _ = weights.load_module(found, weights.text_config(found), torch.bfloat16, torch.device("cpu"))
    assert module.model.layers[0].linear_attn.A_log.dtype == torch.float32
    assert module.model.layers[0].linear_attn.out_proj.weight.dtype == torch.bfloat16


def test_a_missing_tensor_is_refused_by_name(copy):
    folder = copy()
    change(folder, lambda t: t.pop("model.language_model.layers.2.mlp.experts.down_proj"))
    with pytest.raises(BadModel, match=r"layers\.2\.mlp\.experts\.down_proj.*missing.*shape \[8, 64, 32\]"):
        module_of(folder)


def test_a_missing_expert_of_single_ones_is_refused(copy):
    folder = copy("qwen3_moe")
    change(folder, lambda t: t.pop("model.layers.1.mlp.experts.3.up_proj.weight"))
    with pytest.raises(BadModel, match=r"expert 3 of .*layers\.1.*1 tensors; expected 2"):
        module_of(folder)


def test_another_shape_is_refused_with_both_shapes(copy):
    folder = copy("qwen3")
    change(folder, lambda t: t.update({"model.norm.weight": torch.ones(32)}))
    with pytest.raises(BadModel, match=r"model\.norm\.weight.*\[32\].*\[64\]"):
        module_of(folder)


def test_a_tensor_without_a_place_is_refused(copy):
    folder = copy("llama")
    change(folder, lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}))
    with pytest.raises(BadModel, match=r"q_proj\.bias.*no place"):
        module_of(folder)


def test_a_family_that_is_not_known_is_refused(copy):
    folder = copy("llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))
    with pytest.raises(BadModel, match="gpt2"):
        module_of(folder)


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
@pytest.mark.parametrize("other", ["gpt2", "bert", "t5", "whisper", "mamba", "clip"])
def test_any_other_family_is_refused_by_name_whatever_its_config_looks_like(copy, family: str, other: str):
    """One that nests its text's config and is not known to do so keeps it as a dict."""
    folder = copy(family)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": other}))
    with pytest.raises(BadModel, match=r"config\.json"):
        module_of(folder)


def test_a_model_type_that_transformers_does_not_know_is_refused(copy):
    folder = copy("llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "made_up"}))
    with pytest.raises(BadModel, match="made_up"):
        module_of(folder)


def test_a_config_whose_sizes_are_no_numbers_is_refused(copy):
    folder = copy("llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": "wide"}))
    with pytest.raises(BadModel, match="hidden_size"):
        module_of(folder)


def test_quantised_files_are_refused(copy):
    folder = copy("qwen3")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(BadModel, match=r"quantization_config is present .fp8."):
        module_of(folder)


def test_rope_that_changes_with_length_is_refused(copy):
    folder = copy("llama")
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadModel, match="dynamic"):
        load_reference(str(folder), weights="fp32")


def test_a_file_that_is_no_safetensors_is_refused(copy):
    folder = copy("qwen3")
    (folder / "model.safetensors").write_bytes(b"not a tensor file")
    with pytest.raises(BadModel, match=r"model\.safetensors.*unreadable"):
        module_of(folder)


def test_a_drafter_with_a_missing_or_misshapen_tensor_is_refused(fabricated, tmp_path):
    pair = fabricated("qwen3", "june")
    for edit, match in (
        (lambda t: t.pop("layers.1.self_attn.k_norm.weight"), r"layers\.1\.self_attn\.k_norm\.weight.*missing"),
        (lambda t: t.update({"fc.weight": torch.ones(64, 128)}), r"fc\.weight.*\[64, 128\].*\[64, 192\]"),
        (lambda t: t.update({"layers.9.extra": torch.ones(3)}), r"layers\.9\.extra.*no place"),
    ):
        folder = Path(shutil.copytree(pair.drafter, tmp_path / "bad"))
        change(folder, edit)
        with pytest.raises(BadModel, match=match):
            load_reference(str(pair.target), str(folder), weights="fp32")
        shutil.rmtree(folder)


def test_mtp_is_refused_for_a_model_without_such_a_head(fabricated):
    with pytest.raises(BadModel, match=r"tensors under mtp\. is missing"):
        load_reference(str(fabricated("qwen3").target), "mtp", weights="fp32")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"weights": "int3"}, "int3"),
        ({"context": 10**9}, "positions end at 4096"),
        ({"device": "abacus"}, "abacus"),
        ({"model": "/does/not/exist"}, "No model at /does/not/exist"),
    ],
)
def test_wrong_options_are_refused_in_words(fabricated, changes, match):
    options = {"model": str(fabricated("qwen3").target), "weights": "fp32", **changes}
    with pytest.raises(NodeError, match=match):
        load_reference(**options)


def test_a_block_other_than_the_drafters_is_refused(fabricated):
    pair = fabricated("qwen3", "june")
    with pytest.raises(NodeError, match="block=4; the drafter's is 8"):
        load_reference(str(pair.target), str(pair.drafter), weights="fp32", block=4)
