"""The target's forward: equal to itself to the bit, and to unmodified transformers in fp32."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from inference_node.lab.fabricate import FAMILIES
from inference_node.models.target import TextModel
from inference_node.state import recurrent
from inference_node.state.whole import SequenceState
from tests.inference_node.helpers import prompt

THREE = ("qwen3_5_moe", "qwen3_5", "qwen3")


def forward_block(model: TextModel, state: SequenceState, tokens: list[int], kind: str = "replay"):
    notes = recurrent.notes(kind, model.fold)
    with torch.inference_mode():
        seen = model.block(tokens, state, notes)
        return model.logits(seen.hidden), notes


def prefilled(model: TextModel, tokens: list[int]) -> SequenceState:
    state = SequenceState(model.shapes())
    with torch.inference_mode():
        for start in range(0, len(tokens), 64):
            model.tile(tokens[start : start + 64], state)
    return state


@pytest.mark.parametrize("family", THREE)
@pytest.mark.parametrize("weights", ["fp32", "bf16"])
@pytest.mark.parametrize("start", [5, 251])
def test_logits_of_a_row_have_the_same_bits_alone_and_in_a_block(loaded, family, weights, start):
    """Bug class: greedy text differs between plain decoding and verify (llama.cpp#25618, vllm#54506, vllm#54928)."""
    model = loaded(family, "none", weights).target.pair.model
    tokens = prompt(start + 8, seed=start)
    state = prefilled(model, tokens[:start])
    block, _ = forward_block(model, state, tokens[start:])
    for row in range(8):
        alone, notes = forward_block(model, state, [tokens[start + row]])
        assert torch.equal(alone[0], block[row]), f"row {row}"
        with torch.inference_mode():
            state.commit_block([tokens[start + row]], notes)


@pytest.mark.parametrize("family", THREE)
def test_what_stands_after_a_row_changes_none_of_its_bits(loaded, family):
    model = loaded(family, "none", "bf16").target.pair.model
    state = prefilled(model, prompt(70))
    first, _ = forward_block(model, state, [3, 4, 5, 6])
    second, _ = forward_block(model, state, [3, 4, 77, 78, 79, 80, 81])
    assert torch.equal(first[:2], second[:2])


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_unmodified_transformers(loaded, fabricated, family):
    folder = fabricated(family).target
    model = loaded(family, "none").target.pair.model
    tokens = prompt(150)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        expected = theirs(torch.tensor([tokens])).logits[0, :, : model.known_ids]
    state = prefilled(model, tokens[:100])
    got = torch.cat([_decode(model, state, token) for token in tokens[100:]])
    # 5e-4 with logits of standard deviation 8: fp32 sums in another order, through four layers
    assert float((got - expected[100:]).abs().max()) < 5e-4
    assert torch.equal(got.argmax(-1), expected[100:].argmax(-1))


def _decode(model: TextModel, state: SequenceState, token: int) -> torch.Tensor:
    logits, notes = forward_block(model, state, [token])
    with torch.inference_mode():
        state.commit_block([token], notes)
    return logits[:1]


@pytest.mark.parametrize("family", THREE)
@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_a_prompt_in_two_parts_cut_at_a_multiple_of_64_has_the_bits_of_one_in_one_part(loaded, family, weights):
    """Bug class: a chunk after the first starts from an empty recurrent state (transformers#45513)."""
    model = loaded(family, "none", weights).target.pair.model
    tokens = prompt(200)
    whole, parts = prefilled(model, tokens), prefilled(model, tokens[:128])
    with torch.inference_mode():
        model.tile(tokens[128:192], parts)
        model.tile(tokens[192:], parts)
    assert parts.from_prefill and whole.from_prefill
    assert torch.equal(forward_block(model, whole, [7])[0][0], forward_block(model, parts, [7])[0][0])


def test_a_prompt_cut_elsewhere_may_round_otherwise_and_says_so(loaded):
    """Bug class: checkpoints whose position is not on a chunk boundary pass for equal (facts: chunk 0.25 off step)."""
    model = loaded("qwen3_5", "none").target.pair.model
    state = prefilled(model, prompt(37))
    with torch.inference_mode():
        model.tile(prompt(20, seed=2), state)
    assert not state.from_prefill


def test_a_multiple_of_eight_rows_is_run_whatever_the_block(loaded):
    """LLaMA's drafter has a block of 10, and libraries treat 10 rows unevenly."""
    assert loaded("llama", "none", block=10).target.pair.model.rows == 16
    assert loaded("llama", "none", block=8).target.pair.model.rows == 8


def test_experts_woken_are_counted_for_valid_rows_only(loaded):
    model = loaded("qwen3_5_moe", "none").target.pair.model
    state = prefilled(model, prompt(70))
    notes = recurrent.notes("replay", model.fold)
    with torch.inference_mode():
        one = model.block([5], state, notes)
        more = model.block(prompt(8), state, notes)
    assert one.woken == (4,) * 4, "four experts for one token in each of four layers"
    assert all(4 <= count <= 8 for count in more.woken)


def test_taps_are_outputs_of_the_layers_they_name(loaded, fabricated):
    """Bug class: tap index off by one. Acceptance falls and nothing fails (vllm#40727, #42704)."""
    model = loaded("qwen3_5_moe", "none").target.pair.model
    tokens = prompt(64)
    theirs = AutoModelForCausalLM.from_pretrained(fabricated("qwen3_5_moe").target, dtype=torch.float32)
    with torch.inference_mode():
        states = theirs(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        seen = model.tile(tokens, SequenceState(model.shapes()), taps=[2, 0])
    for place, layer in enumerate((2, 0)):
        # hidden_states has the embedding at 0, so the output of layer i is entry i + 1
        assert torch.allclose(seen.taps[:, place], states[layer + 1][0], atol=1e-4)


def test_ids_past_the_tokenizer_have_no_logits_and_the_rest_are_fp32_sums(loaded):
    """Bug class: logits rounded to bf16 tie at the top at more than one place in a hundred (vllm#42960)."""
    target = loaded("qwen3_5_moe", "none", "bf16").target
    assert target.facts.vocab == 512 and target.facts.known_ids == 504
    logits, _ = forward_block(target.pair.model, prefilled(target.pair.model, prompt(20)), [1])
    assert logits.shape == (8, 504) and logits.dtype == torch.float32


@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3"])
def test_sliding_windows_biases_and_tied_embeddings_are_those_of_unmodified_transformers(tmp_path, family):
    from transformers import AutoConfig

    from inference_node.speculate.loading import load_reference

    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": 512}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 20, "tie_word_embeddings": True}
    if family != "mistral":
        sizes |= {"use_sliding_window": True, "max_window_layers": 1}
    config = AutoConfig.for_model(family, **sizes)
    torch.manual_seed(3)
    theirs = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for parameter in theirs.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        else:  # norms and biases
            torch.nn.init.normal_(parameter, mean=float(parameter.detach().mean()), std=0.2)
    theirs.eval().save_pretrained(tmp_path)
    target = load_reference(str(tmp_path), "none", weights="fp32", block=8).target
    tokens = prompt(120)
    with torch.inference_mode():
        expected = theirs(torch.tensor([tokens])).logits[0]
    state = prefilled(target.pair.model, tokens[:90])
    got = torch.cat([_decode(target.pair.model, state, token) for token in tokens[90:]])
    assert float((got - expected[90:]).abs().max()) < 1e-4
