import pytest
import torch

from inference_node.kernels.plain import prefill_attention as plain
from inference_node.kernels.triton import prefill_attention as fast
from tests.inference_node.kernels.triton.helpers import DEVICE, close, is_a_kernel, normal, same_bits, unwritten, whole

CONTEXT, DIM = 320, 16
TABLE = (2, 0)


def run(module, start, n, valid, heads=2, kv_heads=1, dtype=torch.float32, **how):
    """Rows start.. of one fixed prompt; whatever is not valid is NaN."""
    q, gate = (normal(CONTEXT, heads, DIM, seed=seed, dtype=dtype) for seed in (1, 2))
    kv = normal(2, kv_heads, CONTEXT, DIM, seed=3, dtype=dtype)
    pages = torch.full((3, 2, kv_heads, 256, DIM), float("nan"), dtype=dtype, device=DEVICE)
    for index, page in enumerate(TABLE):
        first, last = index * 256, min(start + valid, index * 256 + 256)
        if last > first:
            pages[page, :, :, : last - first] = kv[:, :, first:last]
    given = [unwritten(n, heads, DIM, dtype=dtype) for _ in range(2)]
    for padded, rows in zip(given, (q, gate), strict=True):
        padded[:valid] = rows[start : start + valid]
    out = unwritten(n, heads, DIM, dtype=dtype)
    module.attend(
        given[0], pages[:, 0], pages[:, 1], whole(*TABLE), start, valid, out, scale=0.25, gate=given[1], **how
    )
    return out


@pytest.mark.parametrize(("start", "n", "valid"), [(0, 64, 1), (192, 128, 70)])
def test_the_kernel_is_its_twin(start, n, valid):
    assert is_a_kernel(fast._attend)
    found = run(fast, start, n, valid)
    assert close(found, run(plain, start, n, valid), 1e-5)  # fp32 sums in another order
    assert not found[valid:].any()


def test_half_floats_and_heads_that_share_nothing():
    how = {"heads": 3, "kv_heads": 3, "dtype": torch.float16}
    assert close(run(fast, 0, 64, 60, **how), run(plain, 0, 64, 60, **how), 5e-3)  # probabilities rounded to fp16


def test_a_prompt_in_pieces_has_the_bits_of_one():
    whole_prompt = run(fast, 0, 128, 128)
    assert same_bits(torch.cat([run(fast, 0, 64, 64), run(fast, 64, 64, 64)]), whole_prompt)


def test_pieces_that_begin_elsewhere_are_refused():
    with pytest.raises(ValueError, match="multiples of 64"):
        run(fast, 32, 64, 64)
