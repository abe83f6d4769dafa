"""The language model's head with the choice of a token in the same pass over its weights.

Why: logits of 16 rows are 16 MB that nobody needs when the choice is an argmax of logits or of logits plus noise. So
each tile of the vocabulary keeps its best, and logits leave the chip only when asked for (filters, penalties).

    x            [rows, K]                1 to 16 rows after the final norm; with squares the `scaled` of its Feed
    weight       Weight [V, K]            bf16 or int8
    squares      [rows, K / 16]   fp32    or None; of that Feed, see linear.py
    valid        [1]              int32   rows that count
    temperature  [1]              fp32    0 is greedy
    seed         [2]              int32   the 64-bit seed's low and high word
    position     [rows]           int32   absolute position of the token to be chosen at each row
    known        [words]          int32   or None; bit i of word w: id 32 w + i may ever be chosen. words = ceil(V / 32)
    allowed      [rows, words]    int32   or None; the same per row: a grammar's mask
    logits       [rows, V]        fp32    or None; written: the bare logits, of ids that are not allowed too

    choice       [rows]           int32   argmax over allowed ids of logits / T + noise(seed, position, id), with T 0 of
                                          the logits; ties go to the lowest id; -1 where no id is allowed
    logit        [rows]           fp32    the choice's bare logit
    mass         [rows]           fp32    log of the sum over allowed ids of exp(logits / T), with T 0 at T 1; not
                                          finite where some allowed logit is not

So exp(logit / T - mass) is the choice's probability. Noise is that of philox.py.
Exactness: logits are fp32 sums, never rounded; a row's bits depend on no other row. Noise: the same 32-bit words;
logarithms by the device's library, so that bits equal torch's on the same GPU.
Checked by: tests/inference_node/kernels/triton/test_head.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from inference_node.kernels.plain.linear import ROWS
from inference_node.kernels.plain.packed import Weight, unpack
from inference_node.kernels.plain.philox import WORD, noise


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the head writes, and scratch of the kernel."""

    choice: torch.Tensor
    logit: torch.Tensor
    mass: torch.Tensor
    tiles: torch.Tensor  # [5, 16, tiles] fp32 scratch


TILE = 32
"""Smallest tile of the vocabulary for which there is scratch."""


def chosen(vocab: int, device: torch.device) -> Chosen:
    """Room for blocks of up to 16 rows."""
    return Chosen(
        choice=torch.full((ROWS,), -1, dtype=torch.int32, device=device),
        logit=torch.zeros(ROWS, device=device),
        mass=torch.zeros(ROWS, device=device),
        tiles=torch.zeros(5, ROWS, -(-vocab // TILE), device=device),
    )


def head(
    x: torch.Tensor,
    weight: Weight,
    valid: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
    result: Chosen,
    *,
    eps: float = 1e-6,
    known: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
    logits: torch.Tensor | None = None,
    squares: torch.Tensor | None = None,
) -> Chosen:
    """Returns `result`."""
    matrix, vocab = unpack(weight), weight.shape[0]
    heat, low, high = float(temperature), int(seed[0]) & WORD, int(seed[1]) & WORD
    ids = torch.arange(vocab, device=x.device)
    for row in range(int(valid)):
        wide, scale = x[row : row + 1].to(torch.float32, copy=True), None
        if squares is not None:
            scale = torch.rsqrt(squares[row].sum() / x.shape[1] + eps)
        bare = F.linear(wide, matrix)
        bare = (bare if scale is None else bare * scale)[0]
        if logits is not None:
            logits[row] = bare
        may = torch.ones(vocab, dtype=torch.bool, device=x.device)
        for words in (known, None if allowed is None else allowed[row]):
            if words is not None:
                may &= _bits(words, vocab)
        scores = torch.where(may, bare / (heat or 1.0), -torch.inf)
        broken = torch.where(may, bare * 0.0, 0.0).sum()  # 0, or NaN where a logit is not finite
        result.mass[row] = torch.logsumexp(scores, dim=-1) + broken
        noisy = scores + noise(low | high << 32, int(position[row]), ids) if heat else scores
        best = noisy.argmax()  # of equal ones the first
        found = bool(noisy[best] > -torch.inf)
        result.choice[row] = int(best) if found else -1
        result.logit[row] = bare[best] if found else -torch.inf
    return result


def _bits(words: torch.Tensor, count: int) -> torch.Tensor:
    bits = (words[:, None] >> torch.arange(32, device=words.device, dtype=words.dtype)) & 1
    return bits.flatten()[:count].to(torch.bool)
