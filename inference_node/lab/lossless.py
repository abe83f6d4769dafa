"""Is the text the same with speculation and without? Counted over models, drafters, settings and types.

Every cell generates the same number of tokens twice: plainly, one token per pass, and with a drafter, from the same
seed. A token that differs is a mismatch; there must be none, in fp32 and in bf16. While drafts are in play, every cache
row that nothing may read is filled with NaN, -0.0 or a huge number after each cycle.

A second look asks how far plain text is from unmodified transformers, by margins: with the same tokens forced on both,
by how many logits does transformers (fp32) prefer another token than the one that was said.

    python -m inference_node.lab.lossless --tokens 100000 --out docs/figures
    python -m inference_node.lab.lossless --engine fast --device cuda --model TARGET --draft DRAFTER --out docs/figures
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from inference_node.fast.loading import load_fast
from inference_node.fast.target import FastTarget
from inference_node.lab import figures
from inference_node.lab.fabricate import Fabricated, fabricate_pair
from inference_node.lab.oracles import WAYS, Oracle
from inference_node.models import files as model_files
from inference_node.models.mtp import MultiToken
from inference_node.speculate.loading import load_reference
from inference_node.speculate.mtp import MtpDrafter
from inference_node.speculate.propose import Drafter, NgramDrafter
from inference_node.speculate.reference import ReferenceTarget
from inference_node.speculate.seam import Cut, Sampling

FAMILIES = ("qwen3_5_moe", "qwen3_5", "qwen3")  # hybrid with experts, hybrid dense, plain
WEIGHTS = ("float32", "bfloat16")
SETTINGS = (
    Sampling(),
    Sampling(temperature=0.3, seed=11),
    Sampling(temperature=1.0, seed=12, top_p=0.95),
    Sampling(temperature=1.5, seed=13, top_p=0.9, top_k=40),
)
DRAFTERS = (*WAYS, "dflash", "ngram", "mtp")
FAST_ROLLBACKS = ("fold", "snapshots", "replay")
FAST_WIDTHS = ("off", "adaptive", "3")
FAST_DRAFTERS = (*WAYS, "dflash", "ngram")
POISONS = (math.nan, -0.0, 3e38)
BLOCK = 8
PROMPT = 200  # so that longer generations cross the first cache page's end


@dataclass(frozen=True, slots=True)
class Cell:
    family: str
    weights: str
    sampling: Sampling
    drafter: str

    def __str__(self) -> str:
        heat = "greedy" if self.sampling.greedy else f"T {self.sampling.temperature}"
        return f"{self.family} {self.weights} {heat} {self.drafter}"


@dataclass
class Tally:
    """What was counted. cycles and accepted show that drafts were really in play."""

    tokens: int = 0
    mismatches: int = 0
    cycles: int = 0
    accepted: int = 0
    cells: int = 0
    parted: list[str] = field(default_factory=list)  # cells whose texts part, with the place

    def add(self, cell: object, plain: Sequence[int], other: Sequence[int], cycles: int, accepted: int) -> None:
        self.cells += 1
        self.tokens += len(plain)
        wrong = [i for i in range(max(len(plain), len(other))) if plain[i : i + 1] != other[i : i + 1]]
        self.mismatches += len(wrong)
        self.cycles += cycles
        self.accepted += accepted
        if wrong:
            self.parted.append(f"{cell}: first at token {wrong[0]}")

    def join(self, other: Tally) -> None:
        """Both counts are this one's."""
        for name in ("tokens", "mismatches", "cycles", "accepted", "cells"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.parted += other.parted


@dataclass(frozen=True, slots=True)
class Plain:
    """Plain text of one model under one setting; drafters are compared with it."""

    prompt: list[int]
    said: list[int]


def compare(
    folder: Path,
    tokens: int,
    told: Callable[[str], None] = lambda line: None,
    device: str = "cpu",
    workers: int = 1,
) -> tuple[Tally, dict[str, float]]:
    """Run all cells with about `tokens` in total, by this process or some others. Returns the tally, and margins
    against transformers."""
    each = max(8, math.ceil(tokens / (len(FAMILIES) * len(WEIGHTS) * len(SETTINGS) * len(DRAFTERS))))
    models = [
        Model(str(folder / family / weights), family, weights, rollback, each, device)
        for family in FAMILIES
        for weights, rollback in zip(WEIGHTS, ("replay", "snapshots"), strict=True)
    ]
    tally, margins = Tally(), Margins()
    threads, many = (torch.get_num_threads(),), multiprocessing.get_context("spawn")
    with many.Pool(workers, torch.set_num_threads, threads) if workers > 1 else nullcontext() as pool:
        done = map(_of_model, models) if pool is None else pool.imap_unordered(_of_model, models)
        for lines, one, counted in done:
            tally.join(one)
            margins.join(counted)
            for line in lines:
                told(line)
    return tally, margins.figures()


@dataclass(frozen=True, slots=True)
class Model:
    """One fabricated pair in one type, and how much it says in each cell."""

    folder: str
    family: str
    weights: str
    rollback: str
    each: int
    device: str


def _of_model(model: Model) -> tuple[list[str], Tally, Margins]:
    """All cells of one model, and a line about each."""
    quieten()
    tally, margins, lines = Tally(), Margins(), []
    pair = fabricate_pair(Path(model.folder), model.family, block=BLOCK, mtp=True)
    target = load_reference(
        str(pair.target), str(pair.drafter), weights=model.weights, rollback=model.rollback, device=model.device
    ).target
    for cell, drafter, plain in _cells(model.family, model.weights, target, pair, model.each):
        target.pair.drafter = drafter
        said, cycles, accepted = speak(target, plain.prompt, cell.sampling, model.each, poison=True)
        tally.add(cell, plain.said, said, cycles, accepted)
        if cell.drafter == DRAFTERS[0] and cell.sampling.greedy:
            margins.add(pair.target, model.weights, plain)
        lines.append(f"{cell}: {(accepted + cycles) / cycles:.2f} tokens a cycle; {tally.mismatches} wrong so far")
    target.close()
    return lines, tally, margins


def compare_fast(
    folder: Path, tokens: int, told: Callable[[str], None] = lambda line: None, device: str = "cpu"
) -> Tally:
    """The same for the fast engine: rollbacks and widths in turn, every drafter that it knows."""
    ways = [(rollback, width) for rollback in FAST_ROLLBACKS for width in FAST_WIDTHS]
    cells = [
        (family, weights, sampling)
        for family in FAMILIES
        for weights in (WEIGHTS if device == "cpu" else WEIGHTS[1:])
        for sampling in SETTINGS
    ]
    each = max(8, math.ceil(tokens / (len(cells) * len(FAST_DRAFTERS))))
    tally = Tally()
    pairs = {family: fabricate_pair(folder / family, family, block=BLOCK, mtp=False) for family in FAMILIES}
    for number, (family, weights, sampling) in enumerate(cells):
        plain = None
        for turn, name in enumerate(FAST_DRAFTERS):
            rollback, width = ways[(number + turn) % len(ways)]
            target = load_fast(
                str(pairs[family].target), str(pairs[family].drafter), weights=weights, rollback=rollback,
                width=width, device=device, prefix_bytes=1 << 24,
            ).target  # fmt: skip
            ids = target.facts.known_ids
            if plain is None:
                prompt = torch.randint(ids, (PROMPT,), generator=torch.Generator().manual_seed(sampling.seed)).tolist()
                plain = Plain(prompt, speak(target, prompt, sampling, each, poison=False, draft=False)[0])
            if name != "dflash":
                text = [*plain.prompt, *plain.said]
                target.host_drafter = NgramDrafter(BLOCK) if name == "ngram" else Oracle(name, text, ids, BLOCK)
            said, cycles, accepted = speak(target, plain.prompt, sampling, each, poison=True)
            cell = f"{Cell(family, weights, sampling, name)} {rollback} {width}"
            tally.add(cell, plain.said, said, cycles, accepted)
            told(f"{cell}: {(accepted + cycles) / cycles:.2f} tokens a cycle; wrong so far: {tally.mismatches}")
            target.close()
    return tally


def compare_pair(
    model: str, draft: str, tokens: int, told: Callable[[str], None] = lambda line: None, device: str = "cpu",
    each: int = 1000,
) -> Tally:  # fmt: skip
    """The same for a target and a drafter from files, in the fast engine: texts of `each` tokens from prompts of random
    ids; rollbacks and settings in turn, each text at two widths of a verify. At least `tokens` of them."""
    tally = Tally()
    weights = WEIGHTS[0] if device == "cpu" else WEIGHTS[1]
    turns = [(rollback, sampling) for rollback in FAST_ROLLBACKS for sampling in SETTINGS]
    for turn, (rollback, sampling) in enumerate(turns):
        targets = {
            width: load_fast(
                model, draft, weights=weights, rollback=rollback, width=width, device=device, prefix_bytes=1 << 24
            ).target
            for width in ("off", "3")
        }
        texts = math.ceil(tokens / (2 * each * len(turns)))
        for text in range(texts):
            random = torch.Generator().manual_seed(1000 * turn + text)
            prompt = torch.randint(targets["off"].facts.known_ids, (PROMPT,), generator=random).tolist()
            drawn = replace(sampling, seed=sampling.seed + text)
            plain = speak(targets["off"], prompt, drawn, each, poison=False, draft=False)[0]
            for width, target in targets.items():
                cell = f"T {drawn.temperature} {rollback} {width} text {text}"
                said, cycles, accepted = speak(target, prompt, drawn, each, poison=False)
                tally.add(cell, plain, said, cycles, accepted)
        told(f"{rollback}, T {sampling.temperature}: {tally.tokens} tokens, {tally.mismatches} wrong so far")
        for target in targets.values():
            target.close()
    return tally


def speak(
    target: ReferenceTarget | FastTarget,
    prompt: Sequence[int],
    sampling: Sampling,
    budget: int,
    *,
    poison: bool,
    draft: bool = True,
) -> tuple[list[int], int, int]:
    """A generation from nothing: its tokens, cycles, and drafts accepted."""
    target.reset()
    target.prefill(prompt[:-1])
    target.begin(prompt, sampling, budget=budget, draft=draft)
    said: list[int] = []
    cycles = accepted = 0
    while (result := target.cycle().read()).cut is not Cut.IDLE:
        said += result.tokens
        accepted += result.accepted
        cycles += 1
        if poison:
            target.poison(POISONS[cycles % len(POISONS)])
    return said, cycles, accepted


def _cells(
    family: str, weights: str, target: ReferenceTarget, pair: Fabricated, each: int
) -> Iterator[tuple[Cell, Drafter, Plain]]:
    dflash, ids = target.pair.drafter, target.pair.model.known_ids
    mtp = MtpDrafter(_own_head(pair.target, target), BLOCK)
    for sampling in SETTINGS:
        prompt = torch.randint(ids, (PROMPT,), generator=torch.Generator().manual_seed(sampling.seed)).tolist()
        target.pair.drafter = NgramDrafter(BLOCK)
        plain = Plain(prompt, speak(target, prompt, sampling, each, poison=False, draft=False)[0])
        for name in DRAFTERS:
            drafter: Drafter
            if name == "dflash":
                drafter = dflash
            elif name == "ngram":
                drafter = NgramDrafter(BLOCK)
            elif name == "mtp":
                drafter = mtp
            else:
                drafter = Oracle(name, [*prompt, *plain.said], ids, BLOCK)
            yield Cell(family, weights, sampling, name), drafter, plain


def _own_head(folder: Path, target: ReferenceTarget) -> MultiToken:
    tensors = model_files.SafetensorFiles(folder)
    names = [name for name in tensors.shapes() if name.startswith("mtp.")]
    model = target.pair.model
    read = {name.removeprefix("mtp."): tensors.read(name).to(model.device, model.dtype) for name in names}
    return MultiToken(read, model, str(folder))


@dataclass
class Margins:
    """How far greedy text of ours is from transformers' own forward over the same tokens.

    The margin of a token is how much higher transformers' best logit is, in fp32 and with the same weights. Beside ours
    stands what transformers itself gets when it runs in bf16: that much is rounding, not us.
    """

    tokens: dict[str, int] = field(default_factory=dict)
    differing: dict[str, int] = field(default_factory=dict)
    worst: dict[str, float] = field(default_factory=dict)

    def add(self, folder: Path, weights: str, plain: Plain) -> None:
        exact = transformers_logits(folder, torch.float32, plain)
        self._count(weights, exact, torch.tensor(plain.said))
        if weights == "bfloat16":
            self._count("transformers", exact, transformers_logits(folder, torch.bfloat16, plain).argmax(-1))

    def join(self, other: Margins) -> None:
        """Both counts are this one's."""
        for who in other.tokens:
            self.tokens[who] = self.tokens.get(who, 0) + other.tokens[who]
            self.differing[who] = self.differing.get(who, 0) + other.differing[who]
            self.worst[who] = max(self.worst.get(who, 0.0), other.worst[who])

    def figures(self) -> dict[str, float]:
        short = {"float32": "fp32", "bfloat16": "bf16", "transformers": "transformers_bf16"}
        found: dict[str, float] = {}
        for who, name in short.items():
            if who in self.tokens:
                found[f"{name}_worst_margin"] = round(self.worst[who], 4)
                found[f"{name}_disagreement"] = round(self.differing[who] / self.tokens[who], 5)
        return found

    def _count(self, who: str, exact: torch.Tensor, said: torch.Tensor) -> None:
        margin = exact.max(-1).values - exact.gather(-1, said[:, None])[:, 0]
        self.tokens[who] = self.tokens.get(who, 0) + len(said)
        self.differing[who] = self.differing.get(who, 0) + int((margin > 0).sum())
        self.worst[who] = max(self.worst.get(who, 0.0), float(margin.max()))


def transformers_logits(folder: Path, dtype: torch.dtype, plain: Plain) -> torch.Tensor:
    """[said, ids] fp32: unmodified transformers over prompt and text at once, at the rows that chose the text."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    with torch.inference_mode():
        rows = model(torch.tensor([[*plain.prompt, *plain.said]])).logits[0].to(torch.float32)
    tokenizer = model_files.find(str(folder)).tokenizer
    known = rows.shape[-1] if tokenizer is None else len(tokenizer)
    return rows[len(plain.prompt) - 1 : -1, :known]


def quieten() -> None:
    """transformers reports each file it loads, and the multi-token tensors that it leaves out."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare text with and without speculation on fabricated models.")
    parser.add_argument("--tokens", type=int, default=100_000, help="in total over all cells")
    parser.add_argument("--out", type=Path, help="folder to write lossless.json into")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--workers", type=int, default=1, help="processes that share the reference's models, six at most"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engine", choices=["reference", "fast"], default="reference")
    parser.add_argument("--model", default="", help="folder of a target, in place of fabricated ones (fast engine)")
    parser.add_argument("--draft", default="", help="folder of its drafter")
    parser.add_argument("--each", type=int, default=1000, help="tokens of a text of that target")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    quieten()
    with tempfile.TemporaryDirectory() as folder:
        margins: dict[str, float] = {}
        if options.model:
            tally = compare_pair(
                options.model, options.draft, options.tokens, lambda line: print(line, flush=True), options.device,
                options.each,
            )  # fmt: skip
        elif options.engine == "fast":
            tally = compare_fast(Path(folder), options.tokens, lambda line: print(line, flush=True), options.device)
        else:
            tally, margins = compare(
                Path(folder), options.tokens, lambda line: print(line, flush=True), options.device, options.workers
            )  # fmt: skip
    print(f"{tally.tokens} tokens, {tally.mismatches} mismatches; {tally.accepted} drafts accepted")
    for line in tally.parted:
        print(line)
    if options.out is not None:
        counted = {"tokens": tally.tokens, "mismatches": tally.mismatches, **margins}
        counted |= {"cells": tally.cells, "accepted": tally.accepted}
        command = figures.command("lossless", parser, options)
        name = "lossless" if options.engine == "reference" else "lossless-fast"
        model = "fabricated, 4 layers, hidden 64"
        if options.model:
            name, model = "lossless-pair", "the hybrid pair of lab/hybrid_pair.py"
        print(figures.record(options.out, name, command, counted, model=model))
    return 1 if tally.mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
