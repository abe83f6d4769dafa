"""Loading from disk: half the layers, cold where the page cache may be dropped."""

from __future__ import annotations

import gc
import json
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from inference_node.fast import reading
from inference_node.fast import weights as fast_weights
from inference_node.fast.sizes import Sizes, sizes
from inference_node.fast.weights import layer_places
from inference_node.lab.fabricate import target_config
from inference_node.lab.fast_model import random_weights
from inference_node.lab.shapes import Shape
from inference_node.lab.whole.live import (
    Bench,
    synchronize,
)
from inference_node.models import weights as model_weights
from inference_node.models.files import ModelFiles, find


def loading(bench: Bench) -> None:
    """Half the layers from disk: GB/s into the device (cold, if the page cache may be dropped) and the host's peak."""
    shape = replace(bench.shape, layers=bench.shape.layers // 2)
    bench.target = None
    gc.collect()  # a runner and its pieces know each other
    torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory(dir=bench.out) as folder:
        files, size = _written(Path(folder), shape, bench.device)
        began, before = time.perf_counter(), _peak_reset()
        made = fast_weights.load(size, reading.stored(files), "half", torch.bfloat16, bench.device)
        synchronize(bench)
        seconds = time.perf_counter() - began
        bench.tell(loading_gb=made.bytes / 1e9, loading_gb_s=made.bytes / seconds / 1e9)
        bench.tell(loading_host_peak_gb=_peak() - before, loading_cache_dropped=float(_dropped()))


def _written(folder: Path, shape: Shape, device: torch.device) -> tuple[ModelFiles, Sizes]:
    """A random model of this shape as files under the released names."""
    (folder / "config.json").write_text(json.dumps(target_config("qwen3_5_moe", shape, [0])), encoding="utf-8")
    files = find(str(folder))
    size = sizes(model_weights.text_config(files))
    made = random_weights(size, torch.bfloat16, device)
    top = {"embed_tokens.weight": made.embedding, "norm.weight": made.norm, "lm_head.weight": made.head.data}
    for layer in range(-1, size.layers):
        if layer >= 0:
            mixer, mlp = made.mixers[layer], made.mlps[layer]
            top = {place.name: place.into for place in layer_places(size, layer, mixer, mlp, single=False)}
        named = {name if name == "lm_head.weight" else f"model.language_model.{name}": t for name, t in top.items()}
        save_file({name: tensor.cpu() for name, tensor in named.items()}, folder / f"part-{layer + 1:02d}.safetensors")
    os.sync()
    with suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("3")
    return files, size


def _dropped() -> bool:
    return os.access("/proc/sys/vm/drop_caches", os.W_OK)


def _peak_reset() -> float:
    """The process's resident memory in GB; the peak is counted from here on."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> float:
    return _status("VmHWM")


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024 / 1e9
