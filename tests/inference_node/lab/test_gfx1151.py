"""What the first machine's chip gets, checked without the chip. In a process of its own: launchers choose by device.

With the Triton that images for AMD chips get, which is not the one that the usual torch asks for.
"""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import inference_node
from tests.support.standin_images import cache_folder, one_at_a_time

PINNED = Path(inference_node.__file__).with_name("triton-for-amd.txt")

SCRIPT = """
import json, sys
from inference_node.lab import gfx1151
launches = {gfx1151.key(launch): launch for launch in gfx1151.all_launches()}
done = [gfx1151.compile_for_gfx1151(launch) for launch in launches.values()]
import triton
print(json.dumps([(d.name, d.wmma, d.dots, d.faults) for d in done]))
print(triton.__version__)
"""


def triton_for_amd() -> Path | None:
    """The folder that it lies in, installed there once per machine; None where it is the environment's own."""
    version = PINNED.read_text().split()[-1].removeprefix("triton==")
    if metadata.version("triton") == version:
        return None
    folder = cache_folder() / f"triton-{version}-{sys.version_info.major}{sys.version_info.minor}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(Path(f"{folder}.lock")):
        if not folder.is_dir():
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", f"{folder}.partial"]
            subprocess.run([*install, "-r", str(PINNED)], check=True)
            Path(f"{folder}.partial").rename(folder)
    return folder


@pytest.fixture(scope="module")
def compiled():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if folder := triton_for_amd():
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), environment.get("PYTHONPATH"))))
    made = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=900)
    assert made.returncode == 0, made.stderr[-2000:]
    told, version = made.stdout.splitlines()[-2:]
    assert PINNED.read_text().endswith(f"\ntriton=={version}\n")
    return json.loads(told)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_kernel_in_use_fits_gfx1151(compiled):
    assert not {name: faults for name, _, _, faults in compiled if faults}


@pytest.mark.timeout(900)
def test_every_kernel_that_the_engine_has_is_among_them(compiled):
    """A kernel nobody compiled is a kernel nobody checked."""
    from inference_node.kernels.triton import ops

    modules = {getattr(ops, name).__module__.rsplit(".", 1)[-1] for name in ops.__all__}
    assert modules <= {name.split(".")[0] for name, *_ in compiled}


def test_products_of_matrices_are_seen(compiled):
    """The check of matrix instructions would pass on nothing if the compiler's text were read wrongly."""
    with_dots = {name for name, _, dots, _ in compiled if dots}
    assert {"linear.linear", "paged_attention.attend", "gated_delta_prefill.walk"} <= with_dots
