"""The files that training writes: what the node loads from them is what was trained, and so do other packages."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from inference_node.models.draft_weights import load_drafter
from inference_node.models.errors import NodeError
from inference_node.models.files import find
from inference_node.speculate.dflash import DFlashDrafter
from inference_node.train import arm as arms
from inference_node.train import evaluate, export, run
from inference_node.train.features import LocalTarget
from inference_node.train.step import Learner
from inference_node.train.target import OpenTarget
from tests.inference_node.models.oracle_environment import SPECULATORS, oracle_python
from tests.inference_node.models.test_drafter import ORACLE, absorb, rounds
from tests.inference_node.train.conftest import random_samples

SPECULATORS_ORACLE = Path(__file__).with_name("speculators_oracle.py")
SAMPLES = random_samples((30, 50), seed=8)
ARMS = {
    "bidirectional": {},
    "causal": {"attention": "causal"},
    "mixed": {"attention": "mixed", "window": 24, "layers": 3},
    "dflash2": {"kind": "dflash2"},
}


def learner_of(target: OpenTarget, **keys: object) -> Learner:
    arm = arms.made({"block": 8, "rows": 128, "anchors": 16, "head_dim": 32, **keys})
    source = LocalTarget(target.module, arm.tapped(target.shape.layers), last=False)
    learner = run.new_learner(arm, target.shape, source, SAMPLES, target.device, flex=False)
    with torch.no_grad():  # fresh norms are all ones and DFlash 2's parts all zeros: nothing of them could differ
        for weight in learner.module.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
    return learner


def drafters(target: OpenTarget, learner: Learner, folder: Path) -> tuple[DFlashDrafter, DFlashDrafter]:
    """The one in memory, and the one out of its files."""
    here = evaluate.pair(target, learner).pair.drafter
    assert isinstance(here, DFlashDrafter)
    loaded = load_drafter(find(str(folder)), target.ids, torch.float32, target.device)
    return here, DFlashDrafter(loaded, here.model)


@pytest.mark.parametrize("form", export.FORMATS)
@pytest.mark.parametrize("name", ARMS)
@torch.inference_mode()
def test_what_is_loaded_drafts_as_what_was_trained(opened, tmp_path: Path, name: str, form: str) -> None:
    target = opened("qwen3_5_moe")
    learner = learner_of(target, **ARMS[name])
    export.write(tmp_path, learner.served(), learner.arm, target.shape, form=form, dtype=torch.float32)
    for drafter in (pair := drafters(target, learner, tmp_path)):
        feature = torch.randn(60, len(drafter.taps) * drafter.model.hidden, generator=torch.Generator().manual_seed(1))
        absorb(drafter, feature)
    assert (
        pair[0].taps == pair[1].taps
        and pair[0].block == pair[1].block
        and pair[0].config.mask_id == target.shape.mask_id
    )
    assert torch.equal(pair[0].hidden(17), pair[1].hidden(17))


@pytest.mark.parametrize("name", ["mixed", "dflash2"])
def test_zlabs_own_package_loads_the_files_and_drafts_the_same(opened, tmp_path: Path, name: str) -> None:
    target = opened("qwen3_5_moe")
    learner = learner_of(target, **ARMS[name])
    export.write(tmp_path / "drafter", learner.served(), learner.arm, target.shape, dtype=torch.float32)
    _, drafter = drafters(target, learner, tmp_path / "drafter")
    model = drafter.model
    scenario = {
        "embedding": model.embedding,
        "head": model.head,
        "rounds": rounds(drafter, 8),
        "second": name == "dflash2",
    }
    torch.save(scenario, tmp_path / "scenario.pt")
    command = [oracle_python(), ORACLE, tmp_path / "drafter", tmp_path / "scenario.pt", tmp_path / "result.pt"]
    subprocess.run([str(part) for part in command], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    theirs = torch.load(tmp_path / "result.pt")
    assert tuple(theirs["taps"]) == drafter.taps and theirs["block"] == drafter.block
    for (features, anchor, rows), (hidden, _, drafts) in zip(scenario["rounds"], theirs["rounds"], strict=True):
        with torch.inference_mode():
            absorb(drafter, features)
            assert float((drafter.hidden(anchor, rows)[1:] - hidden).abs().max()) < 1e-4
            if rows == drafter.block:
                tokens = [0] * drafter.position + [anchor]
                assert drafter.propose(tokens, rows - 1, lambda row, _: int(row.argmax())) == drafts.tolist()


def test_speculators_own_package_loads_the_files(fabricated, opened, tmp_path: Path) -> None:
    target = opened("qwen3")
    learners = [learner_of(target, attention="mixed", window=24, layers=3), learner_of(target, vocabulary=40)]
    folders = [
        export.write(
            tmp_path / str(number), learner.served(), learner.arm, target.shape, form="speculators",
            verifier=str(fabricated("qwen3").target), vocabulary=learner.vocabulary, head=target.module.lm_head.weight,
        )
        for number, learner in enumerate(learners)
    ]  # fmt: skip
    command = [oracle_python(SPECULATORS), SPECULATORS_ORACLE, tmp_path / "r.json", *folders]
    subprocess.run([str(part) for part in command], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    borrowed = ["embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight", "verifier_norm.weight"]
    mixed, smaller = json.loads((tmp_path / "r.json").read_text())
    for learner, theirs in zip(learners, (mixed, smaller), strict=True):
        assert theirs["no_place_for"] == theirs["changed"] == []
        assert theirs["layers"] == [tap + 1 for tap in learner.module.config.taps]  # they count the embedding
        assert theirs["block"] == learner.arm.block and theirs["mask"] == target.shape.mask_id
    assert mixed["not_stored"] == borrowed and mixed["sliding"] == [0, 1]
    assert smaller["not_stored"] == [name for name in borrowed if name != "lm_head.weight"]
    assert (mixed["draft_vocabulary"], smaller["draft_vocabulary"]) == (target.shape.vocab, 40)


@torch.inference_mode()
def test_a_smaller_vocabulary_is_written_with_its_maps_and_drafts_only_from_it(opened, tmp_path: Path) -> None:
    target = opened("llama")
    learner = learner_of(target, vocabulary=40)
    assert learner.vocabulary is not None
    export.write(
        tmp_path, learner.module, learner.arm, target.shape, form="speculators", dtype=torch.float32,
        vocabulary=learner.vocabulary, head=target.module.lm_head.weight,
    )  # fmt: skip
    pair = drafters(target, learner, tmp_path)
    drafts = []
    for drafter in pair:
        absorb(drafter, torch.ones(5, len(drafter.taps) * drafter.model.hidden))
        drafts.append(drafter.propose([0] * 5 + [11], 7, lambda row, _: int(row.argmax())))
    assert drafts[0] == drafts[1] and set(drafts[0]) <= set(learner.vocabulary.ids.tolist())


def test_zlabs_format_refuses_a_smaller_vocabulary(opened, tmp_path: Path) -> None:
    learner = learner_of(opened("llama"), vocabulary=40)
    with pytest.raises(NodeError, match="speculators"):
        export.write(tmp_path, learner.served(), learner.arm, opened("llama").shape, vocabulary=learner.vocabulary)


def test_nothing_of_the_targets_rope_is_inherited(opened) -> None:
    """Known trap: a quarter-width or multi-section rope in the drafter's config (Speculators#613)."""
    target = opened("qwen3_5_moe")
    assert target.config.rope_parameters["partial_rotary_factor"] == 0.25
    for config in (
        export.zlab_config(arms.made({}), target.shape),
        export.speculators_config(arms.made({}), target.shape, "x")["transformer_layer_config"],
    ):
        text = json.dumps(config)
        assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 1e7}
        assert "partial" not in text and "mrope" not in text


def test_the_mask_is_an_id_that_no_text_has(opened) -> None:
    target = opened("qwen3_5_moe")
    assert target.shape.mask_id == target.ids.known_ids < target.ids.vocab
