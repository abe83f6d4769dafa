import pytest
import torch

from inference_node.kernels.plain import draft_context as plain
from inference_node.kernels.plain.kv_write import rope_table
from inference_node.kernels.triton import draft_context as fast
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


def run(module, rows, start, valid, dtype=torch.float32, hidden=40, layers=2, kv_heads=2, dim=16, skip=0):
    """Pages of all layers. Fillers are NaN; with `skip`, the same rows of one context begin that much later."""
    context = unwritten(rows, hidden, dtype=dtype)
    context[:valid] = normal(32, hidden, seed=1, dtype=dtype)[skip : skip + valid]
    weight = normal(layers, 2, kv_heads * dim, hidden, seed=2, dtype=dtype, scale=0.2)
    rope = rope_table(torch.linspace(0.01, 1.0, dim // 2, device=DEVICE), 1.0, 600)
    tables = torch.stack([whole(2, 0, 1), whole(1, 2, 0)])[:layers]
    pages = unwritten(3, layers, 2, kv_heads, 256, dim, dtype=dtype)
    keys, values = (pages[:, :, which].transpose(0, 1) for which in (0, 1))
    module.write(
        context,
        weight,
        normal(layers, dim, seed=3),
        rope,
        tables,
        whole(start + skip),
        whole(valid),
        keys,
        values,
        1e-6,
    )
    return pages


@pytest.mark.parametrize(("rows", "start", "valid"), [(5, 0, 5), (16, 250, 15), (5, 256, 1), (3, 7, 0), (20, 500, 20)])
def test_all_layers_pages_are_the_twins(rows, start, valid):
    assert is_a_kernel(fast._write)
    assert close(run(fast, rows, start, valid), run(plain, rows, start, valid), 1e-5)  # fp32 sums in another order


def test_half_floats():
    how = {"dtype": torch.float16, "hidden": 64, "layers": 1}
    assert close(run(fast, 4, 3, 4, **how), run(plain, 4, 3, 4, **how), WITHIN[torch.float16])


def test_a_row_alone_is_written_with_the_bits_it_has_among_others():
    together, alone = run(fast, 5, 254, 5), run(fast, 5, 254, 1, skip=3)
    written = ~alone.isnan()
    assert written.any() and same_bits(alone[written], together[written])
