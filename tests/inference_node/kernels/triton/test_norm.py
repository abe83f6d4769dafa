import pytest

from inference_node.kernels.plain import norm as plain
from inference_node.kernels.triton import norm as fast
from tests.inference_node.kernels.triton.helpers import TYPES, WITHIN, close, is_a_kernel, normal, unwritten, whole


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "width"), [(5, 72), (1, 64), (0, 64), (40, 33)])
def test_a_norm_is_the_twins(rows, width, dtype):
    x, factor = normal(rows, width, seed=1, dtype=dtype, scale=3.0), normal(width, seed=2)
    expected = plain.norm(x, factor, unwritten(rows, width, dtype=dtype))
    assert close(fast.norm(x, factor, unwritten(rows, width, dtype=dtype)), expected, WITHIN[dtype])
    assert is_a_kernel(fast._norm)


def test_a_gated_norm_is_the_twins_over_heads_that_lie_apart():
    wide = normal(6, 4 * 3 * 24, seed=6)
    x, gate = wide[:, :72].unflatten(1, (3, 24)), wide[:, 150:222].unflatten(1, (3, 24))
    factor = normal(24, seed=7)
    expected = plain.gated_norm(x, gate, factor, unwritten(6, 3, 24), valid=whole(5))
    assert close(fast.gated_norm(x, gate, factor, unwritten(6, 3, 24), valid=whole(5)), expected, 1e-5)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="factors"):
        fast.norm(normal(4, 64, seed=1), normal(32, seed=2), unwritten(4, 64))
    with pytest.raises(ValueError, match=r"expected \(4, 64\)"):
        fast.norm(normal(4, 64, seed=1), normal(64, seed=2), unwritten(4, 32))
