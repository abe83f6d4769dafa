"""The sampling noise of `plain/philox.py` inside a kernel: the same words, the same rounding.

Logarithms come from the device's library (CUDA's and ROCm's differ in the last bit, as they do for torch), because
Triton's own `log` is an approximation, and the small E = -log1p(-v) that wins an argmax must be right to the last bits.
The interpreter has no device library and takes double precision instead.
Checked by: tests/inference_node/kernels/triton/test_head.py
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def philox_noise(position, b_id, seed_low, seed_high, LIBRARY: tl.constexpr):
    """Gumbel noise fp32 for token ids at a position; both int32, of shapes that broadcast. seed words int32."""
    b_0 = (position + b_id * 0).to(tl.uint32, bitcast=True)
    b_1 = (b_id + position * 0).to(tl.uint32, bitcast=True)
    b_2 = b_0 * 0
    b_3 = b_2
    key_0 = seed_low.to(tl.uint32, bitcast=True)
    key_1 = seed_high.to(tl.uint32, bitcast=True)
    for _ in tl.static_range(10):
        b_wide_0 = b_0.to(tl.uint64) * 0xD2511F53
        b_wide_1 = b_2.to(tl.uint64) * 0xCD9E8D57
        b_0 = (b_wide_1 >> 32).to(tl.uint32) ^ b_1 ^ key_0
        b_1 = b_wide_1.to(tl.uint32)
        b_2 = (b_wide_0 >> 32).to(tl.uint32) ^ b_3 ^ key_1
        b_3 = b_wide_0.to(tl.uint32)
        key_0 = (key_0.to(tl.uint64) + 0x9E3779B9).to(tl.uint32)
        key_1 = (key_1.to(tl.uint64) + 0xBB67AE85).to(tl.uint32)
    b_uniform = b_0.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10  # 2^-32, 2^-33
    if LIBRARY:
        return -libdevice.log(-libdevice.log1p(-b_uniform))
    b_exact = b_uniform.to(tl.float64)
    return (-tl.log(-tl.log(1.0 - b_exact))).to(tl.float32)
