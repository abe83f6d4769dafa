"""Calls into the cache: made where they can be, of no more than is there, and nowhere else.

Compiled for a card that has them by Triton's own compiler, in processes of their own: the interpreter that the other
tests here run in knows no instruction.
"""

import json
import os
import subprocess
import sys

import pytest
import torch

from inference_node.kernels.triton import ahead

SCRIPT = """
import json, sys
from functools import partial
from inference_node.kernels.plain.linear import feed
from inference_node.kernels.plain.packed import Weight
from inference_node.kernels.triton import ahead, ops
from inference_node.lab import gfx1151, gfx1151_calls as shapes
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

ahead.BYTES, ahead.EARLY = int(sys.argv[1]), sys.argv[2] == "early"
bf16, valid = shapes.bf16, shapes.int32(1)
plan = shapes.plan(256, 8, True, shapes.META)
up, down = Weight(bf16(257, 1024, 2048)), Weight(bf16(257, 2048, 512))
x, hidden = bf16(16, 2048), bf16(16, 9, 512)
calls = [
    partial(ops.linear, bf16(16, 4096), Weight(bf16(2048, 4096)), valid, x, residual=x, after=up.data[-1]),
    partial(ops.expert_up, x, up, plan, hidden, after=down.data),
    partial(ops.expert_down, hidden, down, plan, valid, x, x, after=bf16(12352, 2048)),
]
told = []
for call in calls:
    [launch] = gfx1151.recorded(call)
    signature, constants, attributes = gfx1151.specialised(launch)
    source = ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=attributes)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=launch.options)
    lines = made.asm["ptx"].splitlines()
    fetches = [n for n, line in enumerate(lines) if "cp.async.bulk.prefetch.L2" in line]
    products = [n for n, line in enumerate(lines) if "mma.sync" in line or "wgmma" in line]
    told.append([launch.name, len(fetches), bool(fetches) and fetches[0] < products[0], "cubin" in made.asm])
print(json.dumps(told))
"""


def compiled(size: int, when: str) -> list[tuple[str, int, bool, bool]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", SCRIPT, str(size), when]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr[-2000:]
    return json.loads(made.stdout.splitlines()[-1])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("when", ["late", "early"])
def test_the_kernels_before_a_weight_call_it_where_they_are_told_to(when):
    found = compiled(16 << 20, when)
    assert [name for name, *_ in found] == ["linear.linear", "expert_mlp.up", "expert_mlp.down"]
    for _, fetches, first, assembled in found:
        assert fetches >= 1
        assert first is (when == "early")
        assert assembled


@pytest.mark.timeout(300)
def test_nothing_is_called_where_nothing_is_asked_for():
    assert [fetches for _, fetches, *_ in compiled(0, "late")] == [0, 0, 0]


def test_no_more_is_called_than_the_weight_has(monkeypatch):
    monkeypatch.setattr(ahead, "BYTES", 1 << 20)
    weight = torch.empty(100, 64, dtype=torch.bfloat16, device="meta")
    assert ahead.pieces(weight) == 100 * 64 * 2 // ahead.PIECE
    assert ahead.pieces(torch.empty(1 << 21, dtype=torch.bfloat16, device="meta")) == (1 << 20) // ahead.PIECE
    assert ahead.pieces(None) == 0


def test_a_device_without_the_instruction_is_asked_for_nothing(monkeypatch):
    monkeypatch.setattr(ahead, "BYTES", 1 << 20)
    assert ahead.pieces(torch.empty(1 << 21)) == 0
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert ahead.pieces(torch.empty(1 << 21, device="meta")) == 0
