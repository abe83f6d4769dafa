"""The promise on the fast engine: with the same seed the same text, whoever drafts, however it rolls back or widens."""

import pytest
import torch

from inference_node.lab import lossless
from inference_node.lab.oracles import Oracle
from inference_node.speculate.seam import Cut, Sampling
from tests.inference_node.helpers import generate, prompt

START = prompt(70)


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=1.0, seed=12, top_p=0.95)], ids=["greedy", "T 1"]
)
def test_text_is_the_same_for_every_drafter_rollback_and_width(fast, monkeypatch, weights, sampling):
    plain = None
    accepted = 0
    for number, (rollback, width) in enumerate(
        (rollback, width) for rollback in lossless.FAST_ROLLBACKS for width in lossless.FAST_WIDTHS
    ):
        target = fast("qwen3_5_moe", "june", weights, rollback, width=width).target
        if plain is None:
            plain = generate(target, START, sampling, 24, draft=False)
        way = ("right then wrong", "dflash", "always right", "random")[number % 4]
        drafter = None if way == "dflash" else Oracle(way, [*START, *plain], 504, 8)
        monkeypatch.setattr(target, "host_drafter", drafter)
        results: list = []
        assert generate(target, START, sampling, 24, poison=lossless.POISONS, results=results) == plain, (
            rollback,
            width,
        )
        accepted += sum(result.accepted for result in results)
    assert accepted > 40, "drafts were in play"


def test_a_pair_from_files_is_counted_at_two_widths(fabricated, monkeypatch) -> None:
    monkeypatch.setattr(lossless, "FAST_ROLLBACKS", ("replay",))
    monkeypatch.setattr(lossless, "SETTINGS", lossless.SETTINGS[1:2])
    monkeypatch.setattr(lossless, "PROMPT", 20)
    pair = fabricated("qwen3")
    tally = lossless.compare_pair(str(pair.target), str(pair.drafter), 1, each=4)
    assert (tally.cells, tally.tokens, tally.mismatches) == (2, 8, 0)


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3", "qwen3_moe"])
def test_other_families_too(fast, family):
    target = fast(family, "june", "bf16").target
    for sampling in (Sampling(), Sampling(temperature=0.7, seed=3)):
        assert generate(target, START, sampling, 16) == generate(target, START, sampling, 16, draft=False)


@pytest.mark.parametrize("draft", ["april", "speculators", "speculators-reduced"])
def test_text_does_not_depend_on_the_drafters_format(fast, draft):
    target = fast("qwen3_5_moe", draft).target
    sampling = Sampling(temperature=0.7, top_p=0.9, seed=21)
    assert generate(target, START, sampling, 12) == generate(target, START, sampling, 12, draft=False)


@pytest.mark.parametrize("bug", ["folds everything", "folds nothing"])
def test_a_planted_fold_that_keeps_refused_drafts_or_loses_kept_ones_fails_the_check(fast, monkeypatch, bug):
    target = fast("qwen3_5_moe", "none").target
    plain = generate(target, START, Sampling(), 40, draft=False)
    step = target.runner.model.parts.delta_step

    def broken(x, b, a, rule, memory, slot, fold, valid, out, **options):
        wrong = torch.zeros_like(fold) if bug == "folds nothing" else torch.where(fold > 0, 8, fold).to(torch.int32)
        step(x, b, a, rule, memory, slot, wrong, valid, out, **options)

    monkeypatch.setattr(target, "host_drafter", Oracle("right then wrong", [*START, *plain], 504, 8))
    assert generate(target, START, Sampling(), 40) == plain
    monkeypatch.setattr(target.runner.model.parts, "delta_step", broken)
    assert generate(target, START, Sampling(), 40) != plain


def test_penalties_see_the_drafted_prefix_at_each_row(fast, monkeypatch):
    target = fast("qwen3", "none").target
    sampling = Sampling(temperature=0.8, seed=3, presence_penalty=1.5, frequency_penalty=0.7, repetition_penalty=1.2)
    plain = generate(target, START, sampling, 40, draft=False)
    assert plain != generate(target, START, Sampling(temperature=0.8, seed=3), 40, draft=False)
    for way in ("always right", "right then wrong"):
        monkeypatch.setattr(target, "host_drafter", Oracle(way, [*START, *plain], 504, 8))
        assert generate(target, START, sampling, 40) == plain


def forced(target, line: list[int], first: int) -> list[float]:
    """Log-probability of each token of `line` from `first` on, each decoded after the true ones."""
    target.reset()
    target.prefill(line[: first - 1])
    found: list[float] = []
    for at in range(first, len(line)):
        target.begin(line[:at], Sampling(logit_bias={line[at]: 1000.0}), budget=1, draft=False, logprobs=0)
        result = target.cycle().read()
        assert result.tokens == (line[at],) and result.cut in (Cut.NONE, Cut.BUDGET)
        found.append(result.logprobs[0].logprob)
    return found


@pytest.mark.parametrize(("weights", "bound"), [("fp32", 2e-4), ("bf16", 1.0)])
def test_teacher_forced_it_says_what_the_reference_says(fast, loaded, weights, bound):
    """fp32: only the order of sums differs. bf16: the reference rounds after every operation, the kernels less often;
    logits have a standard deviation of 8, and a mixture's worst case is a router's near tie that goes the other way."""
    line = prompt(110, seed=4)
    ours = torch.tensor(forced(fast("qwen3_5_moe", "none", weights).target, line, 80))
    theirs = torch.tensor(forced(loaded("qwen3_5_moe", "none", weights).target, line, 80))
    apart = (ours - theirs).abs()
    assert float(apart.median()) < bound / 4 and float(apart.quantile(0.9)) < bound
