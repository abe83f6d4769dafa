"""What the first machine's chip gets, checked without the chip. In a process of its own: launchers choose by device."""

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys
from inference_node.lab import gfx1151
launches = {gfx1151.key(launch): launch for launch in gfx1151.all_launches()}
done = [gfx1151.compile_for_gfx1151(launch) for launch in launches.values()]
print(json.dumps([(d.name, d.wmma, d.dots, d.faults) for d in done]))
"""


@pytest.fixture(scope="module")
def compiled():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    made = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=900)
    assert made.returncode == 0, made.stderr[-2000:]
    return json.loads(made.stdout.splitlines()[-1])


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
