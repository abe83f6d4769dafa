"""The decoding loop over texts that the target has written already, many prompts at a time.

With a greedy target the text does not depend on the drafter, so a draft is accepted where it is the text's own next
token, and the next block begins behind it: the cycles are those of the real loop, and the target need not run again.
(The real loop rounds a verify differently here and there; evaluate.decode is that loop, and a test compares both.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from inference_node.train.batch import Batch, rows_for
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
    for group in _groups(samples, rows):
        found += _together(learner, source, group, rows)
    learner.module.train()
    return found


def _together(learner: Learner, source: Source, samples: Sequence[Sample], rows: int) -> list[Decoded]:
    device, block = learner.head.device, learner.arm.block
    base, starts = _packed(samples, rows, block)
    feature, _ = packed(source.states(samples), rows)
    ends = [start + sample.answer[1] for start, sample in zip(starts, samples, strict=True)]
    firsts = [start + sample.answer[0] - 1 for start, sample in zip(starts, samples, strict=True)]
    at = list(firsts)
    accepted: list[list[int]] = [[] for _ in samples]
    tokens = base.tokens.tolist()
    while any(end - 1 - place >= block for place, end in zip(at, ends, strict=True)):
        open_ = [i for i, place in enumerate(at) if ends[i] - 1 - place >= block]
        anchor = torch.tensor([at[i] for i in open_] + [at[open_[-1]]] * (TOGETHER - len(open_)))
        batch = Batch(
            base.tokens, base.document, base.position, anchor, torch.arange(TOGETHER) < len(open_), base.masked,
            base.wanted, tuple(samples),
        ).to(device)  # fmt: skip
        with precision(device):
            drafts = learner.drafts(batch, feature)
        for row, i in enumerate(open_):
            place = at[i]
            right = 0
            while right < block - 1 and drafts[row][right] == tokens[place + 1 + right]:
                right += 1
            accepted[i].append(right)
            at[i] = place + right + 1
    return [
        Decoded(tuple(tokens[first + 1 : end]), tuple(cycles))
        for first, end, cycles in zip(firsts, ends, accepted, strict=True)
    ]


def _packed(samples: Sequence[Sample], rows: int, block: int) -> tuple[Batch, list[int]]:
    """The samples side by side, and where each begins; its anchors are to be set."""
    tokens, document = torch.zeros(rows, dtype=torch.int64), torch.full((rows,), -1, dtype=torch.int64)
    position = torch.zeros(rows, dtype=torch.int64)
    starts, start = [], 0
    for number, sample in enumerate(samples):
        end = start + len(sample.tokens)
        tokens[start:end] = torch.tensor(sample.tokens)
        document[start:end] = number
        position[start:end] = torch.arange(end - start)
        starts.append(start)
        start = end
    masked = torch.ones(TOGETHER, block, dtype=torch.bool)
    masked[:, 0] = False
    none = torch.zeros(TOGETHER, dtype=torch.int64)
    return Batch(tokens, document, position, none, none.bool(), masked, masked, tuple(samples)), starts


def _groups(samples: Sequence[Sample], rows: int) -> Iterator[list[Sample]]:
    group: list[Sample] = []
    for sample in samples:
        if group and (len(group) == TOGETHER or sum(len(one.tokens) for one in group) + len(sample.tokens) > rows):
            yield group
            group = []
        group.append(sample)
    if group:
        yield group
