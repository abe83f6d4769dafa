"""Compile every kernel and configuration in use for gfx1151, without such a card.

    python -m inference_node.lab.gfx1151 [FOLDER]

Why: the first machine this is for has that chip and CI has none. Triton's own compiler runs anywhere, and what it says
decides whether a kernel can be any good there: it must compile, spill no register, stay under 64 KiB of LDS, and use
the matrix unit where it has a dot product. The launchers themselves are run, with tensors that have shapes and no
memory, and what they would launch is written down instead: so the configurations are those in use, never a copy.
With a folder the table goes to FOLDER/gfx1151.json.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LDS_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with what its launcher gave it."""

    kernel: Any  # JITFunction
    values: dict[str, Any]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        module = self.kernel.fn.__module__.rsplit(".", 1)[-1]
        return f"{module}.{self.kernel.fn.__name__.strip('_')}"


@dataclass(frozen=True, slots=True)
class Compiled:
    name: str
    vgprs: int
    spills: int
    lds_bytes: int
    dots: bool  # whether the source has a dot product
    wmma: int  # matrix instructions

    @property
    def faults(self) -> list[str]:
        return [
            text
            for bad, text in (
                (self.spills > 0, f"{self.spills} spilled registers"),
                (self.lds_bytes > LDS_BYTES, f"{self.lds_bytes} bytes of LDS"),
                (self.dots and not self.wmma, "a dot product without the matrix unit"),
            )
            if bad
        ]


def main() -> int:
    found: dict[str, float] = {}
    worst: dict[str, Compiled] = {}
    launches = {key(launch): launch for launch in all_launches()}
    for launch in launches.values():
        done = compile_for_gfx1151(launch)
        print(f"{done.name:36} {done.vgprs:4} VGPRs {done.lds_bytes:6} LDS {done.wmma:4} wmma "
              f"{'; '.join(done.faults)}", flush=True)  # fmt: skip
        if done.name not in worst or (done.spills, done.vgprs) > (worst[done.name].spills, worst[done.name].vgprs):
            worst[done.name] = done
        found["spills"] = found.get("spills", 0) + done.spills
        found["worst_lds_bytes"] = max(found.get("worst_lds_bytes", 0), done.lds_bytes)
    found["kernels"] = len(launches)
    for name, done in sorted(worst.items()):
        found |= {f"{name}_vgprs": done.vgprs, f"{name}_lds_bytes": done.lds_bytes}
    if len(sys.argv) > 1:
        from inference_node.lab import figures

        figures.record(Path(sys.argv[1]), "gfx1151", "python -m inference_node.lab.gfx1151 docs/figures", found)
    return int(found["spills"] > 0)


def all_launches() -> Iterator[Launch]:
    """Everything that the fast engine launches at the 35B's shapes."""
    import torch

    torch.version.hip = "for gfx1151"  # launchers choose their cuts by it; nothing is run in this process
    from inference_node.lab import gfx1151_calls

    for call in gfx1151_calls.calls():
        yield from recorded(call)


def recorded(call: Callable[[], Any]) -> list[Launch]:
    """What a call would launch."""
    from triton.runtime.jit import JITFunction

    seen: list[Launch] = []

    def note(kernel: Any, *args: Any, grid: Any, warmup: bool, **given: Any) -> None:
        values = dict(zip(kernel.arg_names, args, strict=False))
        values |= {name: value for name, value in given.items() if name in kernel.arg_names}
        seen.append(Launch(kernel, values, {n: v for n, v in given.items() if n not in kernel.arg_names}))

    run, JITFunction.run = JITFunction.run, note  # type: ignore[method-assign]
    try:
        call()
    finally:
        JITFunction.run = run  # type: ignore[method-assign]
    return seen


def key(launch: Launch) -> str:
    """Launches with the same key are the same program."""
    signature, constants, attributes = specialised(launch)
    return repr(
        (launch.name, signature, sorted(constants.items(), key=str), attributes, sorted(launch.options.items()))
    )


def compile_for_gfx1151(launch: Launch) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants, attributes = specialised(launch)
    source = ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=attributes)
    options = {name: value for name, value in launch.options.items() if name != "launch_pdl"}  # NVIDIA's
    made = triton.compile(source, target=GPUTarget("hip", "gfx1151", 32), options=options)
    assembly = made.asm["amdgcn"]

    def number(field: str) -> int:
        return max(int(text) for text in re.findall(rf"\.{field}:\s+(\d+)", assembly))

    return Compiled(
        name=launch.name,
        vgprs=number("vgpr_count"),
        spills=number("vgpr_spill_count") + number("sgpr_spill_count"),
        lds_bytes=int(made.metadata.shared),
        dots="tt.dot" in made.asm["ttir"],
        wmma=assembly.count("v_wmma"),
    )


def specialised(launch: Launch) -> tuple[dict[str, str], dict[Any, Any], dict[Any, Any]]:
    """Types, constants and known divisibilities, as Triton derives them from arguments."""
    import torch

    names = {
        torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64", torch.int8: "*i8",
        torch.uint8: "*u8", torch.bool: "*i1",
    }  # fmt: skip
    signature: dict[str, str] = {}
    constants: dict[Any, Any] = {}
    attributes: dict[Any, Any] = {}
    for index, parameter in enumerate(launch.kernel.params):
        name = parameter.name
        value = launch.values.get(name, getattr(parameter, "default", None))
        if parameter.is_constexpr or value is None:
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name] = names[value.dtype]
            if value.storage_offset() * value.element_size() % 16 == 0:
                attributes[(index,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif value == 1 and not parameter.do_not_specialize:
            signature[name], constants[name] = "constexpr", 1
        else:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0 and not parameter.do_not_specialize:
                attributes[(index,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes


if __name__ == "__main__":
    sys.exit(main())
