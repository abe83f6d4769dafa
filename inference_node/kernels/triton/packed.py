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
def fp4_values(b_code, b_power):
    """4-bit floats times 2^(power - 127), in fp32; both int32."""
    b_exponent = (b_code >> 1) & 3
    b_fraction = b_code & 1
    b_small = tl.where(b_fraction == 1, 126 << 23, 0)  # 0.5 or 0
    b_bits = tl.where(b_exponent == 0, b_small, ((b_exponent + 126) << 23) | (b_fraction << 22))
    b_bits = b_bits | ((b_code >> 3) << 31)
    return b_bits.to(tl.float32, bitcast=True) * (b_power << 23).to(tl.float32, bitcast=True)
