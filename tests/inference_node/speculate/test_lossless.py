"""The promise: with the same seed, the same text, whoever drafts. And proof that the check can fail."""

import pytest
import torch

from inference_node.lab import lossless
from inference_node.lab.oracles import Oracle
from inference_node.speculate.seam import Sampling
from inference_node.state import recurrent
from inference_node.state.recurrent import RecurrentState, Snapshots
from tests.inference_node.helpers import generate, prompt

# A tenth of what is recorded in docs/figures/lossless.json by the same code.
TOKENS_IN_CI = 10_000


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_text_is_the_same_for_every_drafter_setting_type_and_family(tmp_path):
    lossless.quieten()
    tally, margins = lossless.compare(tmp_path, TOKENS_IN_CI)
    assert tally.tokens >= TOKENS_IN_CI
    assert tally.mismatches == 0, tally.parted
    assert tally.accepted > TOKENS_IN_CI / 5, "drafts were in play"
    # In fp32 ours and transformers' forwards differ by rounding only; logits have a standard deviation of 8.
    assert margins["fp32_worst_margin"] < 1e-3
    # In bf16 ours stays within what transformers' own bf16 does to the same text, twice over: rounding, not a bug.
    assert margins["bf16_disagreement"] < 2 * margins["transformers_bf16_disagreement"] + 0.01


def test_counts_of_several_processes_are_added_up():
    """Worst margins too: of the same kind of arithmetic the larger one stays."""
    whole, other = lossless.Tally(), lossless.Tally()
    whole.add("first", [1, 2, 3], [1, 2, 3], cycles=2, accepted=1)
    other.add("second", [1, 2, 3], [1, 9, 3], cycles=3, accepted=2)
    whole.join(other)
    assert (whole.tokens, whole.mismatches, whole.cycles, whole.accepted, whole.cells) == (6, 1, 5, 3, 2)
    assert whole.parted == ["second: first at token 1"]
    one, two = (lossless.Margins({"float32": 4}, {"float32": 1}, {"float32": worst}) for worst in (0.5, 0.25))
    one.join(two)
    assert one.figures() == {"fp32_worst_margin": 0.5, "fp32_disagreement": 0.25}


class Forgetful(Snapshots):
    """A rollback that reports success and restores nothing: the state keeps every drafted row."""

    def after(self, rows: int, before: RecurrentState) -> RecurrentState:
        return super().after(len(self.states[0]), before)


class ForgetsConv(Snapshots):
    """The matrix goes back, the convolution's inputs do not."""

    def after(self, rows: int, before: RecurrentState) -> RecurrentState:
        right, wrong = super().after(rows, before), super().after(len(self.states[0]), before)
        return RecurrentState(wrong.conv, right.delta)


@pytest.mark.parametrize("bug", [Forgetful, ForgetsConv])
@pytest.mark.parametrize("family", ["qwen3_5_moe", "qwen3_5"])
def test_a_planted_state_that_keeps_refused_drafts_fails_the_check(loaded, monkeypatch, family, bug):
    """Bug class: rollback that restores nothing (z-lab#172, transformers#49036, mlx-lm#846)."""
    target = loaded(family, "none", "fp32").target
    start = prompt(100)
    plain = generate(target, start, Sampling(), 60, draft=False)
    monkeypatch.setattr(recurrent, "notes", lambda rollback, fold: bug())
    monkeypatch.setattr(target.pair, "drafter", Oracle("right then wrong", [*start, *plain], 504, 8))
    tally = lossless.Tally()
    tally.add("planted", plain, generate(target, start, Sampling(), 60), 1, 0)
    assert tally.mismatches > 0


def test_the_planted_state_shows_in_the_margins_too(loaded, fabricated, monkeypatch):
    target = loaded("qwen3_5", "none", "fp32").target
    start = prompt(100)
    plain = generate(target, start, Sampling(), 60, draft=False)
    monkeypatch.setattr(recurrent, "notes", lambda rollback, fold: Forgetful())
    monkeypatch.setattr(target.pair, "drafter", Oracle("always wrong", [*start, *plain], 504, 8))
    broken = generate(target, start, Sampling(), 60)
    exact = lossless.transformers_logits(fabricated("qwen3_5").target, torch.float32, lossless.Plain(start, broken))
    margin = exact.max(-1).values - exact.gather(-1, torch.tensor(broken)[:, None])[:, 0]
    assert float(margin.max()) > 0.5, "far beyond rounding"


@pytest.mark.parametrize("family", ["qwen3_5_moe", "llama", "qwen3_moe"])
@pytest.mark.parametrize("draft", ["april", "dflash2", "speculators-reduced"])
def test_text_does_not_depend_on_the_drafters_format(loaded, family, draft):
    target = loaded(family, draft, "bf16").target
    start, sampling = prompt(70), Sampling(temperature=0.7, top_p=0.9, seed=21)
    assert generate(target, start, sampling, 24) == generate(target, start, sampling, 24, draft=False)


def test_text_does_not_depend_on_how_drafts_are_chosen(loaded):
    target = loaded("qwen3_5", "mtp", "fp32").target
    start, sampling = prompt(70), Sampling(temperature=1.0, seed=5)
    said = generate(target, start, sampling, 30)
    target.pair.own_noise = False
    try:
        assert generate(target, start, sampling, 30) == said
    finally:
        target.pair.own_noise = True


def test_penalties_see_the_drafted_prefix_at_each_row(loaded, monkeypatch):
    """Bug class: filters or penalties that a verify ignores (FujitsuPolycom/sparkring#161, lucebox#105)."""
    target = loaded("qwen3", "none", "fp32").target
    start = prompt(40)
    sampling = Sampling(temperature=0.8, seed=3, presence_penalty=1.5, frequency_penalty=0.7, repetition_penalty=1.2)
    plain = generate(target, start, sampling, 80, draft=False)
    assert plain != generate(target, start, Sampling(temperature=0.8, seed=3), 80, draft=False)
    for way in ("always right", "right then wrong"):
        monkeypatch.setattr(target.pair, "drafter", Oracle(way, [*start, *plain], 504, 8))
        assert generate(target, start, sampling, 80) == plain
