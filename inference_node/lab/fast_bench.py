"""What the fast engine takes on this machine, at real shapes: `lamplighter-node bench verify` and `bench eta`.

A random model is made on the device. Routing is imposed to wake a given number of experts per block, acceptance by a
seeded sequence with a stated mean; fold and drafter context follow it as they would a real one. Times are medians over
replays of the captured graphs; bits are compared at every position. Results are told as they come and the figure file
is written after every part, so that a run that is cut short has still left what it found.

    python -m inference_node.lab.fast_bench --shape 35b-a3b --out docs/figures
    python -m inference_node.lab.fast_bench --model FOLDER --draft FOLDER --out docs/figures
    python -m inference_node.lab.fast_bench --seconds 370 --contexts 1024,16384,131072 --text 3000 --out FOLDER

The second is a model from files: routing and acceptance are imposed on it too, and it has the parts that need no
random model. The third is for an accelerator that is lent for some minutes: kernels are compiled by all cores first,
parts come in the order of their worth, and one whose usual time is more than what is left is passed over and named.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from inference_node.fast.loading import load_fast
from inference_node.kernels.triton import expert_mlp
from inference_node.lab import figures
from inference_node.lab.compiling import compile_all
from inference_node.lab.fast_model import random_target
from inference_node.lab.shapes import SHAPES
from inference_node.lab.whole import bits, drafters, endurance, files, halves, kernels, margins, passes, peers
from inference_node.lab.whole.live import Bench, synchronize
from inference_node.models.files import find
from inference_node.models.weights import text_config

PARTS: dict[str, tuple[Callable[[Bench], None], int]] = {
    "copy": (passes.copy, 2),
    "verify": (passes.verify, 25),
    "draft": (passes.draft, 4),
    "gaps": (passes.gaps, 6),
    "eta": (passes.eta, 25),
    "halves": (halves.halves, 20),
    "bits": (bits.bits, 25),
    "kernels": (kernels.kernels, 50),
    "experts": (peers.experts, 15),
    "prefill": (passes.prefill, 15),
    "text": (bits.text, 40),
    "int8": (passes.int8, 25),
    "constrained": (passes.constrained, 10),
    "margins": (margins.margins, 40),
    "transformers": (peers.transformers, 25),
    "endurance": (endurance.endurance, 55),
    "long": (passes.long, 80),
    "drafters": (drafters.drafters, 60),
    "loading": (files.loading, 90),
}
"""In the order of their worth, with the seconds that each takes on an H200, roughly."""


OF_FILES = ("copy", "verify", "draft", "gaps", "eta", "prefill", "constrained", "long", "endurance")
"""Parts for a model from files. The others make targets of their own over random weights."""


def run(bench: Bench, parts: Sequence[str], record: Callable[[], None], until: float = math.inf) -> list[str]:
    """Every part by itself: what fails is told and the rest goes on. Returns those that failed or had no time left."""
    missing = []
    for part in parts:
        measure, usual = PARTS[part]
        began = time.perf_counter()
        if began + usual > until:
            missing.append(part)
            print(f"-- {part}: not begun, {until - began:.0f} s are left", flush=True)
            continue
        try:
            with torch.inference_mode():
                measure(bench)
        except Exception:
            missing.append(part)
            print(f"{part} FAILED\n{traceback.format_exc()}", flush=True)
            if bench.target is not None:
                bench.runner.model.imposed = bench.runner.shared.imposed = None
                bench.runner.graphs.forget()
        record()
        print(f"-- {part}: {time.perf_counter() - began:.1f} s", flush=True)
    return missing


def from_files(bench: Bench, model: str, draft: str, weights: str, room: int) -> None:
    """The target and its shape."""
    most = int(text_config(find(model)).max_position_embeddings)
    target = load_fast(
        model, draft, device=str(bench.device), weights=weights if bench.device.type == "cuda" else "fp32",
        context=min(room, most), prefix_bytes=0,
    ).target  # fmt: skip
    s = target.runner.model.sizes
    m, d = s.mixture, s.delta
    bench.target, bench.shape = target, replace(
        bench.shape, hidden=s.hidden, layers=s.layers, heads=s.heads, kv_heads=s.kv_heads, head_dim=s.head_dim,
        intermediate=s.intermediate, vocab=s.vocab, positions=s.positions,
        **({} if m is None else {"experts": m.experts, "experts_per_token": m.top, "expert_width": m.width}),
        **({} if d is None else {
            "linear_key_heads": d.key_heads, "linear_value_heads": d.value_heads, "linear_dim": d.value_dim
        }),
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lamplighter-node bench", description="Measure the fast engine.")
    parser.add_argument("--shape", default="35b-a3b", choices=sorted(SHAPES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", help="a target from files, in place of a random one")
    parser.add_argument("--draft", default="none", help="its drafter: a folder or id, or mtp")
    parser.add_argument("--weights", default="bf16", help="of that target: bf16, int8 or mxfp4")
    parser.add_argument("--parts", help="by default all that the model has, in this order")
    parser.add_argument("--contexts", default="1024,16384")
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--positions", type=int, default=2048, help="for the comparison of bits, per rollback")
    parser.add_argument("--text", type=int, default=768, help="tokens that are compared with drafts and without")
    parser.add_argument("--tiles", type=Path, help="of lab/tune_rows.py, in place of those in kernels/triton/tiles.py")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--name", help="of the figure file: by default fast-h200, of a model from files fast-files")
    parser.add_argument("--commit", help="of the tree that is measured, where git does not know it")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no part is begun that would end later")
    parser.add_argument("--halves", action="store_true", help="two programs a tile in the experts' second product")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    expert_mlp.HALVES = options.halves
    device = torch.device(options.device)
    contexts = tuple(int(context) for context in options.contexts.split(","))
    if options.tiles is not None:
        from inference_node.lab import tune_rows

        tune_rows.apply(options.tiles)
    shape, out = SHAPES[options.shape], options.out
    parts = options.parts.split(",") if options.parts else list(OF_FILES if options.model else PARTS)
    if options.model and (other := sorted(set(parts) - set(OF_FILES))):
        parser.error(f"{', '.join(other)}: only a random model has these parts")
    bench = Bench(shape, device, contexts, options.repeat, options.positions, options.text, out, commit=options.commit)
    if device.type == "cuda" and options.shape == "35b-a3b" and not options.model:
        failed = compile_all((False, True) if "halves" in parts else (options.halves,))
        print("\n".join([*failed, f"-- compiled: {time.perf_counter() - began:.1f} s"]), flush=True)
    block = 16 if options.shape != "small" else 8
    room = max(contexts[-1] + 4096, 8192 + 64, options.positions + 512)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.inference_mode():
        if options.model:
            from_files(bench, options.model, options.draft, options.weights, room)
        else:
            context = min(room, bench.shape.positions - 64)
            bench.target = random_target(bench.shape, device, context=context, block=block, dtype=dtype)
    synchronize(bench)
    there = bench.live.facts.weight_bytes / 1e9
    print(f"{there:.1f} GB of weights are there; {time.perf_counter() - began:.1f} s", flush=True)
    command = figures.command("fast_bench", parser, options)
    more = {"model": bench.live.facts.name if options.model else f"random, shape {options.shape}"}
    more |= {"commit": options.commit} if options.commit else {}
    name = options.name or ("fast-files" if options.model else "fast-h200")

    def record() -> None:
        if out is not None and device.type == "cuda":
            figures.record(out, name, command, bench.found, **more)

    missing = run(bench, parts, record, began + options.seconds)
    print(f"-- all: {time.perf_counter() - began:.1f} s; missing: {', '.join(missing) or 'nothing'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
