"""The two recipes from nothing to figures, tiny: what runs for minutes on a GPU must not fail for a silly reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference_node.lab import hybrid_pair, pair_speed, pairs, small_pair
from inference_node.models.files import find
from inference_node.models.weights import text_config
from inference_node.train.export import TargetShape

TINY = ["--device", "cpu", "--threads", "1", "--rows", "160", "--anchors", "24", "--steps", "12", "--loop", "1"]
TINY += ["--timed", "1", "--held", "3", "--batch", "16", "--max-tokens", "20"]


def test_the_small_pair_is_made_measured_and_not_made_twice(fabricated, tmp_path: Path) -> None:
    arguments = ["--out", str(tmp_path), "--model", str(fabricated("llama").target), *TINY]
    arguments += ["--domain", "5", "--questions", "5", "--open", "2", "--minutes", "5"]
    assert small_pair.main(arguments) == 0
    domain, questions, speed = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("judged-domain", "judged-questions", "speed")
    )
    assert domain["prompts"] == questions["prompts"] == 3 and domain["tau"]["value"] >= 1
    assert domain["identical_to_plain"] == [1, 1] and domain["loop_prompts"] == 1
    assert speed["plain_tokens_per_s"] > 0 and set(speed["widths"]) == {"8"}
    assert domain["provenance"]["model"] == questions["provenance"]["model"]
    assert (tmp_path / "run" / "drafter" / "model.safetensors").stat().st_size < pairs.MOST_BYTES
    shipped, figures = tmp_path / "shipped", tmp_path / "figures"
    assert small_pair.main([*arguments, "--ship", str(shipped), "--figures", str(figures)]) == 0
    told = json.loads((shipped / "provenance.json").read_text())
    assert told["judged"]["domain"] == domain["tau"] and len(told["curve"]) == told["arm"]["steps"] == 12
    recorded = json.loads((figures / "small-pair.json").read_text())
    assert recorded["figures"]["tau_domain"] == domain["tau"]["value"] and recorded["commit"] == told["commit"]
    measured = ["--draft", str(shipped), "--model", arguments[3], "--texts", "1", "--out", str(figures)]
    assert pair_speed.main([*measured, "--device", "cpu", "--threads", "1"]) == 0
    speeds = json.loads((figures / "small-pair-cpu.json").read_text())["figures"]
    assert speeds["tokens_compared"] > 0 == speeds["tokens_that_differ"]
    assert speeds["eta_domain"] == pytest.approx(speeds["tok_s_domain"] / speeds["plain_tok_s"])
    assert speeds["plain_tok_s"] == max(
        speeds[f"{way}_tok_s_{of}"] for way in ("plain", "generate") for of in ("fp32", "bf16")
    )
    made = {
        path: path.read_bytes() for name in ("*.jsonl", "run/*.pt", "run/steps.json") for path in tmp_path.glob(name)
    }
    assert small_pair.main(arguments) == 0
    assert {path: path.read_bytes() for path in made} == made
    (tmp_path / "run" / "checkpoint.pt").unlink()  # the drafter had begun and had kept nothing yet
    assert small_pair.main([*arguments, "--domain", "8"]) == 0
    assert {path: path.read_bytes() for path in made if path.suffix == ".jsonl"} == {
        path: body for path, body in made.items() if path.suffix == ".jsonl"
    }


def test_the_hybrid_pair_is_made_from_nothing(tmp_path: Path) -> None:
    arguments = ["--out", str(tmp_path), "--shape", "tiny", *TINY, "--characters", "60000", "--tokenizer-files", "2"]
    arguments += ["--length", "64", "--target-batch", "4", "--target-steps", "12", "--say-every", "4"]
    assert hybrid_pair.main([*arguments, "--texts", "12", "--prompt", "12", "--minutes", "5"]) == 0
    trained = json.loads((tmp_path / "target" / "trained.json").read_text())
    losses = [loss for _, loss in trained["curve"]]
    assert len(losses) == 3 and losses[-1] < losses[0]
    woken = json.loads((tmp_path / "experts.json").read_text())["woken"]
    assert woken["text"][0] == pytest.approx(4) and woken["random"][0] == pytest.approx(4)
    assert woken["random"][7] > woken["random"][0] and all(4 <= one <= 8 for one in woken["one token"])
    assert set(json.loads((tmp_path / "speed.json").read_text())["widths"]) == {"2", "8"}
    assert json.loads((tmp_path / "judged-code.json").read_text())["experts_woken"] >= 4
    assert "done" in (tmp_path / "progress.txt").read_text()


def test_held_out_code_is_never_trained_on() -> None:
    trained, held = (set(hybrid_pair.sources(400_000, held=held)) for held in (False, True))
    assert trained and held and not trained & held


def test_prompts_are_distinct_and_those_held_out_come_from_the_same_draw() -> None:
    for make in (small_pair.domain_prompts, small_pair.question_prompts):
        prompts = make(6000)
        texts = [prompt.messages[0]["content"] for prompt in prompts]
        assert len(set(texts)) == len(texts) == 6000 and prompts[:10] == make(10)
        assert not any("{" in text for text in texts)


def test_the_shipped_sizes_keep_their_promises(tmp_path: Path) -> None:
    smollm2 = TargetShape(
        hidden=576, layers=30, heads=9, kv_heads=3, head_dim=64, intermediate=1536, vocab=49152, positions=8192,
        mask_id=0,
    )  # fmt: skip
    arm = small_pair.arm_of(small_pair._parser().parse_args(["--out", "x"]))
    assert arm.layers == 2 and arm.block == 8 and len(arm.tapped(30)) == 3
    assert 14 << 20 < pairs.bytes_of(arm, smollm2) < pairs.MOST_BYTES - (1 << 16)
    shape = hybrid_pair.SHAPES["hybrid"]
    hybrid_pair.fabricate_target(tmp_path, hybrid_pair.FAMILY, shape, mtp=False, per_expert=False, scale_head=False)
    held = sum(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    assert 16 << 20 < held < hybrid_pair.MOST_BYTES
    kinds = text_config(find(str(tmp_path))).layer_types
    assert kinds.count("full_attention") == 2 and kinds.count("linear_attention") == 6
