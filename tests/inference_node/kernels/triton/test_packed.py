import pytest
import torch

from inference_node.kernels.plain.packed import FP4, Weight, pack_int8, pack_mxfp4, unpack
from tests.inference_node.kernels.triton.helpers import normal


def test_int8_is_off_by_half_a_step_at_most():
    matrix = normal(3, 40, 50, seed=1).cpu()
    packed = pack_int8(matrix)
    step = matrix.abs().amax(-1, keepdim=True) / 127
    assert packed.kind == "int8" and packed.shape == (3, 40, 50)
    assert bool(((unpack(packed) - matrix).abs() <= step * 0.5001).all())


def test_a_row_of_zeros_stays_zeros():
    packed = pack_int8(torch.zeros(2, 32))
    assert torch.equal(unpack(packed), torch.zeros(2, 32))
    assert torch.equal(unpack(pack_mxfp4(torch.zeros(2, 32))), torch.zeros(2, 32))


def test_mxfp4_rounds_to_the_nearest_of_its_grid():
    """Against a search over the whole grid, with the block's power of two as OCP says: floor(log2 max) - 2."""
    matrix = normal(5, 64, seed=2).cpu()
    power = torch.floor(torch.log2(matrix.view(5, 2, 32).abs().amax(-1, keepdim=True))) - 2
    scaled = matrix.view(5, 2, 32) * 2.0**-power
    grid = torch.tensor(FP4)
    nearest = (scaled[..., None] - grid).abs().amin(-1)
    found = unpack(pack_mxfp4(matrix)).view(5, 2, 32) * 2.0**-power
    assert torch.allclose((found - scaled).abs(), nearest, atol=1e-6)


def test_mxfp4_keeps_its_own_numbers_exactly():
    values = torch.tensor(FP4 * 2).view(1, 32) * 2.0**-7
    assert torch.equal(unpack(pack_mxfp4(values)), values)


def test_ties_go_to_the_even_code():
    line = torch.zeros(32)
    line[:9] = torch.tensor([6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -5.0])
    assert unpack(pack_mxfp4(line[None]))[0, :9].tolist() == [6.0, 0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, -4.0]


def test_packing_a_piece_gives_the_piece_of_the_packed():
    """So that a loader can pack as it reads."""
    stack = normal(3, 8, 64, seed=3).cpu()
    for pack in (pack_int8, pack_mxfp4):
        whole, piece = pack(stack)[1], pack(stack[1])
        assert whole.scale is not None and piece.scale is not None
        assert torch.equal(whole.data, piece.data) and torch.equal(whole.scale, piece.scale)


def test_bytes_are_counted():
    matrix = torch.zeros(4, 64, dtype=torch.bfloat16)
    assert Weight(matrix).bytes == 4 * 64 * 2
    assert pack_int8(matrix).bytes == 4 * 64 + 4 * 4
    assert pack_mxfp4(matrix).bytes == 4 * 32 + 4 * 2


@pytest.mark.parametrize(
    ("data", "scale"),
    [
        (torch.zeros(4, 64), torch.zeros(4)),  # a float weight needs none
        (torch.zeros(4, 64, dtype=torch.int8), None),
        (torch.zeros(4, 64, dtype=torch.int8), torch.zeros(64)),  # one per output row, not per column
        (torch.zeros(4, 32, dtype=torch.uint8), torch.zeros(4, 4, dtype=torch.uint8)),
        (torch.zeros(4, 64, dtype=torch.int64), None),
        (torch.zeros(64, 4).t(), None),  # not contiguous
    ],
)
def test_what_is_no_weight_is_refused(data, scale):
    with pytest.raises(ValueError):
        Weight(data, scale)


def test_mxfp4_wants_blocks_of_32():
    with pytest.raises(ValueError, match="32"):
        pack_mxfp4(torch.zeros(4, 40))
