"""Every kernel by itself, beside the passes that they make up: the table of `bench kernels`."""

from __future__ import annotations

from inference_node.lab import bench_kernels
from inference_node.lab.whole.live import Bench


def kernels(bench: Bench) -> None:
    """A figure file of its own."""
    names = {"--shape": bench.shape_name, "--device": str(bench.device), "--repeat": "3", "--commit": bench.commit}
    if bench.out is not None:
        names["--out"] = str(bench.out)
    bench_kernels.main([f"{option}={value}" for option, value in names.items() if value])
