"""Sampling noise as a function of (seed, position, token id).

Why: when the noise at a place does not depend on who proposed the token, the token picked there is the same with and
without speculation, at every temperature. A counter generator gives that: no state, no order.

    r      = first word of Philox4x32-10(counter = (position, id, 0, 0), key = the two halves of the 64-bit seed)
    v      = fma(r, 2^-32, 2^-33)          in fp32; 2^-33 <= v <= 1
    noise  = -log E,  E = -log1p(-v)       so noise <= 22.9, and -inf where v rounds to 1

argmax over ids of logits / T + noise is then a sample of softmax(logits / T) (the Gumbel-max rule). The usual
(r + 0.5) * 2^-24 rounds to 1.0 near the top and makes the noise +inf: a random tail token at 1.5 % of positions with a
large vocabulary. Here the error is on the harmless side.

Origin: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011); the test has the authors' known answers.
Checked by: tests/inference_node/kernels/test_philox.py
"""

from __future__ import annotations

import torch

ROUNDS = 10
WORD = 0xFFFFFFFF
MULTIPLIER_0, MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
KEY_STEP_0, KEY_STEP_1 = 0x9E3779B9, 0xBB67AE85

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def noise(seed: int, position: int, ids: torch.Tensor) -> torch.Tensor:
    """Gumbel noise [len(ids)] fp32 for these token ids at one absolute position of the sequence."""
    zero = torch.zeros_like(ids)
    word = philox4x32((zero + position, ids, zero, zero), seed & WORD, seed >> 32)[0]
    uniform = word.to(torch.float32) * 2.0**-32 + 2.0**-33  # the product is exact, so this rounds once, like an fma
    return -torch.log(-torch.log1p(-uniform))


def philox4x32(counter: Words, key_0: int, key_1: int) -> Words:
    """Ten rounds over four 32-bit words, each held in an int64 tensor."""
    c0, c1, c2, c3 = counter
    for _ in range(ROUNDS):
        high_0, low_0 = _product(c0, MULTIPLIER_0)
        high_1, low_1 = _product(c2, MULTIPLIER_1)
        c0, c1, c2, c3 = high_1 ^ c1 ^ key_0, low_1, high_0 ^ c3 ^ key_1, low_0
        key_0, key_1 = (key_0 + KEY_STEP_0) & WORD, (key_1 + KEY_STEP_1) & WORD
    return c0, c1, c2, c3


def _product(word: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 32 bits of a 64-bit product. int64 wraps at 2^63, which leaves both right after masking."""
    product = word * factor
    return (product >> 32) & WORD, product & WORD
