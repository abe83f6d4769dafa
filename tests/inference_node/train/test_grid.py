"""Arms side by side: paired, resumable, judged in a loop that is the real one, and told on a page."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from typer.testing import CliRunner

from inference_node.models.errors import NodeError
from inference_node.train import arm as arms
from inference_node.train import collect as collecting
from inference_node.train import evaluate, grid, report, run
from inference_node.train import sample as samples
from inference_node.train.batch import batches
from inference_node.train.collect import Wanted, collect
from inference_node.train.command import app
from inference_node.train.judge import judge, learner_from
from inference_node.train.prompts import Prompt
from inference_node.train.replay import replay
from inference_node.train.sample import Sample
from inference_node.train.session import Session
from inference_node.train.target import OpenTarget
from tests.inference_node.train.conftest import random_samples

SHIPPED = Path(arms.__file__).parent / "arms"
TINY = {"block": 4, "rows": 192, "anchors": 48, "intermediate": 128, "heads": 4, "kv_heads": 2, "head_dim": 16}
TINY |= {"rate": 6e-3, "warmup": 0.1, "window": 64}


@pytest.fixture(scope="module")
def texts(opened, tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    """Texts that the small target wrote, in a file beside."""
    target = opened("llama")
    out = tmp_path_factory.mktemp("texts") / "s.jsonl"
    prompts = [Prompt(str(i), text=f"{i} lamp {7 * i} night") for i in range(20)]
    collect(prompts, collecting.here(target, target.files.tokenizer, Wanted(most=24)), out)
    return samples.read(out)


@pytest.fixture(scope="module")
def learnt(opened, texts, tmp_path_factory) -> Session:
    """A drafter that knows some of these texts."""
    session = Session.over(opened("llama"), arms.made({**TINY, "steps": 120}), texts)
    session.train(tmp_path_factory.mktemp("learnt"))
    return session


@pytest.mark.parametrize("arm", ["as it is", "a smaller vocabulary", "dflash2"])
def test_the_replayed_loop_is_the_real_one(opened, texts, learnt: Session, tmp_path: Path, arm: str) -> None:
    target, session = opened("llama"), learnt
    if arm != "as it is":
        keys = {"vocabulary": 200} if arm == "a smaller vocabulary" else {"kind": "dflash2"}
        session = Session.over(target, arms.made({**TINY, "steps": 25, **keys}), texts)
        session.train(tmp_path)
    told = replay(session.learner, session.source, texts)
    served = evaluate.pair(target, session.learner)
    for sample, one in list(zip(texts, told, strict=True))[:8]:
        first, end = sample.supervised[0]
        real = evaluate.decode(served, sample.tokens[:first], most=end - first)
        assert real.tokens == one.tokens and real.accepted == one.accepted
    assert arm != "as it is" or 1.3 < evaluate.tau(told) < 4


def test_files_of_a_drafter_are_judged_as_it_was_in_memory(opened, texts, learnt: Session, tmp_path: Path) -> None:
    target = opened("llama")
    last = run.Line(1, 0.0, 0.0, (), (), 0, 0.0)
    learnt.export(tmp_path / "d", "zlab", last)
    here = judge(learnt.learner, target, texts, name="here", loop=0)
    read = judge(learner_from(str(tmp_path / "d"), target), target, texts, name="read", loop=4, identical=2)
    assert evaluate.tau(read.replayed) == pytest.approx(evaluate.tau(here.replayed), rel=0.05)  # files are in bf16
    assert read.identical == (2, 2)
    assert 1 + sum(read.survival) == pytest.approx(evaluate.tau(read.replayed))


def test_an_arm_of_any_loss_is_judged_and_keeps_the_keys_of_its_training(opened, texts, tmp_path: Path) -> None:
    """KL needs the target's last states in training and has none when it is judged; a held text may be longer."""
    rows = max(len(one.tokens) for one in texts) - 1
    keys = {**TINY, "rows": rows, "steps": 2}
    chosen = [arms.made({**keys, "name": "kl", "loss": "kl"}), arms.made({**keys, "name": "t", "loss": "teacher"})]
    longest_first = sorted(texts, key=lambda one: -len(one.tokens))
    held, rest = longest_first[:4], longest_first[4:]
    results = grid.run_grid(opened("llama"), chosen, 1, rest, held, tmp_path, loop=0, looks=1)
    assert [one["arm"]["loss"] for one in results] == ["kl", "teacher"]
    for arm in chosen:
        config = json.loads((tmp_path / f"{arm.name}-0" / "drafter" / "provenance.json").read_text())
        assert config["arm"] == json.loads(arm.model_dump_json())


@pytest.mark.parametrize("corruption", ["uniform", "prefix"])
def test_arms_are_judged_under_full_masks_whatever_they_were_trained_with(
    opened, texts, learnt: Session, corruption: str
) -> None:
    """Known trap: slots that a random prefix shows are easier, so that an arm seemed better for what it was asked."""
    other = replace(learnt.learner, arm=learnt.learner.arm.model_copy(update={"corruption": corruption}))
    judged = [judge(one, opened("llama"), texts, name="n", loop=0).forced for one in (learnt.learner, other)]
    assert judged[0] == judged[1] and other.arm.corruption == corruption


def test_arms_with_one_seed_see_the_same_blocks() -> None:
    chosen = arms.grid(SHIPPED, rows=128, anchors=8)
    texts = random_samples((30, 50, 40))
    first = [next(batches(texts, arm)) for arm in chosen]
    assert len({arm.name for arm in chosen}) == 7
    for batch in first[1:]:
        assert torch.equal(batch.anchor, first[0].anchor) and batch.samples == first[0].samples


def test_a_shipped_arm_differs_from_another_in_what_its_name_says() -> None:
    by_name = {arm.name: arm for arm in arms.grid(SHIPPED)}
    pairs = [
        ("ce-mixed", "ce-causal", {"attention"}), ("ce-mixed", "ce-bidirectional", {"attention"}),
        ("ce-mixed", "kl-mixed", {"loss"}), ("kl-mixed", "kl-mixed-uniform", {"corruption"}),
        ("ce-mixed", "ce-mixed-dpace", {"weighting"}), ("ce-mixed", "ce-mixed-prefix", {"corruption"}),
    ]  # fmt: skip
    for a, b, keys in pairs:
        one, other = by_name[a].model_dump(), by_name[b].model_dump()
        assert {key for key in one if one[key] != other[key]} == keys | {"name"}


@pytest.fixture(scope="module")
def done(opened, texts, tmp_path_factory) -> tuple[Path, list[dict]]:
    folder = tmp_path_factory.mktemp("grid")
    return folder, go(opened("llama"), texts, folder)


def go(target: OpenTarget, texts: list[Sample], folder: Path, **options: object) -> list[dict]:
    chosen = [arms.made({**TINY, "steps": 6, "name": name, **keys}) for name, keys in
              (("a", {}), ("b", {"attention": "mixed"}))]  # fmt: skip
    return grid.run_grid(target, chosen, 2, texts[6:], texts[:6], folder, loop=1, looks=2, **options)


def test_what_is_done_is_not_done_again(opened, texts, done) -> None:
    folder, results = done
    assert [(one["arm"]["name"], one["arm"]["seed"]) for one in results] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert go(opened("llama"), texts, folder) == json.loads(json.dumps(results))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_results_of_other_texts_are_refused(opened, texts, done) -> None:
    with pytest.raises(NodeError, match="other texts"):
        go(opened("llama"), texts[1:], done[0])


@pytest.mark.parametrize("supervised", [(), ((0, 8),)])
def test_a_held_text_that_nothing_can_be_judged_on_is_named_before_anything_is_trained(
    opened, texts, tmp_path: Path, supervised: tuple
) -> None:
    """Known trap: a range that begins at 0 drafted from the text that stands before it in the row."""
    held = [*texts[:3], Sample("odd", texts[3].tokens, supervised)]
    with pytest.raises(NodeError, match='"odd" has no'):
        go(opened("llama"), [*held, *texts[4:]], tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(NodeError, match='"odd" has no'):
        Session.over(opened("llama"), arms.made({**TINY, "steps": 1}), [*held, *texts[4:]], held_out=4)


def test_when_time_has_ended_nothing_is_begun(opened, texts, tmp_path: Path) -> None:
    assert go(opened("llama"), texts, tmp_path, until=time.monotonic() - 1) == [] and not list(tmp_path.iterdir())


def test_the_report_has_every_arm_and_only_what_follows(done) -> None:
    folder, results = done
    page = grid.write_report(folder, results, "Arms <here>").read_text()
    lines = grid.summary(results)
    assert [line["arm"] for line in lines] == ["a", "b"] and lines[1]["seeds"] == 2
    mean = sum(one["tau"]["value"] for one in results if one["arm"]["name"] == "b") / 2
    assert mean == pytest.approx(lines[1]["tau"]["value"], abs=0.3)
    assert "difference" not in lines[0] and lines[1]["difference"]["over_seeds"] is not None
    open_tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list) -> None:
            if tag not in ("meta", "line", "circle"):
                open_tags.append(tag)
            assert not any(name in ("src", "href") for name, _ in attrs)

        def handle_startendtag(self, tag: str, attrs: list) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Reader().feed(page)
    assert not open_tags and "Arms &lt;here&gt;" in page and page.count("<svg") == 4
    assert json.loads((folder / "report.json").read_text())["provenance"]["commit"]


def test_a_grid_in_several_processes_is_reported_by_one_more(done, tmp_path: Path) -> None:
    """Each process reports what it ran; `train report` all that lies in the folder, with plots that stand alone."""
    folder, results = done
    grid.write_report(folder, results[:1], "Arms of one process")
    said = CliRunner().invoke(app, ["report", str(folder)])
    assert said.exit_code == 0 and "4 results" in said.output
    body = json.loads((folder / "report.json").read_text())
    assert {one["arm"]: one["tau"] for one in body["arms"]} == {
        one["arm"]: json.loads(json.dumps(one["tau"])) for one in grid.summary(results)
    }
    for name in ("tau", "differences", "survival", "slots"):
        picture = ElementTree.parse(folder / f"{name}.svg").getroot()
        assert picture.tag == "{http://www.w3.org/2000/svg}svg"
        words = "".join(picture.itertext())
        assert "b" in words.split("}")[-1]  # the key, or the row's name, behind the style

    with pytest.raises(NodeError, match="no results"):
        grid.done(tmp_path)
    for name, texts in (("one-0", "these"), ("two-0", "those")):
        (tmp_path / name).mkdir()
        (tmp_path / name / grid.RESULT).write_text(json.dumps({"texts": texts}))
    with pytest.raises(NodeError, match="different texts"):
        grid.done(tmp_path)


def test_a_difference_is_called_one_only_when_both_intervals_say_so() -> None:
    wide, clear = {"value": 0.2, "low": -0.1, "high": 0.5}, {"value": 0.2, "low": 0.1, "high": 0.3}
    lines = [{"arm": "base", "seeds": 3}]
    lines += [
        {"arm": name, "seeds": 3, "difference": {"over_prompts": clear, "over_seeds": seeds}}
        for name, seeds in (("sure", clear), ("unsure", wide), ("one-seed", None))
    ]
    said = report.conclusions(lines)
    assert "sure +0.200" in said[1] and "unsure" not in said[1]
    assert said[2].endswith("unsure, one-seed.")


def test_evaluate_writes_what_two_drafters_do(fabricated, opened, texts, learnt: Session, done, tmp_path: Path) -> None:
    last = run.Line(1, 0.0, 0.0, (), (), 0, 0.0)
    learnt.export(tmp_path / "good", "zlab", last)
    samples.write(tmp_path / "s.jsonl", texts)
    (tmp_path / "cost.json").write_text('{"plain": 1.0, "draft": 0.2, "verify": {"1": 1.0, "4": 1.6}}')
    drafters = [str(done[0] / "a-0" / "drafter"), str(tmp_path / "good")]
    options = ["--model", str(fabricated("llama").target), "--data", str(tmp_path / "s.jsonl"), "--prompts", "10"]
    options += ["--out", str(tmp_path / "e.json"), "--loop", "2", "--identical", "1", "--device", "cpu"]
    result = CliRunner().invoke(app, ["evaluate", *drafters, *options, "--cost", str(tmp_path / "cost.json")])
    assert result.exit_code == 0, result.output
    body = json.loads((tmp_path / "e.json").read_text())
    poor, good = body["drafters"]
    assert good["tau"]["value"] > poor["tau"]["value"] and body["against_the_first"][drafters[1]]["value"] > 0
    assert good["identical_to_plain"] == [1, 1] and set(good["eta"]["by_rows"]) == {"2", "3", "4"}
    assert body["provenance"]["model"] and body["provenance"]["commit"]
