"""What the fast engine takes on this machine, at real shapes: `lamplighter-node bench verify` and `bench eta`.

A random model is made on the device. Routing is imposed to wake a given number of experts per block, acceptance by a
seeded sequence with a stated mean; fold and drafter context follow it as they would a real one. Times are medians over
replays of the captured graphs; bits are compared at every position. Results are told as they come and written at the
end, so that a run that is cut short has still said what it found.

    python -m inference_node.lab.fast_bench --shape 35b-a3b --out docs/figures
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from inference_node.lab import figures
from inference_node.lab.fast_model import random_target
from inference_node.lab.shapes import SHAPES
from inference_node.lab.whole import bits, drafters, files, passes, peers
from inference_node.lab.whole.live import Bench, synchronize

PARTS: dict[str, Callable[[Bench], None]] = {
    "copy": passes.copy,
    "verify": passes.verify,
    "draft": passes.draft,
    "gaps": passes.gaps,
    "eta": passes.eta,
    "bits": bits.bits,
    "int8": passes.int8,
    "constrained": passes.constrained,
    "text": bits.text,
    "drafters": drafters.drafters,
    "prefill": passes.prefill,
    "long": passes.long,
    "experts": peers.experts,
    "transformers": peers.transformers,
    "loading": files.loading,
}
"""In the order of their worth, for runs that are cut short."""


def run(bench: Bench, parts: Sequence[str]) -> None:
    """Every part by itself: what fails is told and the rest goes on."""
    for part in parts:
        began = time.perf_counter()
        try:
            with torch.inference_mode():
                PARTS[part](bench)
        except Exception:
            print(f"{part} FAILED\n{traceback.format_exc()}", flush=True)
            if bench.target is not None:
                bench.runner.model.imposed = bench.runner.shared.imposed = None
        print(f"-- {part}: {time.perf_counter() - began:.1f} s", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lamplighter-node bench", description="Measure the fast engine.")
    parser.add_argument("--shape", default="35b-a3b", choices=sorted(SHAPES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--contexts", default="1024,16384")
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--positions", type=int, default=2048, help="for the comparison of bits, per rollback")
    parser.add_argument("--text", type=int, default=768, help="tokens that are compared with drafts and without")
    parser.add_argument("--tiles", type=Path, help="of lab/tune_rows.py, in place of those in kernels/triton/tiles.py")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--name", default="fast-h200", help="of the figure file")
    parser.add_argument("--commit", help="of the tree that is measured, where git does not know it")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    contexts = tuple(int(context) for context in options.contexts.split(","))
    if options.tiles is not None:
        from inference_node.lab import tune_rows

        tune_rows.apply(options.tiles)
    shape, out = SHAPES[options.shape], options.out
    bench = Bench(shape, device, contexts, options.repeat, options.positions, options.text, out)
    began = time.perf_counter()
    block = 16 if options.shape != "small" else 8
    room = max(contexts[-1] + 4096, 8192 + 64, options.positions + 512)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.inference_mode():
        bench.target = random_target(
            bench.shape, device, context=min(room, bench.shape.positions - 64), block=block, dtype=dtype
        )
    synchronize(bench)
    print(f"{bench.live.facts.weight_bytes / 1e9:.1f} GB of weights made in {time.perf_counter() - began:.1f} s")
    run(bench, options.parts.split(","))
    if options.out is not None and device.type == "cuda":
        command = figures.command("fast_bench", parser, options)
        more = {"model": f"random, shape {options.shape}"} | ({"commit": options.commit} if options.commit else {})
        print(figures.record(options.out, options.name, command, bench.found, **more))
    return 0


if __name__ == "__main__":
    sys.exit(main())
