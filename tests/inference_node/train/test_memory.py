"""The prediction of memory: exact where it says so, near for what a backward pass keeps; 16 GB for the big pair."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference_node.lab.shapes import QWEN36_35B_A3B
from inference_node.train import arm as arms
from inference_node.train import run
from inference_node.train.batch import batches
from inference_node.train.export import TargetShape
from inference_node.train.features import LocalTarget
from inference_node.train.memory import predicted
from tests.inference_node.train.conftest import random_samples

BIG = TargetShape(
    hidden=QWEN36_35B_A3B.hidden, layers=40, heads=32, kv_heads=8, head_dim=128, intermediate=6144,
    vocab=QWEN36_35B_A3B.vocab, positions=262144, mask_id=248077,
)  # fmt: skip


def kept_bytes(function) -> int:
    """Bytes of the distinct storages that autograd keeps while the function runs."""
    seen: dict[int, int] = {}
    held = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        held.append(tensor)  # so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function()
    return sum(seen.values())


@pytest.mark.parametrize("keys", [{}, {"loss": "kl", "layers": 3}, {"block": 16, "anchors": 12}])
def test_what_a_step_keeps_is_what_was_predicted(opened, keys) -> None:
    target = opened("llama")
    samples = random_samples((60, 70, 50))
    arm = arms.made(
        {"rows": 200, "anchors": 40, "intermediate": 192, "heads": 4, "kv_heads": 2, "head_dim": 32, **keys}
    )
    source = LocalTarget(target.module, arm.tapped(target.shape.layers), last=arm.loss != "data")
    learner = run.new_learner(arm, target.shape, source, samples, target.device, flex=False)
    told = predicted(arm, target.shape, remote=False, flex=False)
    weights = sum(weight.nbytes for weight in learner.module.parameters())
    assert told.held["weights"] == told.held["gradients"] == weights and told.held["moments"] == 2 * weights
    assert told.held["head"] == learner.head.nbytes and told.held["embedding"] == learner.embedding.nbytes
    batch = next(batches(samples, arm))
    states = source.states(batch.samples)
    kept = kept_bytes(lambda: learner.step(batch, states)) - weights - learner.head.nbytes
    assert 0.7 < (told.backward["blocks"] + told.backward["context"]) / kept < 1.4


def test_a_drafter_for_the_big_pair_fits_in_16_gb() -> None:
    arm = arms.made({"layers": 6, "taps": (1, 6, 11, 16, 22, 27, 32, 37), "block": 16, "rows": 3072, "anchors": 192})
    told = predicted(arm, BIG)
    assert 12e9 < told.total < 16e9, told.told()
    assert 370e6 < told.held["weights"] / 4 < 400e6
    assert predicted(arm.model_copy(update={"anchors": 512}), BIG).total > 16e9
    assert "anchors (192)" in told.advice(arm)


def test_more_of_anything_needs_more() -> None:
    small = arms.made({"layers": 2, "rows": 512, "anchors": 32})
    base = predicted(small, BIG).total
    for change in ({"layers": 3}, {"rows": 4096}, {"anchors": 256}, {"loss": "kl"}, {"kind": "dflash2"}):
        assert predicted(small.model_copy(update=change), BIG).total > base, change
    assert predicted(small.model_copy(update={"vocabulary": 32768}), BIG).total < base


def test_the_pages_table_is_what_is_predicted() -> None:
    page = (Path(__file__).parents[3] / "docs/drafters.md").read_text(encoding="utf-8")
    for layers, taps in ((6, (1, 6, 11, 16, 22, 27, 32, 37)), (5, 5)):
        for anchors in (64, 128, 192, 256):
            arm = arms.made({"layers": layers, "taps": taps, "block": 16, "rows": 3072, "anchors": anchors})
            whole = predicted(arm, BIG).total / 1e9
            less = predicted(arm.model_copy(update={"vocabulary": 32768}), BIG).total / 1e9
            count = taps if isinstance(taps, int) else len(taps)
            assert f"| {layers}, {count} | {anchors} | {whole:.1f} | {less:.1f} |" in page
