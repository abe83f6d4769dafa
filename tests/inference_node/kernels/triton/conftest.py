from collections.abc import Iterator

import numpy as np
import pytest
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from tests.inference_node.kernels.triton.helpers import DEVICE


@pytest.fixture(autouse=True, scope="package")
def rows_alike() -> Iterator[None]:
    """A matrix unit adds up each row of a tile in one order. numpy's BLAS does not on every CPU (its kernels for AVX2
    give row 7 of 16 other bits than row 0), so in the interpreter each row is multiplied by itself."""
    if DEVICE.type != "cpu":
        yield
        return

    def dot(self, a, b, d, *_):
        rows = np.matmul(a.data[..., :, None, :], b.data[..., None, :, :], dtype=d.data.dtype)
        return TensorHandle(rows[..., 0, :] + d.data, d.dtype.scalar)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_dot", dot)
        yield
