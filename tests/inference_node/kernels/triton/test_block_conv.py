"""The convolution inside a block, against its twin and against the module that drafters are trained with."""

from types import SimpleNamespace

import pytest
import torch

from inference_node.kernels.plain import block_conv as plain
from inference_node.kernels.triton import block_conv as fast
from inference_node.models.drafter import BlockConv
from tests.inference_node.kernels.triton.helpers import (
    DEVICE,
    TYPES,
    WITHIN,
    close,
    is_a_kernel,
    normal,
    same_bits,
    unwritten,
    whole,
)


def run(module, valid, place, dtype=torch.float32, *, rows=5, width=48, taps=2, group=16, residual=True, poison=None):
    x, own = normal(rows, width, seed=1, dtype=dtype), normal(rows, 2 * taps * width // group, seed=2, dtype=dtype)
    if poison is not None:
        x[valid:], own[valid:] = poison, poison
    out = unwritten(rows, width, dtype=dtype)
    if residual:  # as it is used: the sum goes where it comes from
        out[:valid] = normal(rows, width, seed=4, dtype=dtype)[:valid]
    base = normal(2, taps, width, seed=3)
    return module.block_conv(x, own, base, whole(valid), place, out, residual=out if residual else None)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("valid", "place", "shape"), [
    (5, 0, {}), (5, 1, {}), (0, 1, {}), (1, 0, {"rows": 1}), (3, 1, {"taps": 4, "group": 8}), (4, 0, {"width": 1040}),
])  # fmt: skip
def test_every_row_is_the_twins_and_fillers_are_not_written(dtype, valid, place, shape):
    assert is_a_kernel(fast._block_conv)
    for residual in (False, True):
        found, expected = (run(m, valid, place, dtype, residual=residual, **shape) for m in (fast, plain))
        assert close(found, expected, WITHIN[dtype])
        assert found[valid:].isnan().all()


@pytest.mark.parametrize("place", [0, 1])
def test_it_is_what_drafters_are_trained_with(place):
    """Bug class: taps in the other order, the other place's kernel, a group's number at other columns."""
    config = SimpleNamespace(conv_kernel=3, conv_group=8, hidden=32)
    module = BlockConv(config).to(DEVICE)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(normal(*parameter.shape, seed=7))
        u, x = normal(6, 32, seed=1), normal(6, 32, seed=2)
        expected = module(x, module.kernels(u), place)
        own = module.kernel_projection(u)
        found = fast.block_conv(x, own, module.base_kernel.detach(), whole(6), place, unwritten(6, 32))
    assert close(found, expected, 1e-5)


def test_fillers_are_not_read_and_a_row_does_not_depend_on_later_ones():
    clean = run(fast, 3, 1, residual=False)
    assert same_bits(run(fast, 3, 1, residual=False, poison=float("nan"))[:3], clean[:3])
    assert same_bits(run(fast, 5, 1, residual=False)[:3], clean[:3])


def test_what_does_not_fit_is_refused():
    x = normal(2, 32, seed=1)
    with pytest.raises(ValueError, match="out is x"):
        fast.block_conv(x, normal(2, 8, seed=2), normal(2, 2, 32, seed=3), whole(2), 0, x)
    with pytest.raises(ValueError, match=r"own is \(2, 7\)"):
        fast.block_conv(x, normal(2, 7, seed=2), normal(2, 2, 32, seed=3), whole(2), 0, unwritten(2, 32))
