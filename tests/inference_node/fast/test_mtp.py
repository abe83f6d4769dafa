"""The model's own multi-token head on the fast engine, against the reference's."""

import copy
import sys

import pytest
import torch

from inference_node.fast.mtp import MtpDrafter
from inference_node.fast.parts import Parts
from inference_node.lab import lossless
from inference_node.lab.oracles import Oracle
from inference_node.speculate.seam import Cut, Sampling
from tests.inference_node.helpers import generate, prompt
from tests.inference_node.kernels.triton.helpers import close, is_a_kernel

START = prompt(70)
HOT = Sampling(temperature=12.0, seed=8)
"""A random head agrees with a random model by the noise alone that both are given: hot enough, every other time."""


def cycles(target, tokens, sampling, budget, **options):
    results: list = []
    generate(target, tokens, sampling, budget, results=results, **options)
    return [(result.tokens, result.offered, result.accepted) for result in results]


@pytest.mark.parametrize(("family", "length"), [("qwen3_5", 1), ("qwen3_5", 2), ("qwen3_5", 257), ("qwen3_5_moe", 70)])
def test_its_drafts_are_the_references(fast, loaded, family, length):
    """In fp32 only the order of sums differs. Cycles that accept some drafts and refuse others follow each other, so
    keys of refused rows, the row that waits and the one position between head and target are all in it."""
    tokens = prompt(length, seed=3)
    ours = cycles(fast(family, "mtp").target, tokens, HOT, 40)
    assert ours == cycles(loaded(family, "mtp").target, tokens, HOT, 40)
    accepted = {count for _, _, count in ours}
    assert accepted & {1, 2, 3} and 0 in accepted, "some accepted, some refused"


@pytest.mark.parametrize("rollback", ["fold", "snapshots", "replay"])
@pytest.mark.parametrize("sampling", [Sampling(), HOT], ids=["greedy", "sampled"])
def test_text_with_it_is_the_text_without(fast, rollback, sampling):
    for number, (family, weights) in enumerate([("qwen3_5", "fp32"), ("qwen3_5", "bf16"), ("qwen3_5_moe", "bf16")]):
        width = lossless.FAST_WIDTHS[number % len(lossless.FAST_WIDTHS)]
        target = fast(family, "mtp", weights, rollback, width=width).target
        plain = generate(target, START, sampling, 16, draft=False)
        assert generate(target, START, sampling, 16, poison=lossless.POISONS) == plain, (family, weights, width)


def test_after_a_truncation_and_cycles_without_drafts_it_drafts_as_from_nothing(fast):
    """Its keys and the row that waits follow the target's rows, whoever drafted them."""
    target = fast("qwen3_5", "mtp").target
    plain = generate(target, START, HOT, 30, draft=False)
    whole = [*START, *plain]
    assert target.position == len(whole) - 1
    target.reset()
    target.prefill(START[:-1])
    target.begin(START, HOT, budget=30)
    while target.position < 90:
        target.cycle().read()
    back = target.floor + 1
    target.truncate(back)
    target.begin(whole[: back + 1], HOT, budget=4)
    once = target.cycle().read()
    assert cycles(target, whole[: back + 1], HOT, 4)[0] == (once.tokens, once.offered, once.accepted)


def test_a_checkpoint_at_the_end_of_a_page_is_not_changed_by_what_follows(fast):
    """The head's last row below a checkpoint depends on the token after it, which each continuation has for itself."""
    target = fast("qwen3_5", "mtp").target
    line = prompt(256, seed=5)
    target.reset()
    target.prefill(line)
    kept = target.checkpoint()
    said = {}
    for token in (3, 4, 3):
        target.restore(kept)
        target.prefill([token, *prompt(300, seed=6)])
        longer = target.checkpoint()
        target.restore(kept)
        target.begin([*line, 9], HOT, budget=8)  # writes at the end of a page that `longer` holds too
        while target.cycle().read().cut is not Cut.IDLE:
            pass
        target.restore(longer)
        last = target.runner.table.held[0]
        page = target.runner.table.pages.pools[1][last, :, :, :, 255].clone()
        assert torch.equal(said.setdefault(token, page), page)
        longer.release()
    assert not torch.equal(said[3], said[4])
    kept.release()


def test_drafts_from_the_host_leave_its_keys_right(fast, monkeypatch):
    target = fast("qwen3_5", "mtp").target
    plain = generate(target, START, Sampling(), 16, draft=False)
    monkeypatch.setattr(target, "host_drafter", Oracle("right then wrong", [*START, *plain], 504, 8))
    assert generate(target, START, Sampling(), 16) == plain
    monkeypatch.setattr(target, "host_drafter", None)
    target.truncate(target.floor)
    line = [*START, *plain][: target.position + 1]
    target.begin(line, HOT, budget=4)
    once = target.cycle().read()
    assert cycles(target, line, HOT, 4)[0] == (once.tokens, once.offered, once.accepted)


@torch.inference_mode()
def test_in_kernels_it_leaves_and_drafts_what_it_does_in_their_twins(fast):
    """One row at a time through the layer, and keys and values alone for a block and for a prompt."""
    runner = fast("qwen3_5_moe", "mtp").target.runner
    plain, s, table, sampling = runner.drafter, runner.shared, runner.table, runner.model.sampling
    target = copy.copy(runner.model)
    target.parts = Parts(runner.device, plain=False)
    kernels = MtpDrafter(plain.weights, target, plain.block)
    assert is_a_kernel(sys.modules[kernels.parts.linear.__module__]._linear)
    runner.reset()
    runner.begin(start=39, anchor=7, budget=9, stop_ids=(), sampling=HOT, prompt=(), output=(), width=4,
                 filtered=False, constrained=False)  # fmt: skip
    table.open(0, 60)
    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(490, (41,), generator=random, dtype=torch.int32)
    outputs = torch.randn(41, 1, runner.model.sizes.hidden, generator=random)
    left: list[tuple[torch.Tensor, ...]] = []
    for drafter in (plain, kernels):
        drafter.ring.zero_()
        table.poison(0, float("nan"))
        s.block[1:] = 0
        for start, rows, valid in ((0, 33, 33), (33, 8, 6)):
            part = slice(start, start + rows)
            words = (torch.tensor([number], dtype=torch.int32) for number in (start, valid))
            drafter.absorb(tokens[part], outputs[part], *words, table)
        drafter.run(s, table, sampling, own_noise=True)
        page = table.pages.pools[1][table.held[0]]
        assert not page[:, :, :, :41].isnan().any() and page[:, :, :, 41:].isnan().all()
        left.append((s.block.clone(), s.confidence[:3].clone(), drafter.ring[9:].clone(), page.clone()))
    assert torch.equal(left[0][0], left[1][0]) and (left[0][0][1:4] > 0).any()
    for found, expected in zip(left[1][1:], left[0][1:], strict=True):
        assert close(found, expected, 1e-4)
