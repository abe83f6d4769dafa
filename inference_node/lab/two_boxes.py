"""Training on one box with states from another: two processes in two network namespaces, with a cable of given speed.

    python -m inference_node.lab.two_boxes --out docs/figures

One side serves states (`lamplighter-node train states`), the other trains. What is shown:

    throughput      tokens per second at each speed of the link, in bf16 and fp8, and the share of the link that is used
    cut             the cable is pulled while a run is under way and put back: it ends with the weights of a run whose
                    cable stayed, having trained on each step's texts once
    wrong model     a trainer whose model differs in one tensor gets nothing

Needs root, ip and tc. Namespaces and links are taken away at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from inference_node.lab import figures
from inference_node.lab.fabricate import fabricate_target
from inference_node.models.errors import NodeError
from inference_node.train import arm as arms
from inference_node.train import run as running
from inference_node.train import sample as samples
from inference_node.train.sample import Sample
from inference_node.train.session import Session

NODE, TRAINER = "10.77.31.1", "10.77.31.2"
PORT = 8790
TAPS = (0, 1, 2)


@dataclass
class Boxes:
    """Two namespaces with a cable between them."""

    number: int = os.getpid() % 10000

    @property
    def node(self) -> str:
        return f"lt-node-{self.number}"

    @property
    def trainer(self) -> str:
        return f"lt-train-{self.number}"

    def inside(self, name: str) -> list[str]:
        return ["ip", "netns", "exec", name]

    def make(self) -> None:
        """Raises NodeError where it cannot be done."""
        try:
            for name in (self.node, self.trainer):
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            ends = f"lt{self.number}a", f"lt{self.number}b"
            _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
            for name, end, address in zip((self.node, self.trainer), ends, (NODE, TRAINER), strict=True):
                _ip("link", "set", end, "netns", name)
                _ip("-n", name, "link", "set", end, "name", "cable")
                _ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
                _ip("-n", name, "link", "set", "cable", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            self.remove()
            told = getattr(error, "stderr", "") or str(error)
            raise NodeError(f"Two boxes need root and network namespaces: {told.strip()}") from None

    def limit(self, mbit: float) -> None:
        """Speed of the cable, in both directions. Raises NodeError."""
        for name in (self.node, self.trainer):
            rate = ["rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms"]
            command = ["tc", "-n", name, "qdisc", "replace", "dev", "cable", "root", "tbf", *rate]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise NodeError(f"The cable's speed cannot be limited here: {done.stderr.strip()}")

    def pull(self) -> None:
        """What is sent is lost, and nobody is told."""
        _ip("-n", self.node, "link", "set", "cable", "down")

    def mend(self) -> None:
        _ip("-n", self.node, "link", "set", "cable", "up")

    def remove(self) -> None:
        for name in (self.node, self.trainer):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@contextmanager
def boxes() -> Iterator[Boxes]:
    made = Boxes()
    made.make()
    try:
        yield made
    finally:
        made.remove()


@contextmanager
def serving(made: Boxes, model: Path, *, threads: int = 1) -> Iterator[None]:
    """A node that serves states, in its box."""
    command = [sys.executable, "-m", "inference_node", "train", "states", "--model", str(model), "--device", "cpu"]
    command += ["--weights", "fp32", "--host", NODE, "--port", str(PORT)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    process = subprocess.Popen(
        [*made.inside(made.node), *command],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "/v1" in line:
                break
        else:
            raise NodeError(f"The node ended: {''.join(said[-5:])}")
        threading.Thread(target=process.stderr.read, daemon=True).start()  # so that it never waits to be heard
        yield
    finally:
        process.terminate()
        process.wait(30)


def training(
    made: Boxes,
    work: Path,
    name: str,
    *,
    model: Path,
    keys: dict[str, Any],
    kind: str = "bf16",
    silence_s: float = 30.0,
) -> subprocess.Popen[str]:
    """A trainer in its box; its lines come on its standard output, its weights stand in work/name."""
    told = {"model": str(model), "keys": keys, "kind": kind, "silence_s": silence_s, "out": str(work / name)}
    command = [sys.executable, "-m", "inference_node.lab.two_boxes", "--trainer", json.dumps(told)]
    command += ["--texts", str(work / "texts.jsonl")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*made.inside(made.trainer), *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def as_trainer(told: dict[str, Any], texts: Path) -> int:
    """What runs in the trainer's box: one line per step with the texts that it trained on."""
    torch.set_num_threads(1)

    def hear(text: str) -> None:
        print(json.dumps({"heard": text}), flush=True)

    session = Session.remote(
        arms.made(told["keys"]), samples.read(texts), told["model"], f"http://{NODE}:{PORT}", device="cpu",
        kind=told["kind"], silence_s=told["silence_s"], told=hear,
    )  # fmt: skip
    inner = session.source.states
    seen: list[list[str]] = []

    def states(asked: Sequence[Sample]) -> Any:
        found = inner(asked)
        seen.append([sample.id for sample in asked])
        return found

    setattr(session.source, "states", states)  # noqa: B010  (the protocol's method, for this run)
    stamps = [time.monotonic()]

    def line(one: running.Line) -> None:
        stamps.append(time.monotonic())
        print(json.dumps({"step": one.step, "texts": seen[-1], "loss": one.loss}), flush=True)

    with closing(session):
        session.train(Path(told["out"]), told=line, log_every=1)
    weights = torch.cat([weight.detach().flatten() for weight in session.learner.module.parameters()])
    torch.save(weights, Path(told["out"]) / "weights.pt")
    tokens = [sum(len(sample.tokens) for sample in session.samples if sample.id in ids) for ids in seen]
    print(
        json.dumps(
            {"bytes": session.source.bytes, "tokens": sum(tokens), "seconds": stamps[-1] - stamps[0],  # type: ignore[attr-defined]
             "last_tokens": sum(tokens[len(tokens) // 2 :]), "last_seconds": stamps[-1] - stamps[len(tokens) // 2]}
        ),
        flush=True,
    )  # fmt: skip
    return 0


def heard(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Everything a trainer said. Raises NodeError with its last lines when it ended badly."""
    assert process.stdout is not None
    lines = process.stdout.read().splitlines()
    if process.wait():
        raise NodeError("The trainer ended: " + " / ".join(lines[-3:]))
    return [json.loads(line) for line in lines if line.startswith("{")]


def texts_of(count: int, length: int, vocab: int = 400) -> list[Sample]:
    """Random texts: what is measured does not depend on what they say."""
    generator = torch.Generator().manual_seed(3)
    return [
        Sample(f"t{i}", tuple(torch.randint(10, vocab, (length,), generator=generator).tolist()), ((4, length),))
        for i in range(count)
    ]


def cut_and_mended(made: Boxes, work: Path, model: Path, keys: dict[str, Any], *, away_s: float) -> dict[str, Any]:
    """Two runs, one with the cable pulled in between: what they have in common."""
    whole = heard(training(made, work, "whole", model=model, keys=keys))
    process = training(made, work, "cut", model=model, keys=keys, silence_s=max(1.0, away_s / 3))
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if '"step": 2' in line:
            break
    made.pull()
    time.sleep(away_s)
    made.mend()
    _ip("-n", made.trainer, "link", "set", "cable", "up")
    rest = heard(process)
    cut = [json.loads(line) for line in lines if line.startswith("{")] + rest
    steps = [[one for one in run if "step" in one] for run in (whole, cut)]
    same = torch.equal(torch.load(work / "whole" / "weights.pt"), torch.load(work / "cut" / "weights.pt"))
    return {
        "weights_equal": same,
        "texts_equal": [one["texts"] for one in steps[0]] == [one["texts"] for one in steps[1]],
        "steps_once": [one["step"] for one in steps[1]] == list(range(1, keys["steps"] + 1)),
        "said": [one["heard"] for one in cut if "heard" in one],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m inference_node.lab.two_boxes", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    parser.add_argument("--speeds", default="10,25,100,1000", help="of the link, in Mbit/s")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--trainer", default="", help=argparse.SUPPRESS)
    parser.add_argument("--texts", type=Path, default=None, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.trainer:
        return as_trainer(json.loads(given.trainer), given.texts)
    found: dict[str, float] = {}
    keys = {"block": 4, "rows": 512, "anchors": 16, "taps": TAPS, "steps": given.steps, "layers": 1, "intermediate": 64}
    with TemporaryDirectory() as folder, boxes() as made:
        work = Path(folder)
        model = fabricate_target(work / "model", "qwen3")
        samples.write(work / "texts.jsonl", texts_of(64, 250))
        with serving(made, model):
            for mbit in (float(one) for one in given.speeds.split(",")):
                made.limit(mbit)
                for kind in ("bf16", "fp8"):
                    name = f"{kind}-{mbit:g}"
                    said = heard(training(made, work, name, model=model, keys=keys, kind=kind))[-1]
                    speed = said["last_tokens"] / said["last_seconds"]
                    used = said["bytes"] / said["tokens"] * speed * 8 / 1e6 / mbit
                    found |= {f"tokens_per_s_{kind}_{mbit:g}mbit": speed, f"link_used_{kind}_{mbit:g}mbit": used}
                    print(f"{mbit:g} Mbit/s {kind}: {speed:,.0f} tokens/s, {100 * used:.0f} % of the link", flush=True)
            made.limit(100)
            cut = cut_and_mended(made, work, model, {**keys, "steps": 8}, away_s=4.0)
            print(json.dumps(cut), flush=True)
            found |= {name: float(cut[name]) for name in ("weights_equal", "texts_equal", "steps_once")}
    command = figures.command("two_boxes", parser, given)
    print(figures.record(given.out, "two-boxes", command, found, model="fabricated qwen3, hidden 64, 3 taps"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
