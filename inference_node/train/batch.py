"""Samples packed into a row of fixed length, and the blocks that are trained on in it.

A block has `block` slots, at consecutive places of one sample. Slot 0 is the anchor, a token that is known; slot k is
to say the token at the anchor's place + k (no shift), and sees features of places before the anchor alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from inference_node.train.arm import Arm
from inference_node.train.sample import Sample

PREFIX_KEEPS = 0.9
"""Odds, slot by slot, that a random prefix goes on."""

STRIDE = 1024
"""Rows by which a step grows where texts are longer than the arm's rows."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's work. S places, N blocks of B slots; shapes are the same in every step, so that it compiles once."""

    tokens: torch.Tensor  # [S] int64; past the last sample 0
    document: torch.Tensor  # [S] int64, number of the sample here; -1 past the last
    position: torch.Tensor  # [S] int64, counted in the sample
    anchor: torch.Tensor  # [N] int64, places in the row, ascending: the attention's blocks stay sparse
    real: torch.Tensor  # [N] bool; blocks past the last real one fill up
    masked: torch.Tensor  # [N, B] bool: slots whose token the drafter does not see
    wanted: torch.Tensor  # [N, B] bool: slots that count
    samples: tuple[Sample, ...]
    fullest: int  # real blocks of the sample that has most of them

    @property
    def place(self) -> torch.Tensor:
        """[N, B] places of the slots; those past the row's end stay on its last."""
        block = self.masked.shape[1]
        return (self.anchor[:, None] + torch.arange(block, device=self.anchor.device)).clamp(max=len(self.tokens) - 1)

    @property
    def labels(self) -> torch.Tensor:
        """[N, B] tokens of the text."""
        return self.tokens[self.place]

    @property
    def whole(self) -> torch.Tensor:
        """[N] bool: blocks whose every slot counts."""
        return self.wanted[:, 1:].all(-1)

    @property
    def slot_position(self) -> torch.Tensor:
        """[N, B] positions in the sample, past its end too."""
        return self.position[self.anchor][:, None] + torch.arange(self.masked.shape[1], device=self.anchor.device)

    def to(self, device: torch.device) -> Batch:
        """On an accelerator it is copied while the device works on."""
        pinned = device.type == "cuda" and not self.tokens.is_cuda
        parts = {name: getattr(self, name) for name in TENSORS}
        if pinned:
            parts = {name: tensor.pin_memory() for name, tensor in parts.items()}
        return replace(self, **{name: tensor.to(device, non_blocking=pinned) for name, tensor in parts.items()})


TENSORS = ("tokens", "document", "position", "anchor", "real", "masked", "wanted")


def candidates(sample: Sample) -> list[int]:
    """Places that may be anchors: the next token is supervised. The last token of a prompt is one, as in serving."""
    return [place - 1 for place in sample.targets if place > 0]


def rows_for(arm: Arm, samples: Sequence[Sample]) -> int:
    """Of a step in which each sample fits: the arm's, or more in large strides, since each number is compiled for."""
    longest = max((len(sample.tokens) for sample in samples), default=0)
    return max(arm.rows, -(-longest // STRIDE) * STRIDE if longest > arm.rows else 0)


@dataclass(frozen=True, slots=True)
class Row:
    """Whole samples side by side: what a batch says of its S places."""

    tokens: torch.Tensor
    document: torch.Tensor
    position: torch.Tensor
    starts: tuple[int, ...]  # place of each sample's first token


def side_by_side(samples: Sequence[Sample], rows: int) -> Row:
    """They must fit the rows."""
    tokens, document = torch.zeros(rows, dtype=torch.int64), torch.full((rows,), -1, dtype=torch.int64)
    position = torch.zeros(rows, dtype=torch.int64)
    starts = []
    end = 0
    for number, sample in enumerate(samples):
        start, end = end, end + len(sample.tokens)
        if end > rows:
            raise ValueError(f"{len(samples)} samples do not fit {rows} rows")
        tokens[start:end] = torch.tensor(sample.tokens)
        document[start:end] = number
        position[start:end] = torch.arange(end - start)
        starts.append(start)
    return Row(tokens, document, position, tuple(starts))


def pack(samples: Sequence[Sample], arm: Arm, generator: torch.Generator) -> Batch:
    """Put whole samples side by side and draw anchors among their candidates. They must fit arm.rows."""
    rows, block = arm.rows, arm.block
    row = side_by_side(samples, rows)
    document = row.document
    supervised = torch.zeros(rows, dtype=torch.bool)
    for start, sample in zip(row.starts, samples, strict=True):
        for first, end in sample.supervised:
            supervised[start + first : start + end] = True
    possible = (supervised[1:] & (document[1:] == document[:-1])).nonzero()[:, 0]  # as `candidates`, of all samples
    chosen = torch.randperm(len(possible), generator=generator)[: arm.anchors].sort().values
    anchor = torch.zeros(arm.anchors, dtype=torch.int64)
    anchor[: len(chosen)] = possible[chosen]
    real = torch.arange(arm.anchors) < len(chosen)
    place = anchor[:, None] + torch.arange(block)
    inside = place < rows
    place = place.clamp(max=rows - 1)
    same = inside & (document[place] == document[anchor][:, None]) & real[:, None]
    masked = _masked(arm, generator)
    return Batch(
        row.tokens, document, row.position, anchor, real,
        masked=masked | ~same,
        wanted=same & supervised[place] & masked,
        samples=tuple(samples),
        fullest=int(document[anchor[: len(chosen)]].bincount().max()) if len(chosen) else 0,
    )  # fmt: skip


def _masked(arm: Arm, generator: torch.Generator) -> torch.Tensor:
    """[N, B] bool: which slots are hidden. The anchor never is."""
    shape = (arm.anchors, arm.block)
    masked = torch.ones(shape, dtype=torch.bool)
    if arm.corruption == "uniform":  # a share of its own for each block, at least one slot left to predict
        share = torch.rand(arm.anchors, 1, generator=generator)
        masked = torch.rand(shape, generator=generator) < share
        kept = torch.randint(1, arm.block, (arm.anchors,), generator=generator)
        masked[torch.arange(arm.anchors), kept] = True
    elif arm.corruption == "prefix":  # odds fall with length; half of the blocks are fully masked
        shown = torch.rand(shape, generator=generator) < PREFIX_KEEPS
        length = shown[:, 1:].long().cumprod(-1).sum(-1).clamp(max=arm.block - 2)
        length *= torch.rand(arm.anchors, generator=generator) < 0.5
        masked = torch.arange(arm.block)[None, :] > length[:, None]
    masked[:, 0] = False
    return masked


def batches(samples: Sequence[Sample], arm: Arm, first: int = 0) -> Iterator[Batch]:
    """Endless: epoch after epoch, each in an order of its own. `first`: steps that were done before.

    Step n is the same whoever asks for it, with whatever was before: order and anchors depend on (seed, step) alone.
    """
    usable = [sample for sample in samples if candidates(sample) and len(sample.tokens) <= arm.rows]
    if not usable:
        raise ValueError("no sample has a supervised token and fits the rows of a step")
    step, epoch = 0, 0
    while True:
        order = torch.randperm(len(usable), generator=_generator(arm.seed, 1, epoch)).tolist()
        for group in groups([usable[i] for i in order], arm.rows):
            if step >= first:
                yield pack(group, arm, _generator(arm.seed, 2, step))
            step += 1
        epoch += 1


def groups(samples: Sequence[Sample], rows: int, most: int = 0) -> Iterator[list[Sample]]:
    """In order, as many in each as fit the rows, and no more than `most` where that is given."""
    group: list[Sample] = []
    left = rows
    for sample in samples:
        if group and (len(sample.tokens) > left or len(group) == most):
            yield group
            group, left = [], rows
        group.append(sample)
        left -= len(sample.tokens)
    if group:
        yield group


def _generator(*parts: int) -> torch.Generator:
    """A stream of its own for each tuple of numbers."""
    seed = 0
    for part in parts:
        seed = (seed * 6364136223846793005 + part + 1442695040888963407) % 2**63
    return torch.Generator().manual_seed(seed)
