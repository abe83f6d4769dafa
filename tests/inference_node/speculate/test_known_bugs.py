"""Bugs that other engines had, each tried here. Those that belong to one part have their test beside that part."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference_node.lab.oracles import Oracle
from inference_node.speculate.loading import load_reference
from inference_node.speculate.seam import Sampling
from tests.inference_node.helpers import generate, prompt


def test_weights_are_copied_out_of_the_mapped_file(fabricated, tmp_path):
    """Bug class: weights mapped from a file are read wrong by the device, or change with the file (llama.cpp#26544)."""
    folder = shutil.copytree(fabricated("qwen3").target, tmp_path / "model")
    target = load_reference(str(folder), "none", weights="bf16", block=8).target
    said = generate(target, prompt(40), Sampling(), 10)
    zeros = {name: torch.zeros_like(value) for name, value in load_file(folder / "model.safetensors").items()}
    with open(folder / "model.safetensors", "r+b") as file:  # in place, so that a mapping would see it
        save_file(zeros, tmp_path / "zeros.safetensors")
        file.write((tmp_path / "zeros.safetensors").read_bytes())
    assert generate(target, prompt(40), Sampling(), 10) == said


@pytest.mark.parametrize("family", ["qwen3_5_moe", "qwen3_5"])
def test_a_new_sequence_starts_from_an_empty_state(loaded, family):
    """Bug class: freed state blocks that are not zeroed (vllm#35219), slots that leak (sglang#16067), sums that come
    out otherwise on every run (vllm#44075)."""
    target = loaded(family, "june", "bf16").target
    said = generate(target, prompt(60), Sampling(), 10)
    generate(target, prompt(300, seed=4), Sampling(temperature=1.0), 30)
    assert generate(target, prompt(60), Sampling(), 10) == said
    target.reset()
    assert all(not state.any() for state in (*target.pair.state.recurrent.conv, *target.pair.state.recurrent.delta))


def test_the_recurrent_matrix_stays_fp32_when_weights_are_bf16(loaded):
    """Bug class: states stored rounded lose a little each cycle (early sglang#28695 degenerated on long outputs)."""
    for rollback in ("replay", "snapshots"):
        target = loaded("qwen3_5", "none", "bf16", rollback).target
        generate(target, prompt(40), Sampling(), 5)
        assert {state.dtype for state in target.pair.state.recurrent.delta} == {torch.float32}


@pytest.mark.parametrize("draft", ["june", "ngram", "none"])
def test_a_sampled_request_is_sampled(loaded, draft):
    """Bug class: sampled requests silently become greedy under speculation (sglang#33694, lucebox#105)."""
    target = loaded("qwen3", draft, "fp32").target
    greedy = generate(target, prompt(40), Sampling(), 12)
    sampled = {tuple(generate(target, prompt(40), Sampling(temperature=1.5, seed=seed), 12)) for seed in range(4)}
    assert len(sampled) == 4 and tuple(greedy) not in sampled


@pytest.mark.parametrize("length", [249, 252, 255, 256, 257])
def test_a_verify_has_room_for_all_its_rows_at_the_end_of_a_page(loaded, monkeypatch, length):
    """Bug class: K instead of K + 1 look-ahead slots reserved (vllm#43733, #42971, #51256)."""
    target = loaded("qwen3_5", "none", "fp32").target
    start = prompt(length)
    plain = generate(target, start, Sampling(), 20, draft=False)
    monkeypatch.setattr(target.pair, "drafter", Oracle("always right", [*start, *plain], 504, 8))
    assert generate(target, start, Sampling(), 20) == plain


def test_a_token_that_is_the_drafters_mask_is_kept_when_the_target_says_it(loaded):
    """Bug class: tokens equal to the mask id deleted from the output (z-lab/dflash#76)."""
    target = loaded("qwen3_5_moe", "april", "fp32").target
    mask = target.pair.drafter.config.mask_id
    assert mask < target.facts.known_ids
    forced = Sampling(logit_bias={mask: 100.0})
    assert generate(target, prompt(40), forced, 9) == [mask] * 9


def test_the_context_can_be_filled_to_its_last_position(fabricated):
    """Bug class: draft budgets at the end of the context (llama.cpp drafts its full number there)."""
    pair = fabricated("qwen3_5", "june")
    target = load_reference(str(pair.target), str(pair.drafter), weights="fp32", context=80).target
    start = prompt(61)
    said = generate(target, start, Sampling(), 20)
    assert len(said) == 20 and target.position == 80
    assert said == generate(target, start, Sampling(), 20, draft=False)


NAMED = (
    # exactness, state, drafts
    "llama.cpp#25618", "llama.cpp#26544", "llama.cpp#26744", "llama.cpp#28108", "ik_llama.cpp#2021", "turboquant#345",
    "vllm#35219", "vllm#40727", "vllm#42960", "vllm#43733", "vllm#44075", "vllm#47914", "vllm#47930", "vllm#54506",
    "vllm#54928", "sglang#16067", "sglang#28695", "sglang#29368", "sglang#32052", "sglang#33694", "sglang#34524",
    "z-lab#172", "z-lab#170", "z-lab/dflash#74", "z-lab/dflash#76", "transformers#45513", "transformers#49036",
    "mlx-lm#846", "Automodel#3605", "speculators#613", "lucebox#105", "sparkring#161", "tokenspeed#904",
    "LightLLM#1585", "hipfire#483",
    # what is kept between turns
    "llama.cpp#20153", "vllm#40696", "vllm#42317", "sglang#16521", "sglang#21158", "sglang#22935", "sglang#31643",
    "sglang#37817", "z-lab/dflash#165", "QwenLM/Qwen3.8#48", "omlx#814", "oh-my-pi#3549",
    # serving
    "ATOM#1562", "vllm#47761",
)  # fmt: skip


@pytest.mark.parametrize("thread", NAMED)
def test_a_test_names_the_bug(thread):
    """The threads that tell of a wrong answer. Those about speed, graphs or one vendor's device are the kernels'."""
    tests = Path(__file__).parent.parent
    naming = [file for file in tests.rglob("test_*.py") if thread in file.read_text().split("\nNAMED = (")[0]]
    assert naming, f"no test names {thread}"
