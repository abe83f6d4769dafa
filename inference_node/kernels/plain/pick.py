"""The choice of tokens from scores that lie in memory: for requests with filters, penalties or a grammar.

    scores       [rows, ids]   fp32    what each row may say, before temperature; -inf where it may not
    cut          [rows]        fp32    lowest score / T that stays
    temperature  [1]           fp32    0 is greedy: no noise, T 1
    seed         [2]           int32   the 64-bit seed's low and high word
    position     [rows]        int32   absolute position of the token to be chosen
    choice       [rows]        int32   written: argmax of scores / T + noise(seed, position, id) over ids that stay;
                                       ties go to the lowest id
    best         [rows]        fp32    written: the choice's score; not finite where no id may be said

Exactness: a row function; noise is that of philox.py. Checked by: tests/inference_node/kernels/triton/test_pick.py
"""

from __future__ import annotations

import torch

from inference_node.kernels.plain.philox import WORD, noise


def pick(
    scores: torch.Tensor,
    cut: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
    choice: torch.Tensor,
    best: torch.Tensor,
) -> None:
    """Every row, valid or not."""
    heat, low, high = float(temperature), int(seed[0]) & WORD, int(seed[1]) & WORD
    ids = torch.arange(scores.shape[1], device=scores.device)
    for row in range(scores.shape[0]):
        scaled = scores[row] / (heat or 1.0)
        heard = scaled + noise(low | high << 32, int(position[row]), ids) if heat else scaled
        token = torch.where(scaled >= cut[row], heard, -torch.inf).argmax()
        choice[row] = token
        best[row] = scores[row, token]
