import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from inference_node.lab import fabricate
from inference_node.lab.fabricate import FAMILIES, fabricate_drafter, fabricate_target, median_gap
from inference_node.lab.shapes import QWEN36_27B, QWEN36_35B_A3B, draft_shape
from inference_node.models.errors import NodeError
from inference_node.speculate.loading import load_reference


@pytest.mark.parametrize("family", FAMILIES)
def test_the_best_logit_stands_at_least_one_above_the_second_at_half_of_all_places(fabricated, family):
    assert median_gap(fabricated(family).target) >= 1.0


def test_the_same_seed_writes_the_same_files_and_another_seed_others(tmp_path):
    one, same, other = (
        load_file(fabricate_target(tmp_path / name, "qwen3_5", seed=seed, scale_head=False) / "model.safetensors")
        for name, seed in (("one", 3), ("same", 3), ("other", 4))
    )
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])


def test_a_hybrid_is_written_under_the_released_files_names(fabricated):
    names = load_file(fabricated("qwen3_5_moe").target / "model.safetensors")
    assert names["model.language_model.layers.0.mlp.experts.gate_up_proj"].shape == (8, 64, 64)
    assert {"lm_head.weight", "mtp.fc.weight", "mtp.norm.weight", "mtp.pre_fc_norm_hidden.weight"} <= set(names)
    config = json.loads((fabricated("qwen3_5_moe").target / "config.json").read_text())
    assert config["model_type"] == "qwen3_5_moe" and config["text_config"]["model_type"] == "qwen3_5_moe_text"


@pytest.mark.parametrize(
    ("revision", "tensors"), [("april", 36), ("june", 36), ("dflash2", 36 + 3 * 4 + 3), ("speculators", 36)]
)
def test_a_drafter_has_eleven_tensors_a_layer_and_three(fabricated, revision, tensors):
    names = load_file(fabricated("qwen3_5_moe", revision).drafter / "model.safetensors")
    assert len(names) == tensors and not any("embed" in name or "lm_head" in name for name in names)


def test_the_real_drafters_sizes_are_the_published_ones():
    """69 tensors and 385,906,176 parameters for the current file, 91 and 473,995,264 for the first revisions."""
    from inference_node.models import draft_config
    from inference_node.models.drafter import DFlash

    for revision, tensors, parameters in (("june", 69, 385_906_176), ("april", 91, 473_995_264)):
        shape = draft_shape(revision, QWEN36_35B_A3B, 16)
        config = fabricate.drafter_config(revision, QWEN36_35B_A3B, shape, 248077, "target")
        with torch.device("meta"):
            module = DFlash(draft_config.read(config, revision))
        assert len(list(module.parameters())) == tensors
        assert sum(parameter.numel() for parameter in module.parameters()) == parameters
    shape = draft_shape("june", QWEN36_27B, 16)
    config = fabricate.drafter_config("june", QWEN36_27B, shape, 248070, "target")
    with torch.device("meta"):
        module = DFlash(draft_config.read(config, "27b"))
    assert len(list(module.parameters())) == 58
    assert round(sum(parameter.numel() for parameter in module.parameters()) / 1e9, 2) == 1.73


def test_the_tokenizer_returns_any_text_and_its_template_speaks_of_tools(fabricated):
    tokenizer = AutoTokenizer.from_pretrained(fabricated("qwen3").target)
    text = "naïve 你好 \U0001f600\n\tdef f(): <think> </tool_call>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    call = {"type": "function", "function": {"name": "run", "arguments": {"command": "ls", "n": 3}}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "content": "a b"},
    ]
    said = tokenizer.apply_chat_template(messages, tools=[call], tokenize=False, add_generation_prompt=True)
    assert "<think>\nhm\n</think>" in said and "<parameter=n>\n3\n</parameter>" in said and "<tool_response>" in said
    later = [*messages, {"role": "user", "content": "more"}]
    assert "hm" not in tokenizer.apply_chat_template(later, tokenize=False), "earlier thinking is dropped"
    assert "hm" in tokenizer.apply_chat_template(later, tokenize=False, preserve_thinking=True)


def test_mask_ids_are_the_first_padding_row_or_an_unused_added_token(fabricated):
    known = len(AutoTokenizer.from_pretrained(fabricated("qwen3").target))
    masks = {
        revision: json.loads((fabricated("qwen3", revision).drafter / "config.json").read_text())["dflash_config"]
        for revision in ("april", "june")
    }
    assert masks["june"]["mask_token_id"] == known and masks["april"]["mask_token_id"] < known


def test_unknown_families_and_revisions_are_refused(tmp_path, fabricated):
    with pytest.raises(NodeError, match="gpt2"):
        fabricate_target(tmp_path, "gpt2")
    with pytest.raises(NodeError, match="may"):
        fabricate_drafter(tmp_path, fabricated("qwen3").target, "may")


def test_a_mask_id_that_a_chat_token_has_is_refused_at_load(fabricated, tmp_path):
    import shutil

    pair = fabricated("qwen3", "june")
    folder = shutil.copytree(pair.drafter, tmp_path / "drafter")
    config = json.loads((folder / "config.json").read_text())
    known = len(AutoTokenizer.from_pretrained(pair.target))
    for name, match in (
        ("<|im_start|>", "chat template"),
        ("<|im_end|>", "end-of-turn"),
        ("<|endoftext|>", "end-of-turn"),
    ):
        token = AutoTokenizer.from_pretrained(pair.target).convert_tokens_to_ids(name)
        assert token < known
        config["dflash_config"]["mask_token_id"] = token
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(NodeError, match=match):
            load_reference(str(pair.target), str(folder), weights="fp32")
