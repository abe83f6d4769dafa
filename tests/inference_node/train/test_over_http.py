"""Texts from a node over HTTP: token for token those that the target gives in this process."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from inference_node.lab.serving import served
from inference_node.models.errors import NodeError
from inference_node.settings import Settings
from inference_node.train import collect as collecting
from inference_node.train import sample as samples
from inference_node.train.collect import Wanted, collect
from inference_node.train.command import app
from inference_node.train.over_http import from_node
from inference_node.train.prompts import Prompt

PROMPTS = [Prompt(str(i), text=f"{i} lamp {7 * i} night") for i in range(6)]


@pytest.fixture(scope="module")
def node(fabricated):
    settings = Settings(model=str(fabricated("llama").target), weights="fp32", device="cpu", draft="ngram", queue=2)
    with served(settings) as (url, _):
        yield url


def test_a_nodes_texts_are_those_of_the_target_here(node, fabricated, opened, tmp_path: Path) -> None:
    target = opened("llama")
    collect(PROMPTS, collecting.here(target, target.files.tokenizer, Wanted(most=16)), tmp_path / "here.jsonl")
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("".join(f'{{"id": "{prompt.id}", "text": "{prompt.text}"}}\n' for prompt in PROMPTS))
    options = ["--model", str(fabricated("llama").target), "--node", node, "--max-tokens", "16", "--at-once", "5"]
    result = CliRunner().invoke(app, ["collect", str(prompts), "--out", str(tmp_path / "far.jsonl"), *options])
    assert result.exit_code == 0, result.output  # the queue holds two: those turned away come again
    here, far = ({one.id: one for one in samples.read(tmp_path / name)} for name in ("here.jsonl", "far.jsonl"))
    assert far == here and len(far) >= 4


def test_a_server_without_token_ids_is_refused_by_name(node, opened, monkeypatch) -> None:
    from inference_node.train import over_http

    body = over_http._body

    def without(*given):
        return {**body(*given), "return_token_ids": False}

    monkeypatch.setattr(over_http, "_body", without)
    with pytest.raises(NodeError, match="without token ids"):
        list(from_node(node, opened("llama").files.tokenizer, Wanted(most=8))(PROMPTS[:1]))


def test_what_the_node_refuses_is_told_with_the_prompt(node, opened) -> None:
    long = [Prompt("long", text="lamp " * 6000)]
    with pytest.raises(NodeError, match='refused prompt "long"'):
        list(from_node(node, opened("llama").files.tokenizer, Wanted(most=8))(long))


def test_a_node_that_is_not_there_is_told(opened) -> None:
    with pytest.raises(NodeError, match="does not list its models"):
        list(from_node("http://127.0.0.1:9", opened("llama").files.tokenizer, Wanted(most=8))(PROMPTS))


def test_token_ids_come_with_a_body_and_are_refused_in_a_stream(node) -> None:
    asked = {"prompt": [5, 6, 7], "max_tokens": 4, "return_token_ids": True, "temperature": 0}
    reply = httpx.post(f"{node}/v1/completions", json=asked, timeout=60).json()
    assert len(reply["choices"][0]["token_ids"]) == reply["usage"]["completion_tokens"]
    refused = httpx.post(f"{node}/v1/completions", json={**asked, "stream": True})
    assert refused.status_code == 400 and "return_token_ids" in refused.json()["error"]["message"]


def test_what_is_drawn_depends_on_the_seed_and_the_prompt_and_not_on_what_was_asked_before(node, opened) -> None:
    def drawn(prompts: list[Prompt], seed: int) -> dict[str, list[int]]:
        answers = from_node(node, opened("llama").files.tokenizer, Wanted(most=12, temperature=1.0, seed=seed))
        return {prompt.id: list(answer) for prompt, _, answer in answers(prompts)}

    whole, rest = drawn(PROMPTS, 3), drawn(PROMPTS[4:], 3)
    assert rest == {prompt.id: whole[prompt.id] for prompt in PROMPTS[4:]}
    assert drawn(PROMPTS[:2], 4) != drawn(PROMPTS[:2], 3)
