"""Texts by the target itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from inference_node.models.errors import NodeError
from inference_node.train import collect as collecting
from inference_node.train import evaluate, prompts
from inference_node.train import sample as samples
from inference_node.train.collect import Wanted, collect
from inference_node.train.prompts import Prompt

PROMPTS = [
    Prompt(str(i), text=text) for i, text in enumerate(["The lamp", "Every night he walks", "def review(repo):"])
]


@pytest.mark.parametrize("family", ["llama", "qwen3_5_moe"])
def test_answers_are_what_the_node_says_whatever_is_beside_them(opened, loaded, tmp_path: Path, family: str) -> None:
    """Ids that the tokenizer does not have are the best of a random head now and then; the node never says them."""
    target = opened(family)
    tokenizer = target.files.tokenizer
    served = loaded(family, "none").target
    collect(PROMPTS, collecting.here(target, tokenizer, Wanted(most=12)), tmp_path / "s.jsonl")
    held = samples.read(tmp_path / "s.jsonl")
    assert {sample.id for sample in held} == {"0", "1", "2"}
    for sample in held:
        given = sample.supervised[0][0]
        said = evaluate.decode(served, sample.tokens[:given], most=12, draft=False).tokens
        assert said[: len(sample.tokens) - given] == sample.tokens[given:]


def test_a_second_run_asks_only_for_what_is_missing(tmp_path: Path) -> None:
    asked: list[str] = []

    def answers(left: Sequence[Prompt]) -> Iterator[tuple[Prompt, list[int], list[int]]]:
        for prompt in left:
            asked.append(prompt.id)
            if len(asked) == 3:
                raise KeyboardInterrupt
            yield prompt, [1, 2], list(range(10, 30))

    out = tmp_path / "s.jsonl"
    with pytest.raises(KeyboardInterrupt):
        collect(PROMPTS, answers, out)
    with out.open("a") as file:
        file.write('{"id": "2", "tok')  # the power went here
    collect(PROMPTS, answers, out)
    assert asked == ["0", "1", "2", "2"]
    assert [sample.id for sample in samples.read(out)] == ["0", "1", "2"]


def test_loops_are_cut_short_answers_left_out_and_both_counted(tmp_path: Path) -> None:
    said = {"0": list(range(40)), "1": [*range(20), *range(20), *range(20)], "2": [5, 6]}
    found = collect(PROMPTS, lambda left: ((p, [1, 2, 3], said[p.id]) for p in left), tmp_path / "s.jsonl")
    assert (found.written, found.cut, found.short, found.tokens) == (2, 1, 1, 60)
    assert [len(sample.tokens) for sample in samples.read(tmp_path / "s.jsonl")] == [43, 23]


def test_prompts_come_as_conversations_prompts_or_text(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(
        '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "not ours"}]}\n'
        '{"prompt": "Hi", "id": "x"}\n\n{"text": "Hi"}\n'
    )
    first, second, third = prompts.read(path)
    assert first.messages == second.messages == ({"role": "user", "content": "Hi"},)
    assert (first.id, second.id, third.id, third.text) == ("1", "x", "4", "Hi")


@pytest.mark.parametrize(
    "line", ["{", "[1]", "{}", '{"messages": []}', '{"messages": [{"role": "assistant", "content": "a"}]}']
)
def test_a_prompt_that_is_none_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"text": "ok"}\n' + line + "\n")
    with pytest.raises(NodeError, match="line 2"):
        prompts.read(path)


def test_two_prompts_with_one_id_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"text": "a", "id": "x"}\n{"text": "b", "id": "x"}\n')
    with pytest.raises(NodeError, match='"x"'):
        prompts.read(path)
