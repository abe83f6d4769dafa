"""The kernels compile for Strix Halo. In a process of its own: where there is no accelerator, this one interprets."""

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The compiler's answers by name, and the exit status."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    run = subprocess.run(
        [sys.executable, "-m", "inference_node.lab.gfx1151", "--json"],
        env=environment,
        capture_output=True,
        text=True,
    )
    return [json.loads(line) for line in run.stdout.splitlines()], run


def test_nothing_spills_and_products_use_the_matrix_units(found):
    kernels, run = found
    assert run.returncode == 0, run.stderr[-2000:]
    assert len(kernels) > 30 and all(kernel["spills"] == 0 for kernel in kernels)
    assert max(kernel["lds_bytes"] for kernel in kernels) <= 64 << 10


def test_a_kernel_that_is_not_good_enough_is_named():
    from inference_node.lab.gfx1151 import Compiled

    bad = Compiled("some kernel", vgprs=256, spills=3, lds_bytes=70_000, wmma=0)
    assert [fault.split(" ", 2)[2] for fault in bad.faults(product=True)] == [
        "spills 3 registers",
        "takes 70000 bytes of LDS; a workgroup has 65536",
        "has a product and no matrix instruction",
    ]
    assert not Compiled("good", vgprs=90, spills=0, lds_bytes=1024, wmma=0).faults(product=False)
