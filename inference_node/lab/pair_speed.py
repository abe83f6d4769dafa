"""How much quicker a pair answers than its target alone, on this machine, and whether it says the same.

    python -m inference_node.lab.pair_speed --draft inference_node/drafters/smollm2-135m-instruct --out docs/figures

The texts are held-out ones, in files `held-*.jsonl` beside the drafter. Plain decoding is the quickest of what is here
for the same weights: this node's with one row a pass and transformers' own `generate`, in fp32 and bf16. What is said
with drafts is compared with what is said without them in passes of as many rows, token for token.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from inference_node.lab import figures, pairs
from inference_node.lab.pairs import Speed
from inference_node.lab.small_pair import MODEL
from inference_node.speculate.loading import load_reference
from inference_node.train import evaluate
from inference_node.train import sample as samples
from inference_node.train.sample import Sample
from inference_node.train.target import open_target, usual_device

TYPES = ("fp32", "bf16")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.threads:
        torch.set_num_threads(given.threads)
    device = usual_device(given.device)
    texts = {
        file.stem.removeprefix("held-"): samples.read(file)[: given.texts]
        for file in sorted(given.draft.glob("held-*.jsonl"))
    }
    every = [text for some in texts.values() for text in some]
    found: dict[str, float] = {}
    for weights in TYPES:
        found[f"plain_tok_s_{weights}"] = _plain(given.model, device, weights, every)
        found[f"generate_tok_s_{weights}"] = _generated(given.model, device, weights, every)
        print(weights, {name: round(value, 2) for name, value in found.items() if name.endswith(weights)}, flush=True)
    fastest = max(found.values())
    found |= {"plain_tok_s": fastest, "texts": len(every)}
    served = load_reference(given.model, str(given.draft), device=device, weights=given.weights).target
    differ = tokens = 0
    for name, some in texts.items():
        speed = pairs.timed(served, some)
        found |= {f"tok_s_{name}": 1 / speed.token_s, f"eta_{name}": 1 / speed.token_s / fastest}
        found[f"tau_{name}"] = speed.tau
        for text in some:
            first, end = text.answer
            both = [
                evaluate.decode(served, text.tokens[:first], most=end - first, draft=draft).tokens
                for draft in (True, False)
            ]
            differ += sum(one != other for one, other in zip(*both, strict=False))
            differ += abs(len(both[0]) - len(both[1]))
            tokens += len(both[0])
        print(name, {key: round(value, 3) for key, value in found.items() if key.endswith(name)}, flush=True)
    served.close()
    found |= {"tokens_compared": tokens, "tokens_that_differ": differ}
    path = figures.record(
        given.out, given.name, figures.command("pair_speed", parser, given), found,
        model=f"{given.model} with {given.draft.name}, drafts in {given.weights}",
    )  # fmt: skip
    print(path)
    return 0


def _plain(model: str, device: str, weights: str, texts: Sequence[Sample]) -> float:
    target = load_reference(model, device=device, weights=weights, block=1).target
    try:
        return 1 / pairs.timed(target, texts, draft=False).token_s
    finally:
        target.close()


@torch.no_grad()
def _generated(model: str, device: str, weights: str, texts: Sequence[Sample]) -> float:
    """Tokens per second of transformers' own loop, one text at a time; prefill left out by a pass of its own."""
    target = open_target(model, device=device, weights=weights)
    module: Any = target.module
    counts: list[Speed] = []
    for text in [texts[0], *texts]:
        first, end = text.answer
        prompt = torch.tensor([text.tokens[:first]], device=target.device)
        length = {"max_new_tokens": end - first, "min_new_tokens": end - first, "do_sample": False, "pad_token_id": 0}
        alone = _seconds(target.device, lambda prompt=prompt: module.generate(prompt, max_new_tokens=1, pad_token_id=0))
        whole = _seconds(target.device, lambda prompt=prompt, how=length: module.generate(prompt, **how))
        counts.append(Speed(end - first - 1, end - first - 1, whole - alone))
    return sum(one.tokens for one in counts[1:]) / sum(one.seconds for one in counts[1:])


def _seconds(device: torch.device, work: Any) -> float:
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m inference_node.lab.pair_speed", description=__doc__)
    add = parser.add_argument
    add("--draft", required=True, type=Path, help="folder of the drafter and of held-*.jsonl")
    add("--model", default=MODEL)
    add("--weights", default="fp32", choices=TYPES, help="in which the pair serves")
    add("--device", default="", help="default: the first accelerator")
    add("--threads", type=int, default=0)
    add("--texts", type=int, default=8, help="of each file")
    add("--out", type=Path, default=Path("docs/figures"))
    add("--name", default="small-pair-cpu")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
