"""The loop: it ends where it would have ended, learns what can be learnt, and the real loop accepts what it learnt."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference_node.models.errors import NodeError
from inference_node.train import arm as arms
from inference_node.train import checkpoint, evaluate, run
from inference_node.train import collect as collecting
from inference_node.train import sample as samples
from inference_node.train.collect import Wanted, collect
from inference_node.train.features import States
from inference_node.train.prompts import Prompt
from inference_node.train.session import Session
from inference_node.train.target import OpenTarget, open_target
from tests.inference_node.train.conftest import random_samples

SHORT = {"block": 4, "rows": 96, "anchors": 16, "steps": 6, "warmup": 0.2}


def session_of(target: OpenTarget, **keys: object) -> Session:
    return Session.over(target, arms.made({**SHORT, **keys}), random_samples((30, 40, 50, 25)))


class Cut(Exception):
    """The power goes."""


@pytest.mark.parametrize("keys", [{}, {"loss": "kl", "attention": "mixed"}, {"kind": "dflash2", "weighting": "dpace"}])
def test_a_run_that_was_cut_off_ends_with_the_weights_of_one_that_was_not(
    opened, tmp_path: Path, monkeypatch, keys
) -> None:
    target = opened("llama")
    whole = session_of(target, **keys)
    whole.train(tmp_path / "whole")
    monkeypatch.setattr(run, "KEEP_EVERY_S", 0.0)
    cut = session_of(target, **keys)

    def told(line: run.Line) -> None:
        if line.step == 3:
            raise Cut

    with pytest.raises(Cut):
        cut.train(tmp_path / "cut", told=told, log_every=1)
    again = session_of(target, **keys)
    again.train(tmp_path / "cut", log_every=1)
    for name, weight in whole.learner.module.named_parameters():
        assert torch.equal(weight, dict(again.learner.module.named_parameters())[name]), name
    lines = run.read_log(tmp_path / "cut")
    assert [line.step for line in lines] == [1, 2, 3, 4, 5, 6]
    seen = [line.seen for line in lines]
    assert seen == sorted(set(seen)) and seen[-1] == run.read_log(tmp_path / "whole")[-1].seen


def test_a_run_that_is_interrupted_keeps_the_step_it_was_in(opened, tmp_path: Path) -> None:
    """Known loss: the last checkpoint of a run that was cut off at its time was two minutes old."""

    def told(line: run.Line) -> None:
        if line.step == 4:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        session_of(opened("llama")).train(tmp_path, told=told, log_every=1)
    assert torch.load(tmp_path / checkpoint.NAME, weights_only=True)["step"] == 4
    assert signal.getsignal(signal.SIGINT) is before


def test_a_finished_run_is_not_run_again(opened, tmp_path: Path) -> None:
    first = session_of(opened("llama")).train(tmp_path)
    assert session_of(opened("llama")).train(tmp_path) == first


def test_a_folder_with_another_arms_run_is_refused(opened, tmp_path: Path) -> None:
    session_of(opened("llama")).train(tmp_path)
    with pytest.raises(NodeError, match="rate is"):
        session_of(opened("llama"), rate=1e-3).train(tmp_path)


@pytest.mark.parametrize("change", ["another text", "another order", "one more held out"])
def test_a_run_does_not_go_on_with_other_texts(opened, tmp_path: Path, change: str) -> None:
    texts = random_samples((30, 40, 50, 25))
    session_of(opened("llama")).train(tmp_path)
    other = {"another text": random_samples((30, 40, 50, 26)), "another order": texts[::-1]}.get(change, texts)
    again = Session.over(opened("llama"), arms.made(SHORT), other, held_out=change == "one more held out")
    with pytest.raises(NodeError, match="over other texts"):
        again.train(tmp_path)


def test_a_run_does_not_go_on_in_front_of_another_target(opened, fabricated, tmp_path: Path) -> None:
    session_of(opened("llama")).train(tmp_path / "run")
    tuned = tmp_path / "tuned"
    shutil.copytree(fabricated("llama").target, tuned)
    weights = load_file(tuned / "model.safetensors")
    weights["model.layers.1.self_attn.q_proj.weight"] *= 1.01
    save_file(weights, tuned / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(NodeError, match="another target"):
        session_of(open_target(str(tuned))).train(tmp_path / "run")


def test_weights_of_a_loss_that_is_no_number_are_never_kept(opened, tmp_path: Path, monkeypatch) -> None:
    """Known trap: kept between two lines of the log, they are what the next start goes on from."""
    monkeypatch.setattr(run, "KEEP_EVERY_S", 0.0)
    session = session_of(opened("llama"))
    inner, asked = session.source.states, 0

    def states(of: Sequence[samples.Sample]) -> list[States]:
        nonlocal asked
        asked += 1
        found = inner(of)
        return [replace(one, feature=one.feature * torch.nan) for one in found] if asked == 3 else found

    monkeypatch.setattr(session.source, "states", states)
    with pytest.raises(NodeError, match="not a number at step 3"):
        session.train(tmp_path)
    held = torch.load(tmp_path / checkpoint.NAME, weights_only=True)
    assert held["step"] == 2 and all(bool(weight.isfinite().all()) for weight in held["module"].values())


def test_two_seeds_differ_in_weights_and_in_order(opened) -> None:
    one, other = session_of(opened("llama")), session_of(opened("llama"), seed=1)
    assert not torch.equal(one.learner.module.fc.weight, other.learner.module.fc.weight)


def test_samples_of_another_model_are_refused(opened) -> None:
    wrong = [samples.Sample("x", (1, 2, 9999), ((1, 3),))]
    with pytest.raises(NodeError, match='"x" has the id 9999'):
        Session.over(opened("llama"), arms.made(SHORT), wrong)


def test_a_sample_that_has_the_mask_in_it_is_refused(opened) -> None:
    mask = opened("llama").shape.mask_id
    wrong = [samples.Sample("x", (1, 2, mask), ((1, 3),))]
    with pytest.raises(NodeError, match="--mask-id"):
        Session.over(opened("llama"), arms.made(SHORT), wrong)


def test_rates_rise_and_then_fall_to_nothing() -> None:
    arm = arms.made({"steps": 100, "warmup": 0.1, "rate": 1.0})
    rates = [run.rate_at(arm, step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1) and max(rates) == pytest.approx(1.0) and rates[-1] < 0.001
    assert rates.index(max(rates)) in (9, 10)


@pytest.fixture(scope="session")
def own_texts(opened, tmp_path_factory: pytest.TempPathFactory) -> list[samples.Sample]:
    """64 texts that the small target wrote."""
    target = opened("llama")
    prompts = [Prompt(str(i), text=f"{i} lamp {7 * i} night") for i in range(64)]
    out = tmp_path_factory.mktemp("texts") / "s.jsonl"
    collect(prompts, collecting.here(target, target.files.tokenizer, Wanted(most=24)), out)
    return samples.read(out)


@pytest.mark.timeout(900)  # under a minute by itself
def test_a_drafter_learns_64_texts_by_heart_and_nearly_all_its_drafts_are_accepted(opened, own_texts, tmp_path) -> None:
    """Catches what no single check does: a shift, a wrong position, rope, mask or tap leaves the real loop near 1."""
    target = opened("llama")
    assert len(own_texts) >= 60
    arm = arms.made(
        {"block": 8, "rows": 256, "anchors": 96, "steps": 550, "rate": 8e-3, "weighting": "none", "intermediate": 256}
        | {"heads": 4, "kv_heads": 2, "head_dim": 32}
    )
    session = Session.over(target, arm, own_texts)
    session.train(tmp_path)
    forced = evaluate.forced(session.learner, session.source, own_texts)
    assert min(forced.accuracy) > 0.99, forced
    served = evaluate.pair(target, session.learner)
    answers = [
        evaluate.decode(served, sample.tokens[: sample.supervised[0][0]], most=len(sample.targets))
        for sample in own_texts[:24]
    ]
    assert evaluate.tau(answers) > 0.95 * arm.block
    for sample, answer in zip(own_texts, answers, strict=False):
        assert answer.tokens == sample.tokens[sample.supervised[0][0] :]
