"""What is read from a drafter's config, and which configs are refused with which words."""

import logging
from dataclasses import replace

import pytest
import torch

from inference_node.lab import fabricate
from inference_node.lab.shapes import QWEN36_35B_A3B, draft_shape
from inference_node.models import draft_config
from inference_node.models.draft_config import TargetIds
from inference_node.models.errors import BadModel

REAL = TargetIds(
    layers=40,
    hidden=2048,
    vocab=248320,
    known_ids=248077,
    taken={248046: "an end-of-turn token"},
    added=frozenset({248070}),
)


def config(revision: str, **changes: object) -> dict[str, object]:
    """The 35B drafter's config as published in this revision, with changes; None removes a key."""
    shape = draft_shape(revision, QWEN36_35B_A3B, 16)
    mask = 248070 if revision.startswith("april") else 248077
    made = fabricate.drafter_config(revision, QWEN36_35B_A3B, shape, mask, "target") | changes
    return {key: value for key, value in made.items() if value is not None}


@pytest.mark.parametrize(
    ("revision", "layers", "kv_heads", "taps", "mask", "windows"),
    [
        ("april", 8, 4, (1, 10, 19, 28, 37), 248070, [None] * 8),
        ("april-2", 8, 4, (1, 10, 19, 28, 37), 248070, [None] * 8),
        ("june", 6, 8, (1, 6, 11, 16, 22, 27, 32, 37), 248077, [4096] * 5 + [None]),
    ],
)
def test_three_revisions_of_the_35b_file_are_read_from_their_configs(revision, layers, kv_heads, taps, mask, windows):
    read = draft_config.read(config(revision), "config.json")
    draft_config.check(read, REAL, "config.json")
    assert (len(read.layers), read.kv_heads, read.taps, read.mask_id) == (layers, kv_heads, taps, mask)
    assert [layer.window for layer in read.layers] == windows
    assert (read.hidden, read.heads, read.head_dim, read.block) == (2048, 32, 128, 16)


def test_yarn_changes_frequencies_and_temperature():
    old = draft_config.read(config("april"), "here").rope(torch.device("cpu"), "here")
    plain = draft_config.read(config("april-2"), "here").rope(torch.device("cpu"), "here")
    assert old.scale == pytest.approx(0.1 * torch.tensor(8.0).log().item() + 1)
    assert plain.scale == 1.0 and len(plain.frequency) == 64
    assert not torch.equal(old.frequency, plain.frequency) and torch.equal(old.frequency[:8], plain.frequency[:8])


def test_causality_comes_from_the_config_when_it_says_so():
    assert [layer.causal for layer in draft_config.read(config("june"), "").layers] == [True] * 5 + [False]
    said = draft_config.read(config("june", is_causal=False), "")
    assert not any(layer.causal for layer in said.layers)
    inner = config("june")
    inner["dflash_config"] = {**inner["dflash_config"], "causal": True}
    assert all(layer.causal for layer in draft_config.read(inner, "").layers)


def test_a_file_older_than_the_taps_key_spreads_them_over_the_target():
    old = config(
        "april-2", num_hidden_layers=5, layer_types=None, num_target_layers=36, dflash_config={"mask_token_id": 9}
    )
    assert draft_config.read(old, "").taps == (1, 9, 17, 25, 33), "Qwen3-8B's published list"


def test_block_size_is_read_from_either_place_and_defaults_to_16():
    assert draft_config.read(config("april-2", block_size=10), "").block == 10
    assert draft_config.read(config("april-2", block_size=None), "").block == 16
    inner = config("june", block_size=None)
    inner["dflash_config"] = {**inner["dflash_config"], "block_size": 8}
    assert draft_config.read(inner, "").block == 8


@pytest.mark.parametrize(
    ("changes", "key", "found"),
    [
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor", "0.25"),
        ({"rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25}}, "partial_rotary_factor", "0.25"),
        ({"rope_parameters": {"rope_theta": 1e7, "mrope_section": [11, 11, 10]}}, "mrope_section", "11"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_theta", "missing"),
        ({"head_dim": None}, "head_dim", "missing"),
        ({"num_key_value_heads": None}, "num_key_value_heads", "missing"),
        ({"sliding_window": None}, "sliding_window", "None"),
        ({"layer_types": ["full_attention"]}, "layer_types", "1 entries"),
        ({"layer_types": ["chunked_attention"] * 6}, "layer_types", "chunked_attention"),
        ({"block_size": 1}, "block_size", "1"),
        ({"hidden_act": "gelu"}, "hidden_act", "gelu"),
        ({"architectures": ["LlamaForCausalLM"]}, "architectures", "LlamaForCausalLM"),
        ({"dflash_config": {"target_layer_ids": [1, 2]}}, "mask_token_id", "None"),
        ({"dflash_config": {"mask_token_id": 5}, "num_target_layers": None}, "target_layer_ids", "missing"),
    ],
)
def test_a_config_that_cannot_be_right_is_refused_by_key_found_and_expected(changes, key, found):
    """Bug class: rope inherited from the target; acceptance dies silently (Automodel#3605, speculators#613)."""
    with pytest.raises(BadModel) as refused:
        draft_config.read(config("june", **changes), "drafter/config.json")
    text = str(refused.value)
    assert key in text and found in text and "expected" in text and "drafter/config.json" in text


@pytest.mark.parametrize(
    ("target", "key"),
    [
        (replace(REAL, hidden=4096), "hidden_size"),
        (replace(REAL, vocab=151936), "vocab_size"),
        (replace(REAL, layers=36), "target_layer_ids"),
        (replace(REAL, taken={248077: "an end-of-turn token"}), "mask_token_id"),
        (replace(REAL, taken={248077: "the pad token"}), "mask_token_id"),
        (replace(REAL, taken={248077: "<|im_start|> of the chat template"}), "mask_token_id"),
    ],
)
def test_a_drafter_of_another_target_is_refused(target, key):
    with pytest.raises(BadModel, match=key):
        draft_config.check(draft_config.read(config("june"), "here"), target, "here")


def test_a_mask_id_outside_the_embedding_is_refused():
    bad = config("june")
    bad["dflash_config"] = {**bad["dflash_config"], "mask_token_id": 248320}
    with pytest.raises(BadModel, match="mask_token_id is 248320; expected an id below 248320"):
        draft_config.check(draft_config.read(bad, "here"), REAL, "here")


def test_another_added_token_as_mask_id_is_a_warning_only(caplog):
    with caplog.at_level(logging.WARNING):
        draft_config.check(draft_config.read(config("april"), "here"), REAL, "here")
    assert "248070 is an added token" in caplog.text


@pytest.mark.parametrize(
    "key", ["transformer_layer_config", "aux_hidden_state_layer_ids", "block_size", "mask_token_id"]
)
def test_an_incomplete_speculators_config_is_refused(key):
    with pytest.raises(BadModel, match=key):
        draft_config.read(config("speculators", **{key: None}), "here")


def test_speculators_layer_numbers_count_the_embedding():
    read = draft_config.read(config("speculators"), "here")
    assert read.taps == (1, 6, 11, 16, 22, 27, 32, 37)


def test_a_speculators_drafter_that_predicts_at_its_anchor_is_refused():
    with pytest.raises(BadModel, match="sample_from_anchor"):
        draft_config.read(config("speculators", sample_from_anchor=True), "here")
