"""Texts to train on, and their file."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference_node.models.errors import NodeError
from inference_node.train import sample as samples
from inference_node.train import vocabulary
from inference_node.train.sample import Sample, without_loop


def test_samples_come_back_from_their_file(tmp_path: Path) -> None:
    held = [Sample("a", (1, 2, 3, 4), ((1, 2), (3, 4))), Sample("b", (5, 6), ((1, 2),))]
    samples.write(tmp_path / "s.jsonl", held[:1])
    samples.write(tmp_path / "s.jsonl", held[1:], append=True)
    assert samples.read(tmp_path / "s.jsonl") == held


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"id": "a"}',
        '{"id": "a", "tokens": [1], "supervised": [[0, 5]]}',
        '{"id": "a", "tokens": "x", "supervised": []}',
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text('{"id": "ok", "tokens": [1, 2], "supervised": [[1, 2]]}\n' + line + "\n")
    with pytest.raises(NodeError, match="line 2"):
        samples.read(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="train collect"):
        samples.read(tmp_path / "none.jsonl")


def test_a_text_that_loops_is_cut_where_it_begins_to_say_itself_again() -> None:
    told, loop = list(range(100, 130)), list(range(200, 220))
    assert without_loop([*told, *loop, *loop, *loop], 0) == [*told, *loop]
    assert without_loop([*told, *loop], 0) == [*told, *loop]


def test_a_sample_without_a_prompt_or_an_answer_is_named_before_it_is_judged_on() -> None:
    good = Sample("good", (1, 2, 3, 4), ((2, 4),))
    samples.check_answers([good])
    assert good.prompt == (1, 2) and good.answer == (2, 4)
    with pytest.raises(NodeError, match='"bare" has no supervised token'):
        samples.check_answers([good, Sample("bare", (1, 2), ())])
    with pytest.raises(NodeError, match='"early" has no prompt'):
        samples.check_answers([good, Sample("early", (1, 2), ((0, 2),))])


def test_what_a_prompt_repeats_is_no_loop() -> None:
    prompt = [*range(20), *range(20)]
    assert without_loop([*prompt, *range(50, 60)], len(prompt)) == [*prompt, *range(50, 60)]


def test_a_smaller_vocabulary_holds_the_most_frequent_supervised_ids() -> None:
    texts = [Sample("a", (9, 9, 9, 7, 7, 3, 5), ((3, 7),)), Sample("b", (9, 7), ((1, 2),))]
    found = vocabulary.most_frequent(texts, 2, 12)
    assert found.ids.tolist() == [3, 7] and found.coverage == pytest.approx(4 / 5)
    assert found.d2t.tolist() == [3 - 0, 7 - 1], "distances from a row's number to its id"
    assert found.t2d.nonzero()[:, 0].tolist() == [3, 7]
    assert found.row_of[[3, 7, 9]].tolist() == [0, 1, -1]


def test_a_vocabulary_larger_than_the_targets_is_refused() -> None:
    with pytest.raises(NodeError, match="vocabulary=13"):
        vocabulary.most_frequent([], 13, 12)
