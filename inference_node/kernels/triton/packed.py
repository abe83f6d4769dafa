"""How kernels turn packed weights into numbers; forms in `plain/packed.py`.

Checked by: tests/inference_node/kernels/triton/test_linear.py, test_expert_mlp.py
"""

from __future__ import annotations

import triton
import triton.language as tl

from inference_node.kernels.plain.packed import Weight

KINDS = {"bf16": 0, "int8": 1, "mxfp4": 2}
"""Numbers by which kernels are compiled for a form (KIND)."""


def operand(weight: Weight) -> tuple[object, object, int]:
    """Data, scale (data again where there is none) and KIND, as kernels take them."""
    return weight.data, weight.data if weight.scale is None else weight.scale, KINDS[weight.kind]


@triton.jit
def fp4_values(b_code, b_power, type: tl.constexpr):
    """4-bit floats times 2^(power - 127), power from 1 on; both int32. Made by shifting bits into place: exact."""
    b_size = b_code & 7
    b_one = (b_power - 1) << 23  # the value's exponent is its own two bits, less 1, plus the block's
    b_bits = tl.where(b_size == 0, 0, tl.where(b_size == 1, b_one, b_one + (b_size << 22)))
    b_bits = b_bits | ((b_code >> 3) << 31)
    if type == tl.bfloat16:
        return (b_bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        return b_bits.to(tl.float32, bitcast=True).to(type)
