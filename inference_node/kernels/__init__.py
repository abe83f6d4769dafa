"""Numeric building blocks. They know tensors and nothing of models, requests or text.

`plain` holds them in ordinary torch, for any device: what the reference forward is made of, and the twins that the fast
kernels are compared with. `triton` holds the fast ones, one file per kernel with the name of its twin and functions of
equal signature. `ops(device)` gives the right set for a device.

Inside Triton kernels names have one prefix scheme:

    p_   pointer to the first element of a tensor
    b_   a block of values in registers
    o_   offsets or indices, such as o_k = k0 + arange(BLOCK_K)
    i_   which program this is, or which piece of work it does
    UPPER_CASE  known when compiling; everything else is known at launch

The launcher beside a kernel checks shapes and raises; the kernel assumes. What a launcher needs to know at run time
(valid rows, positions, woken experts) lies in int32 tensors on the device, so that a captured graph stays right.
`out` rows from `valid` on are left alone unless a docstring says otherwise.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch


def ops(device: torch.device, *, plain: bool | None = None) -> Any:
    """The functions of `plain.ops` or `triton.ops`, which have the same names: the plain ones on a CPU, or as told."""
    side = "plain" if (device.type == "cpu" if plain is None else plain) else "triton"
    return import_module(f"inference_node.kernels.{side}.ops")
