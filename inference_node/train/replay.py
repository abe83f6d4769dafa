"""The decoding loop over texts that the target has written already, many prompts at a time.

With a greedy target the text does not depend on the drafter, so a draft is accepted where it is the text's own next
token, and the next block begins behind it: the cycles are those of the real loop, and the target need not run again.
(The real loop rounds a verify differently here and there; evaluate.decode is that loop, and a test compares both.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from inference_node.train.batch import Batch, groups, rows_for, side_by_side
from inference_node.train.evaluate import Decoded
from inference_node.train.features import Source, packed
from inference_node.train.sample import Sample, check_answers
from inference_node.train.step import Learner, precision

TOGETHER = 32
"""Prompts in one row of context."""


@torch.no_grad()
def replay(learner: Learner, source: Source, samples: Sequence[Sample]) -> list[Decoded]:
    """Cycles over each sample's first supervised range, in the samples' order. Raises NodeError for one without."""
    check_answers(samples)
    learner.module.eval()
    found: list[Decoded] = []
    rows = rows_for(learner.arm, samples)
    for group in groups(samples, rows, TOGETHER):
        found += _together(learner, source, group, rows)
    learner.module.train()
    return found


def _together(learner: Learner, source: Source, samples: Sequence[Sample], rows: int) -> list[Decoded]:
    device, block = learner.head.device, learner.arm.block
    row = side_by_side(samples, rows)
    masked = torch.ones(TOGETHER, block, dtype=torch.bool)
    masked[:, 0] = False
    unset = torch.zeros(TOGETHER, dtype=torch.int64)  # anchors are set in every turn
    base = Batch(
        row.tokens, row.document, row.position, unset, unset.bool(), masked, masked, tuple(samples), fullest=1
    ).to(device)  # fmt: skip
    feature, _ = packed(source.states(samples), rows)
    ends = [start + sample.answer[1] for start, sample in zip(row.starts, samples, strict=True)]
    firsts = [start + sample.answer[0] - 1 for start, sample in zip(row.starts, samples, strict=True)]
    at = list(firsts)
    accepted: list[list[int]] = [[] for _ in samples]
    tokens = row.tokens.tolist()
    while any(end - 1 - place >= block for place, end in zip(at, ends, strict=True)):
        open_ = [i for i, place in enumerate(at) if ends[i] - 1 - place >= block]
        anchor = torch.tensor([at[i] for i in open_] + [at[open_[-1]]] * (TOGETHER - len(open_)))
        batch = replace(base, anchor=anchor.to(device), real=(torch.arange(TOGETHER) < len(open_)).to(device))
        with precision(device):
            drafts = learner.drafts(batch, feature)
        for draft, i in zip(drafts, open_, strict=False):  # those past the open ones fill up
            place = at[i]
            right = 0
            while right < block - 1 and draft[right] == tokens[place + 1 + right]:
                right += 1
            accepted[i].append(right)
            at[i] = place + right + 1
    return [
        Decoded(tuple(tokens[first + 1 : end]), tuple(cycles))
        for first, end, cycles in zip(firsts, ends, accepted, strict=True)
    ]
