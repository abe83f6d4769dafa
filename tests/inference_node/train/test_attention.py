"""A block in training sees what it sees in serving: the two forwards are compared, block by block."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters

from inference_node.models.draft_config import DraftLayer
from inference_node.models.target import Forwarded
from inference_node.speculate.dflash import DFlashDrafter
from inference_node.train import arm as arms
from inference_node.train import attention
from inference_node.train.batch import Batch, pack
from inference_node.train.step import Learner
from tests.inference_node.train.conftest import random_samples

LENGTHS = (45, 30, 70)


def drafter_of(loaded, revision: str) -> DFlashDrafter:
    target = loaded("qwen3_5_moe", revision).target
    target.reset()
    return target.pair.drafter


def learner_of(drafter: DFlashDrafter, **arm: object) -> Learner:
    made = arms.made({"block": drafter.block, "rows": 160, "anchors": 24, **arm})
    return Learner(drafter.loaded.module, drafter.loaded.rope, made, drafter.model.embedding, drafter.model.head)


def batch_and_features(learner: Learner) -> tuple[Batch, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    batch = pack(random_samples(LENGTHS), learner.arm, generator)
    width = len(learner.module.config.taps) * learner.module.config.hidden
    return batch, torch.randn(learner.arm.rows, width, generator=generator)


def served(drafter: DFlashDrafter, feature: torch.Tensor, anchor: int) -> torch.Tensor:
    """The block's hidden rows as the node computes them, behind these features."""
    drafter.reset()
    taps = feature.view(feature.shape[0], len(drafter.taps), -1)
    if len(taps):
        drafter.absorb(0, [0] * len(taps), Forwarded(taps[:, 0], taps, ()))
    return drafter.hidden(anchor)


@pytest.mark.parametrize(("flex", "room"), [(False, 0), (True, 0), (False, 1 << 24)], ids=["plain", "flex", "by text"])
@pytest.mark.parametrize("revision", ["april-2", "june", "dflash2"])
@torch.inference_mode()
def test_a_block_has_the_hidden_rows_that_serving_gives_it(loaded, revision: str, flex: bool, room: int) -> None:
    """Windows, causality, positions of packed samples, convolutions: whatever differs would show."""
    drafter = drafter_of(loaded, revision)
    learner = learner_of(drafter)
    learner.flex, learner.room = flex, room
    batch, feature = batch_and_features(learner)
    hidden = learner.hidden(batch, feature)
    compared = set()
    for block in range(0, int(batch.real.sum()), 3):
        place = int(batch.anchor[block])
        start = place - int(batch.position[place])
        theirs = served(drafter, feature[start:place], int(batch.tokens[place]))
        assert float((hidden[block] - theirs).abs().max()) < 2e-4 * float(theirs.abs().max())
        compared.add(int(batch.document[place]))
    assert compared == {0, 1, 2}


@torch.inference_mode()
def test_a_block_does_not_see_its_anchors_feature_nor_any_after_it(loaded) -> None:
    """Known trap: seeing it, training looks well and serving accepts next to nothing (SpecForge#455)."""
    learner = learner_of(drafter_of(loaded, "april-2"))
    batch, feature = batch_and_features(learner)
    before = learner.hidden(batch, feature)
    block = int(batch.real.sum()) // 2
    place = int(batch.anchor[block])
    changed = feature.clone()
    changed[place:] += 1.0
    assert torch.equal(learner.hidden(batch, changed)[block], before[block])
    changed = feature.clone()
    changed[place - 1] += 1.0
    assert not torch.equal(learner.hidden(batch, changed)[block], before[block])


@torch.inference_mode()
def test_a_block_sees_no_other_sample_and_no_other_block(loaded) -> None:
    learner = learner_of(drafter_of(loaded, "april-2"))
    batch, feature = batch_and_features(learner)
    before = learner.hidden(batch, feature)
    first = batch.document == 0
    changed = feature.clone()
    changed[first] += 1.0
    of = batch.document[batch.anchor] == 0
    after = learner.hidden(batch, changed)
    assert torch.equal(after[~of & batch.real], before[~of & batch.real])
    assert not torch.equal(after[of & batch.real], before[of & batch.real])


@pytest.mark.parametrize("window", [None, 12], ids=["all", "window"])
@pytest.mark.parametrize("causal", [False, True], ids=["both-ways", "causal"])
def test_text_by_text_attention_and_its_gradients_are_those_of_a_whole_mask(window: int | None, causal: bool) -> None:
    batch = pack(random_samples(LENGTHS), arms.made({"block": 4, "rows": 160, "anchors": 24}), generator())
    layer, (blocks, block) = DraftLayer(window=window, causal=causal), batch.masked.shape
    found = []
    for room in (0, 1 << 24):
        q, k, v = (torch.randn(blocks, block, n, 16, generator=generator(), requires_grad=True) for n in (4, 2, 2))
        keys = [torch.randn(160, 2, 16, generator=generator(), requires_grad=True) for _ in range(2)]
        read = attention.over(batch, [layer], [tuple(keys)], flex=False, room=room)(0, q, k, v)
        (read[batch.real] ** 2).sum().backward()
        found.append([read[batch.real], *(one.grad for one in (q, k, v, *keys))])
    for plain, gathered in zip(*found, strict=True):
        assert torch.allclose(plain, gathered, atol=1e-5)


def test_texts_stand_beside_each_other_only_where_there_is_room_for_it(monkeypatch) -> None:
    batch = pack(random_samples(LENGTHS), arms.made({"block": 4, "rows": 160, "anchors": 24}), generator())
    asked = []
    monkeypatch.setattr(attention, "_by_text", lambda *given: asked.append(given))
    keys = [tuple(torch.zeros(160, 2, 16) for _ in range(2))]
    slots = 4 * max(int((batch.document[batch.anchor[batch.real]] == text).sum()) for text in range(len(LENGTHS)))
    needed = len(LENGTHS) * (max(LENGTHS) + slots) * (slots * (1 + 4) + 2 * 2 * 16 * 4)
    for room in (needed, needed - 1):
        attention.over(batch, [DraftLayer(None, True)], keys, flex=False, room=room)
    assert len(asked) == 1


def test_attention_is_compiled_once_for_all_texts_of_a_shape_and_never_given_up_in_silence(monkeypatch) -> None:
    """Known trap: after eight shapes torch goes on without compiling, with all scores in memory, and only warns."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    monkeypatch.setattr(attention, "FORMS", 2)
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=False), torch.no_grad():
        parts = attention._flex_parts.__wrapped__(True)
        monkeypatch.setattr(attention, "_flex_parts", lambda compiled: parts)
        for rows, forms in ((160, 1), (192, 2)):
            arm = arms.made({"block": 4, "rows": rows, "anchors": 8})
            for seed in range(2):
                batch = pack(random_samples(LENGTHS, seed=seed), arm, torch.Generator().manual_seed(seed))
                plain, flex = (attended(batch, flex=flex) for flex in (False, True))
                assert torch.allclose(plain[batch.real], flex[batch.real], atol=1e-5)
            assert counters["stats"]["unique_graphs"] == 2 * forms, "a mask and an attention for each"
        with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
            attended(
                pack(random_samples(LENGTHS), arms.made({"block": 4, "rows": 224, "anchors": 8}), generator()),
                flex=True,
            )
    torch._dynamo.reset()


def attended(batch: Batch, *, flex: bool) -> torch.Tensor:
    """One layer over random rows, which depend on the shapes alone."""
    rows, (blocks, block) = len(batch.tokens), batch.masked.shape
    q, *kv = (torch.randn(blocks, block, heads, 16, generator=generator()) for heads in (4, 2, 2))
    keys = [tuple(torch.randn(rows, 2, 16, generator=generator()) for _ in range(2))]
    return attention.over(batch, [DraftLayer(window=None, causal=True)], keys, flex=flex)(0, q, *kv)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(4)
