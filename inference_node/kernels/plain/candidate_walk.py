"""DFlash 2's choice of drafts: left to right over each row's best candidates, each weighed against its predecessor.

    candidates   [n, top]        int32  target ids, of the masks' rows in order
    logits       [n, top]        fp32   theirs
    projected    [n, rank]              the rows' hidden states, as the selector sees them
    predecessor  [ids, rank]            a code for each id as the one before
    successor    [ids, rank]            and as the one after
    valid        [1]             int32  rows that count, 0 or n
    temperature  [1]             fp32   0 is greedy
    seed         [2]             int32  the 64-bit seed's low and high word
    position     [n]             int32  absolute position of each row's token
    known        [words]         int32  or None; bit i of word w: id 32 w + i may be chosen
    block        [n + 1]         int32  the anchor; the drafts are written behind it
    confidence   [n]             fp32   written: the probability of each draft among its row's candidates

    score(c) = logit(c) + sum over r of predecessor[previous, r] * projected[row, r] * successor[c, r]
    draft    = argmax of score / T + noise(seed, position, id), with T 0 of the score; the first candidate of equal ones

Ids from the number of codes on, and those that are not known, are no candidates; a row without any takes id 0 with
confidence 0. Noise is that of philox.py. Products and sums in fp32.
Checked by: tests/inference_node/kernels/triton/test_candidate_walk.py
"""

from __future__ import annotations

import torch

from inference_node.kernels.plain.philox import WORD, noise


def candidate_walk(
    candidates: torch.Tensor,
    logits: torch.Tensor,
    projected: torch.Tensor,
    predecessor: torch.Tensor,
    successor: torch.Tensor,
    valid: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
    block: torch.Tensor,
    confidence: torch.Tensor,
    *,
    known: torch.Tensor | None = None,
) -> None:
    """block[1:] and confidence."""
    heat, low, high = float(temperature), int(seed[0]) & WORD, int(seed[1]) & WORD
    for row in range(int(valid)):
        ids = candidates[row].to(torch.int64)
        may = (ids >= 0) & (ids < successor.shape[0])
        ids = torch.where(may, ids, 0)
        if known is not None:
            may &= (known[ids // 32] >> (ids % 32) & 1) == 1
        code = predecessor[int(block[row])].to(torch.float32) * projected[row].to(torch.float32)
        pull = (successor[ids].to(torch.float32) * code).sum(-1)
        score = torch.where(may, (logits[row] + pull) / (heat or 1.0), -torch.inf)
        heard = score + noise(low | high << 32, int(position[row]), ids) if heat else score
        best = heard.argmax()
        found = bool(heard[best] > -torch.inf)
        block[row + 1] = int(ids[best]) if found else 0
        confidence[row] = (score[best] - torch.logsumexp(score, dim=-1)).exp() if found else 0.0
