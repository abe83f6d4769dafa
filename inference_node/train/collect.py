"""Texts that the target wrote itself: a drafter learns what its target says, not what somebody else would have.

(Trained on foreign text it scores well on foreign text, and far fewer of its drafts are accepted.) Resumable: what is
in the file is not asked for again. Loops are cut, because a small model's greedy answers end in them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from inference_node.models.errors import NodeError
from inference_node.train import sample as samples
from inference_node.train.prompts import Prompt
from inference_node.train.sample import Sample, without_loop
from inference_node.train.target import OpenTarget

LEAST = 8
"""Tokens: a shorter answer teaches nothing."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """How answers are made."""

    most: int = 256  # tokens
    temperature: float = 0.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def seed_of(self, prompt: Prompt) -> int:
        """Of a prompt's answer, whatever was asked before it: a collection that goes on draws what it would have."""
        drawn = hashlib.sha256(f"{self.seed} {prompt.id}".encode()).digest()
        return int.from_bytes(drawn[:4], "big") >> 1  # 31 bits, which every server takes


@dataclass(frozen=True, slots=True)
class Collected:
    """What became of the prompts."""

    written: int
    short: int  # answers too short to keep
    cut: int  # of those written: ended where they began to loop
    tokens: int  # supervised ones


Answers = Callable[[Sequence[Prompt]], Iterable[tuple[Prompt, Sequence[int], Sequence[int]]]]
"""(prompt, its tokens, the answer's tokens) for each, in any order."""


def collect(
    prompts: Sequence[Prompt], answers: Answers, out: Path, *, told: Callable[[int, int], Any] = lambda done, of: None
) -> Collected:
    """Answer what is not answered yet and append it to `out`. told(done, of) after each answer."""
    there = _held(out)
    left = [prompt for prompt in prompts if prompt.id not in there]
    written = short = cut = tokens = 0
    done = len(prompts) - len(left)
    for prompt, given, answer in answers(left):
        whole = [*given, *answer]
        kept = without_loop(whole, len(given))
        if len(kept) - len(given) < LEAST:
            short += 1
        else:
            cut += len(kept) < len(whole)
            samples.write(out, [Sample(prompt.id, tuple(kept), ((len(given), len(kept)),))], append=True)
            written += 1
            tokens += len(kept) - len(given)
        done += 1
        told(done, len(prompts))
    return Collected(written, short, cut, tokens)


def _held(out: Path) -> set[str]:
    """Ids in the file. A last line that a power cut left half written is taken away."""
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        return set()
    text = out.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        out.write_bytes(whole)
    return {sample.id for sample in samples.read(out)}


def here(target: OpenTarget, tokenizer: Any, wanted: Wanted, *, batch: int = 64) -> Answers:
    """Answers from the target in this process, several at a time."""
    from transformers import GenerationConfig

    sampled = wanted.temperature > 0
    config = GenerationConfig(
        max_new_tokens=wanted.most,
        do_sample=sampled,
        eos_token_id=list(target.stop_ids) or None,
        pad_token_id=target.shape.mask_id,
        suppress_tokens=unsayable(target, tokenizer) or None,  # as in serving; the mask among them
        **(
            {"temperature": wanted.temperature, "top_p": wanted.top_p, "top_k": wanted.top_k or None} if sampled else {}
        ),
    )

    def answers(prompts: Sequence[Prompt]) -> Iterator[tuple[Prompt, Sequence[int], Sequence[int]]]:
        encoded = sorted(((prompt, prompt.tokens(tokenizer)) for prompt in prompts), key=lambda pair: len(pair[1]))
        for start in range(0, len(encoded), batch):
            group = encoded[start : start + batch]
            torch.manual_seed(wanted.seed_of(group[0][0]))
            for (prompt, given), answer in zip(group, _generate(target, config, [g for _, g in group]), strict=True):
                yield prompt, given, answer

    return answers


def unsayable(target: OpenTarget, tokenizer: Any) -> list[int]:
    """Ids that the node never says: rows of the head that no tokenizer entry has, and the mask."""
    known = set(tokenizer.get_vocab().values())
    return sorted({token for token in range(target.shape.vocab) if token not in known} | {target.shape.mask_id})


@torch.no_grad()
def _generate(target: OpenTarget, config: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Answers' tokens, each up to its stop id, which is kept: the drafter is to know when a text ends."""
    width = max(len(prompt) for prompt in prompts)
    if not all(prompts):
        raise NodeError("A prompt has no tokens.")
    ids = torch.full((len(prompts), width), config.pad_token_id)
    seen = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        seen[row, width - len(prompt) :] = 1
    module: Any = target.module
    found = module.generate(
        input_ids=ids.to(target.device), attention_mask=seen.to(target.device), generation_config=config
    )[:, width:]
    answers = []
    for row in found.tolist():
        ends = [i for i, token in enumerate(row) if token in target.stop_ids or token == config.pad_token_id]
        end = ends[0] + 1 if ends and row[ends[0]] != config.pad_token_id else ends[0] if ends else len(row)
        answers.append(row[:end])
    return answers
