"""One step's arithmetic: gradients taken while logits exist, and features brought to one size."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from inference_node.train import arm as arms
from inference_node.train import run
from inference_node.train.batch import Batch, batches
from inference_node.train.features import Kept, LocalTarget, States, column_scale, packed
from inference_node.train.loss import slot_loss, slot_weight, weighted_mean
from inference_node.train.step import Learner
from tests.inference_node.train.conftest import random_samples

SAMPLES = random_samples((60, 70, 50))


def learner_and_batch(opened, **keys: object) -> tuple[Learner, Batch, list[States]]:
    target = opened("llama")
    arm = arms.made({"rows": 200, "anchors": 40, "block": 4, **keys})
    source = LocalTarget(target.module, arm.tapped(target.shape.layers), last=True)
    learner = run.new_learner(arm, target.shape, source, SAMPLES, target.device, flex=False)
    batch = next(batches(SAMPLES, arm))
    return learner, batch, source.states(batch.samples)


@pytest.mark.parametrize("weighting", ["exp", "dpace"])
@pytest.mark.parametrize("loss", ["data", "teacher", "kl"])
def test_gradients_taken_with_the_logits_are_those_of_the_whole_loss(opened, loss: str, weighting: str) -> None:
    learner, batch, states = learner_and_batch(opened, loss=loss, weighting=weighting)
    parameters = list(learner.module.parameters())
    ours = torch.autograd.grad(learner.step(batch, states).loss, parameters)
    feature, last = packed(states, len(batch.tokens))
    hidden = learner.hidden(batch, feature)
    assert last is not None
    wanted = last[(batch.place - 1).clamp(min=0)].flatten(0, 1) @ learner.head.t()
    each, ce = slot_loss(
        loss, learner.module.logits(hidden.flatten(0, 1), learner.head), batch.labels.flatten(), wanted
    )
    shape = batch.labels.shape
    weight = slot_weight(learner.arm, batch.wanted, batch.masked, ce.detach().view(shape))
    whole = torch.autograd.grad(weighted_mean(each.view(shape), weight), parameters)
    for one, other in zip(ours, whole, strict=True):
        assert torch.allclose(one, other, atol=1e-6 + 1e-4 * float(other.abs().max()))


def test_columns_of_any_size_are_learnt_from_alike_and_the_served_drafter_reads_them_as_they_are(opened) -> None:
    """A target's states have columns hundreds of times larger than others: what is learnt first would be those."""
    learner, batch, states = learner_and_batch(opened)
    sizes = torch.exp2(torch.linspace(-6, 8, states[0].feature.shape[1]))
    states = [replace(one, feature=one.feature * sizes) for one in states]

    class Fixed:
        def states(self, samples: object) -> list[States]:
            return states

    scale = column_scale(Fixed(), SAMPLES)  # type: ignore[arg-type]
    spread = torch.cat([one.feature[1:] for one in states]).mul(scale).pow(2).mean(0).sqrt()
    assert float(spread.min()) > 0.7 and float(spread.max()) < 1.42
    feature, _ = packed(states, len(batch.tokens))
    trained = replace(learner, scale=scale)
    served = replace(learner, module=trained.served(), scale=None)
    with torch.no_grad():
        there, here = trained.hidden(batch, feature), served.hidden(batch, feature)
        assert torch.equal(there, here)
        assert float((there - replace(learner, scale=None).hidden(batch, feature)).abs().max()) > 0.01


def test_a_texts_states_are_computed_once_while_there_is_room(opened) -> None:
    inner = LocalTarget(opened("llama").module, (0, 2), last=True)
    asked: list[str] = []
    compute = inner.states

    def counted(samples):
        asked.extend(sample.id for sample in samples)
        return compute(samples)

    inner.states = counted  # type: ignore[method-assign]
    plain = compute(SAMPLES)
    size = plain[0].feature.nbytes + plain[0].last.nbytes  # type: ignore[union-attr]
    kept = Kept(inner, room=size + plain[2].feature.nbytes + plain[2].last.nbytes)  # type: ignore[union-attr]
    first, again = kept.states(SAMPLES), kept.states([SAMPLES[2], SAMPLES[1], SAMPLES[0], SAMPLES[0]])
    assert asked == ["s0", "s1", "s2", "s1"], "the second does not fit beside the first; the third does"
    for order, found in (((0, 1, 2), first), ((2, 1, 0, 0), again)):
        for number, states in zip(order, found, strict=True):
            assert torch.allclose(states.feature, plain[number].feature, atol=1e-5)
            assert torch.allclose(states.last, plain[number].last, atol=1e-5)
    held = kept.states(SAMPLES[:1])[0].feature
    assert held.untyped_storage().nbytes() == held.nbytes, "a view would hold every text that was computed with it"
