"""DFlash 2 on the fast engine, against the reference's drafter."""

import copy

import pytest
import torch

from inference_node.fast.dflash2 import SelectingDrafter
from inference_node.fast.parts import Parts
from inference_node.kernels.triton import block_conv, candidate_walk
from inference_node.lab import lossless
from inference_node.lab.oracles import Oracle
from inference_node.speculate.seam import Sampling
from tests.inference_node.helpers import generate, prompt
from tests.inference_node.kernels.triton.helpers import close, is_a_kernel

START = prompt(70)
WARM = Sampling(temperature=3.0, seed=8)


@torch.inference_mode()
@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("family", "draft", "length"), [("qwen3", "dflash2", 1), ("qwen3_5_moe", "speculators-dflash2", 70)]
)
def test_its_drafts_are_the_references(fast, loaded, monkeypatch, sampling, family, draft, length):
    """In fp32 only the order of sums differs. The fast drafter's context comes from cycles that accepted some drafts
    and refused others, the reference's from a prefill."""
    ours, theirs = fast(family, draft).target, loaded(family, draft).target
    line = prompt(length, seed=3)
    line += generate(ours, line, sampling, 40, draft=False)
    drafter = theirs.pair.drafter
    propose, proposed = drafter.propose, []
    monkeypatch.setattr(drafter, "propose", lambda *given: proposed.append(propose(*given)) or proposed[-1])
    for end in (length, length + 11, length + 40):
        if end > length:
            monkeypatch.setattr(ours, "host_drafter", Oracle("right then wrong", line, 504, 8))
            assert generate(ours, line[:length], sampling, end - length) == line[length:end]
            monkeypatch.setattr(ours, "host_drafter", None)
        else:
            ours.reset()
            ours.prefill(line[: end - 1])
        ours.begin(line[:end], sampling, budget=9)
        ours.runner.pieces["draft"]()
        theirs.reset()
        theirs.prefill(line[: end - 1])
        theirs.begin(line[:end], sampling, budget=9)
        theirs.cycle().read()
        assert ours.runner.shared.block[1:].tolist() == proposed[-1]


@pytest.mark.parametrize("rollback", ["fold", "snapshots", "replay"])
@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "sampled"])
def test_text_with_it_is_the_text_without(fast, rollback, sampling):
    for number, (family, weights) in enumerate([("qwen3_5", "bf16"), ("qwen3_5_moe", "fp32")]):
        width = lossless.FAST_WIDTHS[number + 1]
        target = fast(family, "dflash2", weights, rollback, width=width).target
        plain = generate(target, START, sampling, 16, draft=False)
        assert generate(target, START, sampling, 16, poison=lossless.POISONS) == plain, (family, weights, width)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_other_families_too(fast, family):
    target = fast(family, "dflash2", "bf16").target
    for sampling in (Sampling(), Sampling(temperature=0.7, seed=3)):
        assert generate(target, START, sampling, 12) == generate(target, START, sampling, 12, draft=False)


@torch.inference_mode()
def test_in_kernels_it_drafts_what_it_does_in_their_twins(fast):
    target = fast("qwen3_5_moe", "dflash2").target
    target.reset()
    target.prefill(START[:-1])
    target.begin(START, WARM, budget=9)
    runner = target.runner
    plain, s, table = runner.drafter, runner.shared, runner.table
    assert is_a_kernel(block_conv._block_conv) and is_a_kernel(candidate_walk._walk)
    model = copy.copy(runner.model)
    model.parts = Parts(runner.device, plain=False)
    kernels = SelectingDrafter(
        plain.second, plain.weights, plain.config, plain.rope, plain.bounds, plain.embedding, model.head_weight,
        model.parts,
    )  # fmt: skip
    left = []
    for drafter in (plain, kernels):
        s.block[1:] = drafter.mask
        drafter.run(s, table, model.sampling, own_noise=True)
        left.append((s.block.clone(), s.confidence.clone(), drafter.normed.clone()))
    assert torch.equal(left[0][0], left[1][0]) and (left[0][0][1:] != plain.mask).any()
    for found, expected in zip(left[1][1:], left[0][1:], strict=True):
        assert close(found, expected, 1e-4)
