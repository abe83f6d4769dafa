"""A small hybrid model of experts and its drafter, both trained from nothing on source code, in minutes on one GPU.

    python -m inference_node.lab.hybrid_pair --out runs/hybrid --minutes 9

The target has the form of Qwen3.6-35B-A3B (Gated DeltaNet, every fourth layer attention, routed and shared experts),
some million weights and a tokenizer of its own, and learns the Python standard library that is installed here. It is no
good model; it is one with a real distribution, so that rollback, woken experts and eta are measured on one. Stopped, it
goes on where it was. What it leaves:

    target/             the model in the released file format, and trained.json with its losses
    texts.jsonl         continuations of code by the target: half greedy, half sampled
    run/drafter         the drafter's files
    judged-code.json    tau on held-out code, greedy, with intervals
    experts.json        experts woken by blocks of 1 to 16 tokens of text, of one repeated token, of random ones
    speed.json          eta by rows of a verify, measured and predicted
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from inference_node.fast.loading import load_fast
from inference_node.lab import pairs
from inference_node.lab.fabricate import fabricate_target
from inference_node.lab.pairs import Clock
from inference_node.lab.shapes import Shape
from inference_node.models.errors import NodeError
from inference_node.speculate.seam import Target
from inference_node.train import arm as arms
from inference_node.train.collect import Wanted
from inference_node.train.prompts import Prompt
from inference_node.train.provenance import provenance
from inference_node.train.step import precision
from inference_node.train.target import OpenTarget, open_target, usual_device

FAMILY = "qwen3_5_moe"
MOST_BYTES = 48 << 20
HELD = 16
"""One file in so many is held out, by its name."""

SHAPES = {
    "hybrid": Shape(
        hidden=256, layers=8, heads=8, kv_heads=2, head_dim=64, vocab=3072, positions=4096, linear_key_heads=4,
        linear_value_heads=8, linear_dim=64, experts=32, experts_per_token=4, expert_width=64,
    ),
    "tiny": Shape(vocab=512),
}  # fmt: skip
ROUTERS = 0.01  # weight of the loss that keeps routers from using few experts
WIDTHS = {"hybrid": (2, 3, 4, 6, 8), "tiny": (2, 8)}


def sources(most: int, *, held: bool, folder: Path | None = None) -> list[str]:
    """Texts of the standard library's files, up to so many characters, in the order of a hash of their names."""
    root = folder or Path(sysconfig.get_path("stdlib"))
    files = []
    for path in root.rglob("*.py"):
        name = path.relative_to(root).as_posix()
        if "site-packages" in name or "dist-packages" in name:
            continue
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        if (number % HELD == 0) is held:
            files.append((number, path))
    found, size = [], 0
    for _, path in sorted(files):
        if size >= most:
            break
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if len(text) > 200:
            found.append(text)
            size += len(text)
    if not found:
        raise NodeError(f"{root} has no Python files to learn from.")
    return found


def encoded(tokenizer: Any, texts: Sequence[str]) -> torch.Tensor:
    """One stream of ids, an end between two files."""
    end = [tokenizer.convert_tokens_to_ids("<|endoftext|>")]
    stream: list[int] = []
    for ids in tokenizer(list(texts))["input_ids"]:
        stream += [*ids, *end]
    return torch.tensor(stream)


def train_target(
    clock: Clock, folder: Path, shape: Shape, given: argparse.Namespace, device: str, until: float
) -> None:
    """Write the model's files, trained until then. A folder with trained.json in it is done."""
    if (folder / "trained.json").exists():
        return
    code = sources(given.characters, held=False)
    fabricate_target(
        folder, FAMILY, shape, seed=given.seed, mtp=False, per_expert=False, scale_head=False, sharded=False,
        text=[line for text in code[: given.tokenizer_files] for line in text.splitlines(keepends=True)],
    )  # fmt: skip
    target = open_target(str(folder), device=device, weights="fp32")
    stream = encoded(target.files.tokenizer, code)
    unseen = encoded(target.files.tokenizer, sources(given.characters // 8, held=True))
    module: Any = target.module
    _begin(module, given.seed)
    weights = sum(weight.numel() for weight in module.parameters())
    if 2 * weights > MOST_BYTES:
        raise NodeError(f"The model has {2 * weights / 2**20:.1f} MiB in bf16, {MOST_BYTES >> 20} are allowed.")
    clock.say(f"target: {weights / 1e6:.2f} million weights, {len(stream) / 1e6:.2f} million tokens of code")
    matrices = [weight for weight in module.parameters() if weight.dim() >= 2]
    others = [weight for weight in module.parameters() if weight.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=given.target_rate, betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(given.seed)
    began, step, losses = time.monotonic(), 0, []
    curve: list[tuple[int, float]] = []
    while (done := _share(began, until, step, given.target_steps)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = (
                given.target_rate * min(1.0, (step + 1) / 50) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
            )
        rows = _rows(stream, given.target_batch, given.length, generator).to(target.device)
        loss, pure = _loss(module, rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(pure.detach())
        step += 1
        if step % given.say_every == 0:
            curve.append((step, float(torch.stack(losses).mean())))
            speed = step * given.target_batch * given.length / (time.monotonic() - began)
            clock.say(f"target step {step}: loss {curve[-1][1]:.3f}, {speed:,.0f} tokens/s")
            losses = []
    module.requires_grad_(False).eval()
    with torch.no_grad():
        rows = _rows(unseen, min(64, given.target_batch), given.length, generator).to(target.device)
        heldout = float(_loss(module, rows)[1])
    named = dict(module.named_parameters())
    save_file(
        {_file_name(name): value.to(device="cpu", dtype=torch.bfloat16).contiguous() for name, value in named.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    pairs.write(
        folder / "trained.json",
        {"steps": step, "held_out_loss": heldout, "weights": weights, "curve": curve, "provenance": provenance()},
    )
    clock.say(f"target: {step} steps, loss {heldout:.3f} on held-out code")


def _begin(module: Any, seed: int) -> None:
    """Small weights to learn from; norms, decays and convolutions stay as they were fabricated."""
    generator = torch.Generator().manual_seed(seed)
    module.requires_grad_(True).train()
    for name, weight in module.named_parameters():
        if weight.dim() >= 2 and "conv1d" not in name:
            with torch.no_grad():
                weight.copy_(0.02 * torch.randn(weight.shape, generator=generator))


def _loss(module: Any, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(what is minimised, cross-entropy alone) over rows of ids."""
    from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import load_balancing_loss_func

    with precision(rows.device), _routed(module) as routed:
        logits = module(input_ids=rows[:, :-1], use_cache=False).logits
    pure = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
    config = module.config
    layers: Any = tuple(logits for logits, _ in routed)
    balance = load_balancing_loss_func(layers, config.num_experts, config.num_experts_per_tok)
    return pure + ROUTERS * balance, pure


@contextmanager
def _routed(module: Any) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """(router logits, chosen experts) of every layer's pass that runs inside."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keep(gate: Any, given: Any, result: Any) -> None:
        seen.append((result[0], result[2]))

    hooks = [layer.mlp.gate.register_forward_hook(keep) for layer in module.model.layers]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _rows(stream: torch.Tensor, batch: int, length: int, generator: torch.Generator) -> torch.Tensor:
    starts = torch.randint(max(1, len(stream) - length - 1), (batch,), generator=generator)
    return stream[starts[:, None] + torch.arange(min(length + 1, len(stream)))]


def _share(began: float, until: float, step: int, steps: int) -> float:
    """How much of the training is done: by steps where they are given, else by time."""
    if steps:
        return step / steps
    return (time.monotonic() - began) / max(1e-9, until - began)


def _file_name(name: str) -> str:
    return name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name


def code_prompts(
    target: OpenTarget, count: int, tokens: int, *, held: bool, characters: int, seed: int
) -> list[Prompt]:
    """Beginnings of code from random places of the files, each at the beginning of a line."""
    texts, draw = sources(characters, held=held), random.Random(seed)
    tokenizer: Any = target.files.tokenizer
    found = []
    for number in range(count):
        text = draw.choice(texts)
        start = text.rfind("\n", 0, draw.randrange(len(text))) + 1
        ids = tokenizer(text[start : start + 12 * tokens])["input_ids"][:tokens]
        if len(ids) >= min(8, tokens):
            found.append(Prompt(f"{'held' if held else 'code'}-{seed}-{number}", text=tokenizer.decode(ids)))
    return found


@torch.no_grad()
def experts_woken(target: OpenTarget, held: Sequence[Sequence[int]], longest: int = 16) -> dict[str, list[float]]:
    """Mean distinct experts per layer in windows of 1, 2, ... tokens, for text, one repeated token and random ones."""
    module: Any = target.module
    generator = torch.Generator().manual_seed(0)
    vocabulary = target.ids.known_ids
    kinds = {
        "text": [torch.tensor(ids) for ids in held if len(ids) >= longest],
        "one token": [torch.full((4 * longest,), int(held[0][0]))],
        "random": [torch.randint(vocabulary, (8 * longest,), generator=generator) for _ in range(4)],
    }
    found: dict[str, list[float]] = {}
    for kind, rows in kinds.items():
        sums, counted = [0.0] * longest, [0] * longest
        for ids in rows:
            with _routed(module) as routed:
                module(input_ids=ids[None].to(target.device), use_cache=False)
            for _, chosen in routed:
                table = torch.zeros(len(ids), module.config.num_experts, device=chosen.device)
                table.scatter_(1, chosen.view(len(ids), -1), 1.0)
                for length in range(1, longest + 1):
                    windows = table.unfold(0, length, length).amax(-1)  # side by side, none in two
                    sums[length - 1] += float(windows.sum())
                    counted[length - 1] += windows.shape[0]
        found[kind] = [total / max(1, n) for total, n in zip(sums, counted, strict=True)]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    if given.threads:
        torch.set_num_threads(given.threads)
    device, out = usual_device(given.device), given.out
    clock, shape = Clock(out, given.minutes), SHAPES[given.shape]
    train_target(clock, out / "target", shape, given, device, clock.until(0.36))
    target = open_target(str(out / "target"), device=device, weights="fp32")

    def prompts(count: int, held: bool, seed: int) -> list[Prompt]:
        return code_prompts(target, count, given.prompt, held=held, characters=given.characters, seed=seed)

    greedy = Wanted(most=given.max_tokens, seed=given.seed)
    sampled = Wanted(most=given.max_tokens, temperature=0.7, top_p=0.95, seed=given.seed)
    held = pairs.texts(
        clock,
        target,
        prompts(given.held, True, 1),
        out / "held.jsonl",
        greedy,
        batch=given.batch,
        until=clock.until(0.4),
    )
    for seed, how, share in ((2, greedy, 0.48), (3, sampled, 0.56)):
        texts = pairs.texts(
            clock, target, prompts(given.texts // 2, False, seed), out / "texts.jsonl", how, batch=given.batch,
            until=clock.until(share),
        )  # fmt: skip
    arm = arms.made(
        {
            "name": "hybrid", "layers": 3, "taps": 3, "block": 8, "loss": "data", "weighting": "dpace",
            "attention": "mixed", "rows": given.rows, "anchors": given.anchors, "rate": given.rate, "warmup": 0.03,
            "seed": given.seed, "steps": given.steps or 1,
        }
    )  # fmt: skip
    learner = pairs.drafter(
        clock,
        target,
        arm,
        texts,
        held[:48],
        out / pairs.RUN,
        until=clock.until(0.85),
        steps=given.steps,
        flex=False if given.plain_attention else None,
    )
    judged = pairs.judged(clock, learner, target, held, "judged-code", out, loop=given.loop)
    woken = experts_woken(target, [sample.tokens for sample in held])
    pairs.write(out / "experts.json", {"woken": woken, "of": shape.experts, "provenance": pairs.origin(target, held)})
    clock.say(
        "experts at 1, 4, 8, 16: "
        + json.dumps({k: [round(v[n - 1], 2) for n in (1, 4, 8, 16)] for k, v in woken.items()})
    )

    def load(draft: str, block: int, width: str) -> Target:
        return load_fast(
            str(out / "target"), draft, device=device, weights="bf16", block=block or None, width=width,
            cache=out / "packed",
        ).target  # fmt: skip

    pairs.speeds(
        clock, load, out / pairs.RUN, held[: given.timed], judged.survival, out / "speed.json", target,
        widths=WIDTHS[given.shape],
    )  # fmt: skip
    clock.say("done")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = pairs.parser("hybrid_pair", __doc__, most=128, timed=8)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="hybrid")
    parser.add_argument("--characters", type=int, default=30_000_000, help="of source code")
    parser.add_argument("--tokenizer-files", type=int, default=200, help="that the tokenizer is made from")
    parser.add_argument("--length", type=int, default=256, help="tokens of a row, for the target")
    parser.add_argument("--target-batch", type=int, default=192, help="rows of a step, for the target")
    parser.add_argument("--target-rate", type=float, default=2e-3)
    parser.add_argument("--target-steps", type=int, default=0, help="0: as many as fit")
    parser.add_argument("--say-every", type=int, default=50)
    parser.add_argument("--texts", type=int, default=16000, help="that the drafter is trained on")
    parser.add_argument("--prompt", type=int, default=48, help="tokens of code that are continued")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
