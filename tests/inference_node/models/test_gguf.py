"""Targets in GGUF files, written here as llama.cpp's converter writes them, in plain and in quantised blocks."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from inference_node.models import files
from inference_node.speculate.loading import load_reference
from inference_node.speculate.seam import Sampling
from inference_node.state import recurrent
from inference_node.state.whole import SequenceState
from tests.inference_node.helpers import generate, prompt

HIDDEN, WIDE, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 3


def write(file: Path, family: str, tokenizer: Path, kind: gguf.GGMLQuantizationType) -> Path:
    """A random model. tokenizer: a tokenizer.json whose pieces and merges it gets."""
    pieces = json.loads(tokenizer.read_text())
    vocab = {**pieces["model"]["vocab"], **{added["content"]: added["id"] for added in pieces["added_tokens"]}}
    tokens = sorted(vocab, key=lambda piece: vocab[piece])
    dim = 128 if family == "qwen3" else 16  # transformers takes Qwen3's head width for granted
    writer = gguf.GGUFWriter(file, family)
    writer.add_name("small")
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(dim)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    added = {one["id"] for one in pieces["added_tokens"]}
    writer.add_token_types(
        [gguf.TokenType.CONTROL if i in added else gguf.TokenType.NORMAL for i in range(len(tokens))]
    )
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in pieces["model"]["merges"]])
    writer.add_eos_token_id(vocab["<|im_end|>"])
    writer.add_chat_template("{% for message in messages %}{{ message.content }}{% endfor %}")
    random = np.random.default_rng(5)

    def put(name: str, *shape: int) -> None:
        if len(shape) == 1:
            writer.add_tensor(name, (1 + 0.2 * random.standard_normal(shape)).astype(np.float32))
            return
        value = (random.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)
        writer.add_tensor(name, gguf.quantize(value, kind), raw_dtype=kind)

    put("token_embd.weight", len(tokens), HIDDEN)
    for layer in range(LAYERS):
        at = f"blk.{layer}"
        for norm in ("attn_norm", "ffn_norm"):
            put(f"{at}.{norm}.weight", HIDDEN)
        put(f"{at}.attn_q.weight", HEADS * dim, HIDDEN)
        put(f"{at}.attn_k.weight", KV_HEADS * dim, HIDDEN)
        put(f"{at}.attn_v.weight", KV_HEADS * dim, HIDDEN)
        put(f"{at}.attn_output.weight", HIDDEN, HEADS * dim)
        if family == "qwen3":
            put(f"{at}.attn_q_norm.weight", dim)
            put(f"{at}.attn_k_norm.weight", dim)
        put(f"{at}.ffn_gate.weight", WIDE, HIDDEN)
        put(f"{at}.ffn_up.weight", WIDE, HIDDEN)
        put(f"{at}.ffn_down.weight", HIDDEN, WIDE)
    put("output_norm.weight", HIDDEN)
    put("output.weight", len(tokens), HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize(
    ("family", "kind"),
    [("llama", gguf.GGMLQuantizationType.Q8_0), ("qwen3", gguf.GGMLQuantizationType.F16)],
    ids=["llama-q8_0", "qwen3-f16"],
)
def test_a_gguf_file_gives_the_logits_that_transformers_reads_out_of_it(fabricated, tmp_path, family, kind):
    path = write(tmp_path / "small.gguf", family, fabricated("qwen3").target / "tokenizer.json", kind)
    told: list[str] = []
    loaded = load_reference(str(path), "ngram", weights="fp32", block=8, told=lambda what, done: told.append(what))
    assert "reading small.gguf" in told and told[-1] == "ready"
    text = "The lamplighter walks: {é}"
    assert loaded.tokenizer.decode(loaded.tokenizer.encode(text, add_special_tokens=False)) == text

    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="small.gguf", dtype=torch.float32)
    tokens, model = prompt(72), loaded.target.pair.model
    state = SequenceState(model.shapes())
    with torch.inference_mode():
        expected = theirs(torch.tensor([tokens])).logits[0, 64:, : model.known_ids]
        model.tile(tokens[:64], state)
        ours = model.logits(model.block(tokens[64:], state, recurrent.notes("replay", model.fold)).hidden)
    assert float((ours - expected).abs().max()) < 1e-4
    sampling = Sampling(temperature=0.7, seed=4)
    said = generate(loaded.target, prompt(40), sampling, 30)
    assert said == generate(loaded.target, prompt(40), sampling, 30, draft=False)


def test_the_file_is_parsed_once_for_config_tokenizer_and_tensors(fabricated, tmp_path, monkeypatch):
    """transformers would parse it four times, which takes longer than all the rest of a small model's loading."""
    from gguf import gguf_reader

    path = write(
        tmp_path / "small.gguf", "qwen3", fabricated("qwen3").target / "tokenizer.json", gguf.GGMLQuantizationType.F32
    )
    opened: list[object] = []
    build = gguf_reader.GGUFReader._build_fields

    def counted(self: gguf_reader.GGUFReader, *arguments: object) -> object:
        opened.append(self)
        return build(self, *arguments)

    monkeypatch.setattr(gguf_reader.GGUFReader, "_build_fields", counted)
    load_reference(str(path), "none", weights="fp32", block=8)
    assert len(opened) == 1
    assert gguf.GGUFReader is gguf_reader.GGUFReader, "what was put in its place is gone again"
    assert files.find(str(path)).gguf == "small.gguf"
