import pytest
import torch
from torch.nn import functional as F

from inference_node.kernels.plain import causal_conv


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("bias", [True, False])
def test_it_is_torchs_causal_depthwise_convolution(rows, bias):
    weight, shift = torch.randn(12, 4), torch.randn(12) if bias else None
    before, x = torch.randn(3, 12), torch.randn(rows, 12)
    got = causal_conv.convolve(causal_conv.window(x, before, 4), weight, shift)
    line = torch.cat([before, x]).t()[None]
    expected = F.silu(F.conv1d(line, weight[:, None], shift, groups=12))[0].t()
    assert torch.allclose(got, expected, atol=1e-6)  # same four products, another order


@pytest.mark.parametrize("kept", [0, 1, 2, 3, 5, 8])
def test_the_tail_after_some_rows_is_what_the_next_block_must_see_before_it(kept):
    """Bug class: conv state left behind when the matrix is rolled back. The block's rows are the conv's history too."""
    before, x, fillers = torch.randn(3, 16), torch.randn(8, 16), torch.zeros(kept, 16)
    weight = torch.randn(16, 4)
    whole = causal_conv.convolve(causal_conv.window(x, before, 4), weight, None)
    tail = causal_conv.tail(x, before, kept)
    rest = causal_conv.convolve(causal_conv.window(torch.cat([x[kept:], fillers]), tail, 4), weight, None)
    assert torch.equal(whole[kept:], rest[: 8 - kept])


def test_a_row_has_the_same_bits_alone_and_in_a_block_in_bf16():
    before, x = torch.randn(3, 16).bfloat16(), torch.randn(8, 16).bfloat16()
    weight = torch.randn(16, 4).bfloat16()
    whole = causal_conv.convolve(causal_conv.window(x, before, 4), weight, None)
    for row in range(8):
        tail = causal_conv.tail(x, before, row)
        padded = torch.cat([x[row : row + 1], torch.randn(7, 16).bfloat16()])
        alone = causal_conv.convolve(causal_conv.window(padded, tail, 4), weight, None)
        assert torch.equal(alone[0], whole[row])
