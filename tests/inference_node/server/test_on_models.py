"""The whole node over fabricated models: text that no drafter or rollback changes, and turns that cost their own."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from inference_node.lab.fabricate import Fabricated
from inference_node.lab.serving import served
from inference_node.lab.turns import TOOL, Turn, converse, fabricated_hybrid, worst_share
from inference_node.settings import load


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Fabricated:
    return fabricated_hybrid(tmp_path_factory.mktemp("hybrid"))


@contextmanager
def node(target: Path, draft: str, **settings: Any) -> Iterator[tuple[httpx.Client, Any]]:
    chosen = load(model=str(target), draft=draft, weights="fp32", device="cpu", **settings)
    with served(chosen) as (url, engine), httpx.Client(base_url=url, timeout=300) as http:
        yield http, engine


def ask(http: httpx.Client, **body: Any) -> dict[str, Any]:
    body.setdefault("messages", [{"role": "user", "content": "Hi"}])
    reply = http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def said(turns: list[Turn]) -> list[Any]:
    return [
        (turn.message.get("reasoning_content"), turn.message["content"], turn.message["tool_calls"][0]["function"])
        for turn in turns
    ]


def talk(pair: Fabricated, draft: str, turns: int, **settings: Any) -> list[Turn]:
    with node(pair.target, draft, **settings) as (http, engine):
        return converse(
            http,
            turns,
            result_words=30,
            calls_per_question=3,
            thought_ends=engine.template.id_of("</think>"),
        )


@pytest.fixture(scope="module")
def conversation(hybrid: Fabricated) -> list[Turn]:
    """Seven turns without any drafts."""
    return talk(hybrid, "none", 7, block=8)


@pytest.mark.parametrize(
    ("draft", "settings"),
    [("dflash", {}), ("dflash", {"rollback": "snapshots"}), ("ngram", {"block": 8}), ("mtp", {"block": 8})],
)
def test_a_conversation_on_one_store_does_not_depend_on_drafter_or_rollback(
    hybrid: Fabricated, conversation: list[Turn], draft: str, settings: dict[str, Any]
) -> None:
    """contracts-node.md: with thoughts, constrained calls, restored states and spliced messages in it."""
    turns = talk(hybrid, str(hybrid.drafter) if draft == "dflash" else draft, 7, **settings)
    assert said(turns) == said(conversation)
    assert [turn.prefix for turn in turns] == [turn.prefix for turn in conversation]


def test_every_call_of_the_conversation_follows_its_schema(conversation: list[Turn]) -> None:
    for turn in conversation:
        call = turn.message["tool_calls"][0]["function"]
        Draft202012Validator(TOOL["function"]["parameters"]).validate(json.loads(call["arguments"]))


def test_a_turn_computes_its_new_tokens_only(conversation: list[Turn]) -> None:
    """QwenLM/Qwen3.8#48, #112, #131, omlx#814, can1357/oh-my-pi#3549: 16k tokens redone each turn, as the template
    drops earlier thoughts
    (here in turns 4 and 7)."""
    assert [turn.prefix["why"] for turn in conversation[1:]] == ["whole"] * 6
    within_a_question = [turn for number, turn in enumerate(conversation) if number % 3]
    assert worst_share([conversation[0], *within_a_question]) == 1.0
    dropped = [conversation[3], conversation[6]]
    for turn in dropped:
        assert turn.prefix["prefilled_tokens"] - turn.prefix["new_tokens"] < 64 + 8  # a chunk, and a message's head


def test_a_client_that_leaves_thoughts_out_still_gets_most_of_its_prefix(hybrid: Fabricated) -> None:
    with node(hybrid.target, "none", block=8) as (http, engine):
        ends = engine.template.id_of("</think>")
        turns = converse(http, 4, result_words=60, thought_ends=ends, returns_thoughts=False)
    for before, turn in pairwise(turns):
        assert turn.prefix["restored_tokens"] >= before.prompt_tokens - 64 - 8


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_with_and_without_the_store_the_text_is_the_same_where_all_restored_was_prefilled(
    hybrid: Fabricated, temperature: float
) -> None:
    """sglang#29368: another text after restoring a long prefix. vllm#47930, #54094, z-lab/dflash#165: acceptance
    collapsed after a restore, because the drafter's own keys and values were not in it."""
    system = {"role": "system", "content": "You are brief. " * 40}
    asked = [{"messages": [system, {"role": "user", "content": f"Question {n}?"}]} for n in range(3)]
    texts = {}
    for prefix_bytes in (0, 1 << 30):
        with node(hybrid.target, str(hybrid.drafter), prefix_bytes=prefix_bytes) as (http, _):
            answers = [ask(http, **body, max_tokens=30, seed=5, temperature=temperature) for body in asked]
        texts[prefix_bytes] = [
            (answer["choices"][0]["message"], answer["timings"]["cycles"], answer["timings"]["draft_n_accepted"])
            for answer in answers
        ]
        restored = [answer["timings"]["prefix"]["restored_tokens"] for answer in answers]
        assert all(answer["timings"]["prefix"]["exact"] for answer in answers)
        assert restored == [0, 0, 0] if prefix_bytes == 0 else min(restored[1:]) >= 64
    assert texts[0] == texts[1 << 30]


def test_a_stop_string_cuts_the_same_text_with_and_without_drafts(hybrid: Fabricated) -> None:
    with node(hybrid.target, str(hybrid.drafter)) as (http, _):
        free = ask(http, max_tokens=60, seed=3, temperature=0.8)["choices"][0]["message"]["reasoning_content"]
        stop = free[20:23]
        cut = ask(http, max_tokens=60, seed=3, temperature=0.8, stop=stop)["choices"][0]
        assert cut["message"]["reasoning_content"] == free[: free.index(stop)].rstrip()
        assert cut["finish_reason"] == "stop"
    with node(hybrid.target, "none", block=8) as (http, _):
        plain = ask(http, max_tokens=60, seed=3, temperature=0.8, stop=stop)["choices"][0]
        assert plain["message"] == cut["message"]


def test_greedy_tokens_are_the_most_likely_by_their_own_logprobs(hybrid: Fabricated) -> None:
    with node(hybrid.target, str(hybrid.drafter)) as (http, _):
        answer = ask(http, max_tokens=20, temperature=0, logprobs=True, top_logprobs=3)
    for entry in answer["choices"][0]["logprobs"]["content"]:
        assert entry["logprob"] == max(other["logprob"] for other in entry["top_logprobs"]) <= 0
        assert len(entry["top_logprobs"]) == 3


def test_an_answer_is_the_same_streamed_or_not(hybrid: Fabricated) -> None:
    with node(hybrid.target, str(hybrid.drafter)) as (http, _):
        whole = ask(http, max_tokens=40, seed=9, temperature=1.0)["choices"][0]["message"]
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 40, "seed": 9, "stream": True}
        text = http.post("/v1/chat/completions", json={**body, "temperature": 1.0}).text
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in text.split("\n\n") if line.startswith("data: {")]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == whole["reasoning_content"]


def test_a_prompt_up_to_the_context_is_served_and_one_more_token_is_not(hybrid: Fabricated) -> None:
    with node(hybrid.target, "none", block=8, ctx=256) as (http, engine):
        answer = http.post("/v1/completions", json={"prompt": [5] * 256, "max_tokens": 50}).json()
        assert answer["choices"][0]["finish_reason"] in ("length", "stop")
        assert answer["usage"]["completion_tokens"] == 1
        refused = http.post("/v1/completions", json={"prompt": [5] * 257})
        assert refused.json()["error"]["n_ctx"] == 256
        assert engine.facts.context == 256


Fabricate = Callable[..., Fabricated]


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_moe", "qwen3", "llama"])
def test_every_family_is_served(fabricated: Fabricate, family: str) -> None:
    pair = fabricated(family)
    with node(pair.target, "ngram") as (http, _):
        answer = ask(http, max_tokens=12, seed=1, tools=[TOOL])
        assert answer["usage"]["completion_tokens"] <= 12
        assert http.get("/health").status_code == 200
