import pytest
import torch

from inference_node.kernels.plain import kv_write as plain
from inference_node.kernels.triton import kv_write as fast
from tests.inference_node.kernels.triton.helpers import (
    DEVICE,
    WITHIN,
    close,
    is_a_kernel,
    normal,
    same_bits,
    unwritten,
    whole,
)


def run(module, rows, start, valid, dtype=torch.float32, heads=3, kv_heads=1, dim=24, half=4, poison=None):
    """Queries and pages; queries have a gate beside them, keys and values lie in one projection."""
    q = normal(rows, heads, 2 * dim, seed=1, dtype=dtype)[:, :, :dim]
    both = normal(rows, 2 * kv_heads, dim, seed=2, dtype=dtype)
    if poison is not None:
        q[valid:], both[valid:] = poison, poison
    frequency = torch.linspace(0.01, 1.0, half, device=DEVICE)
    pages = unwritten(4, 2, kv_heads, 256, dim, dtype=dtype)
    out = unwritten(rows, heads, dim, dtype=dtype)
    module.write(
        q, both[:, :kv_heads], both[:, kv_heads:], normal(dim, seed=3), normal(dim, seed=4),
        plain.rope_table(frequency, 1.0, 600), whole(3, 1, 2), whole(start), whole(valid), pages[:, 0], pages[:, 1],
        out, 1e-6,
    )  # fmt: skip
    return out, pages


@pytest.mark.parametrize("dtype", WITHIN)
@pytest.mark.parametrize(("start", "valid"), [(0, 5), (254, 5), (511, 1), (7, 0)])
def test_queries_and_pages_are_the_twins(dtype, start, valid):
    if dtype == torch.bfloat16 and DEVICE.type == "cpu":
        dtype = torch.float16  # the interpreter has no bf16
    assert is_a_kernel(fast._write)
    for found, expected in zip(run(fast, 5, start, valid, dtype), run(plain, 5, start, valid, dtype), strict=True):
        assert close(found, expected, WITHIN[dtype]), "and nothing else is written"


def test_a_head_that_is_rotated_whole_and_one_row():
    how = {"dim": 16, "half": 8, "heads": 2, "kv_heads": 2}
    for found, expected in zip(run(fast, 1, 9, 1, **how), run(plain, 1, 9, 1, **how), strict=True):
        assert close(found, expected, 1e-5)


def test_fillers_are_not_read():
    for found, expected in zip(run(fast, 5, 250, 3, poison=float("nan")), run(fast, 5, 250, 3), strict=True):
        assert same_bits(found, expected)
