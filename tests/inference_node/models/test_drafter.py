"""The drafter's numbers against z-lab's own package, for each released revision of the file."""

import os
import subprocess
from pathlib import Path

import pytest
import torch

from inference_node.kernels.plain.block_attention import Visibility
from inference_node.models.target import Forwarded
from inference_node.speculate.dflash import DFlashDrafter
from inference_node.speculate.reference import ReferenceTarget
from tests.inference_node.helpers import prompt
from tests.inference_node.models.oracle_environment import oracle_python

ORACLE = Path(__file__).with_name("dflash_oracle.py")


@pytest.fixture(scope="session")
def zlab() -> Path:
    return oracle_python()


def drafter_of(target: ReferenceTarget) -> DFlashDrafter:
    target.reset()
    drafter = target.pair.drafter
    assert isinstance(drafter, DFlashDrafter)
    return drafter


def rounds(drafter: DFlashDrafter, block: int) -> list[tuple[torch.Tensor, int, int]]:
    """A prompt past the window, then ragged advances, then blocks that get shorter towards a budget's end."""
    generator = torch.Generator().manual_seed(11)
    width = len(drafter.taps) * drafter.model.hidden
    advances = [
        (40, block),
        (1, block),
        (block, block),
        (3, block),
        (block, block),
        (270, block),
        (2, 5),
        (4, 3),
        (1, 2),
    ]
    return [
        (torch.randn(rows, width, generator=generator), int(torch.randint(490, (1,), generator=generator)), size)
        for rows, size in advances
    ]


def absorb(drafter: DFlashDrafter, features: torch.Tensor) -> None:
    taps = features.view(features.shape[0], len(drafter.taps), -1)
    drafter.absorb(drafter.position, [0] * len(features), Forwarded(features[:, :1], taps, ()))


@pytest.mark.parametrize("revision", ["april", "april-2", "june", "dflash2"])
def test_hidden_states_logits_and_drafts_are_those_of_zlabs_package(loaded, fabricated, zlab, tmp_path, revision):
    drafter = drafter_of(loaded("qwen3_5_moe", revision).target)
    model, second = drafter.model, revision == "dflash2"
    scenario = {
        "embedding": model.embedding,
        "head": model.head,
        "rounds": rounds(drafter, drafter.block),
        "second": second,
    }
    torch.save(scenario, tmp_path / "scenario.pt")
    command = [
        zlab,
        ORACLE,
        fabricated("qwen3_5_moe", revision).drafter,
        tmp_path / "scenario.pt",
        tmp_path / "result.pt",
    ]
    subprocess.run([str(part) for part in command], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    theirs = torch.load(tmp_path / "result.pt")
    assert tuple(theirs["taps"]) == drafter.taps and theirs["block"] == drafter.block
    for (features, anchor, rows), (hidden, logits, drafts) in zip(scenario["rounds"], theirs["rounds"], strict=True):
        with torch.inference_mode():
            absorb(drafter, features)
            ours = drafter.hidden(anchor, rows)[1:]
        assert float((ours - hidden).abs().max()) < 1e-5
        with torch.inference_mode():
            mine = drafter.loaded.module.logits(ours, model.head)
        assert float((mine - logits).abs().max()) < 1e-5 * float(model.head.norm(dim=-1).max())
        if rows == drafter.block:
            tokens = [0] * drafter.position + [anchor]
            with torch.inference_mode():
                assert drafter.propose(tokens, rows - 1, lambda row, _: int(row.argmax())) == drafts.tolist()


@pytest.mark.parametrize(
    ("revision", "layers"),
    [
        ("april", [(None, False)] * 3),
        ("april-2", [(None, False)] * 3),
        ("june", [(24, True), (24, True), (None, False)]),
        ("dflash2", [(24, False)] * 3),
        ("speculators", [(24, True), (24, True), (None, False)]),
        ("speculators-dflash2", [(24, False)] * 3),
    ],
)
def test_each_revision_has_its_own_mask(loaded, revision, layers):
    """Bug class: all layers non-causal (llama.cpp), windows ignored (ik_llama.cpp#2021, sglang#34524, z-lab#170)."""
    config = drafter_of(loaded("qwen3_5_moe", revision).target).config
    assert [(layer.window, layer.causal) for layer in config.layers] == layers


def test_the_four_masks_are_those_of_the_table():
    position, keys = torch.tensor([10]), range(8, 14)

    def seen(how: Visibility) -> list[int]:
        from inference_node.kernels.plain.block_attention import Split

        mask = how.mask(position, 10, 10, Split(torch.zeros(1, 20, 1), torch.zeros(1, 20, 1), 0, 20))
        return [key for key in keys if mask is None or bool(mask[0, key])]

    assert seen(Visibility(causal=False)) == [8, 9, 10, 11, 12, 13]
    assert seen(Visibility(causal=True, window=2)) == [9, 10]
    assert seen(Visibility(causal=False, window=2)) == [9, 10, 11]
    assert seen(Visibility(causal=True)) == [8, 9, 10]


def test_speculators_form_of_a_file_gives_the_same_hidden_states(loaded):
    """Its layer numbers count the embedding: one more than z-lab's for the same layer."""
    zlab_form = drafter_of(loaded("qwen3_5_moe", "june").target)
    other = drafter_of(loaded("qwen3_5_moe", "speculators").target)
    assert zlab_form.taps == other.taps
    with torch.inference_mode():
        for features, anchor, _ in rounds(zlab_form, 8)[:3]:
            absorb(zlab_form, features)
            absorb(other, features)
            assert torch.equal(zlab_form.hidden(anchor), other.hidden(anchor))


def test_a_reduced_vocabulary_drafts_only_its_own_ids_of_the_target(loaded):
    """Bug class: a reduced vocabulary taken for the target's first rows."""
    drafter = drafter_of(loaded("qwen3_5_moe", "speculators-reduced").target)
    with torch.inference_mode():
        absorb(drafter, rounds(drafter, 8)[0][0])
        drafts = drafter.propose([0] * drafter.position + [5], 7, lambda row, _: int(row.argmax()))
        best = drafter.loaded.module.logits(drafter.hidden(5)[1:], drafter.loaded.head).argmax(-1)
    assert drafts == (best * 2).tolist(), "its row i stands for the target's id 2 * i"


def test_context_pages_past_the_window_are_given_back(loaded):
    """Bug class: one cache group for sliding and full layers of a drafter (vllm#47914)."""
    drafter = drafter_of(loaded("qwen3_5_moe", "june").target)
    with torch.inference_mode():
        for _ in range(5):
            absorb(drafter, torch.randn(200, len(drafter.taps) * drafter.model.hidden))
    full, sliding = drafter.tables
    assert [page is None for page in full.pages] == [False] * 4
    assert [page is None for page in sliding.pages] == [True, True, False, False]


def test_features_are_projected_before_they_are_normed_and_context_rows_skip_the_input_norm(loaded):
    drafter = drafter_of(loaded("qwen3_5_moe", "june").target)
    module, feature = drafter.loaded.module, torch.randn(4, len(drafter.taps) * drafter.model.hidden)
    with torch.inference_mode():
        before = module.context(feature, torch.arange(4), drafter.loaded.rope)
        for layer in module.layers:
            layer.input_layernorm.weight.mul_(2.0)
        after = module.context(feature, torch.arange(4), drafter.loaded.rope)
        for layer in module.layers:
            layer.input_layernorm.weight.mul_(0.5)
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(before, after, strict=True))


def test_the_drafter_always_reads_a_whole_block(loaded):
    """Its masks see each other, so a shorter block would change all its logits: only the verify shrinks."""
    target = loaded("qwen3_5_moe", "june").target
    drafter = drafter_of(target)
    target.prefill(prompt(50))
    tokens = [*target.pair.state.tokens, 5]
    with torch.inference_mode():
        long = drafter.propose(tokens, 7, lambda row, _: int(row.argmax()))
        short = drafter.propose(tokens, 2, lambda row, _: int(row.argmax()))
    assert short == long[:2]
