"""Settle a verified block on the device: how many drafts were right, where the text ends, what the next block is.

Why: the host reads one cycle behind, so whatever the next cycle needs must be decided here. A draft is accepted iff it
is the target's own choice for its place, so the committed tokens are simply the target's first accepted + 1 choices,
cut at the budget and after the first stop id.

    block     [rows]      int32   the anchor, then the drafts that were verified; becomes anchor and mask ids
    choices   [rows]      int32   the target's choice after each row; rows from VALID on may hold anything
    stops     [n]         int32   ids that end the text; n may be 0
    control   [FIELDS]    int32   the sequence, see `Field`; updated
    positions [rows]      int32   position of each row of the next block; written
    record    [cycles, RECORD + rows] int32  row CYCLE % cycles is written: `Told` fields, then the committed tokens,
                                  then -1
    imposed   [m]         int32   or None; for benches: cycle c accepts imposed[c % m] drafts (at most the offered)
    mask                  int     the drafter's mask id

A pass with VALID 0 changes nothing but CYCLE, SLOT and FOLD (0 rows to fold: its own pass has folded the last ones).
Checked by: tests/inference_node/kernels/triton/test_accept.py
"""

from __future__ import annotations

from enum import IntEnum

import torch


class Field(IntEnum):
    """Places in `control`. Each may be handed to a kernel as control[f : f + 1]."""

    START = 0  # position of the anchor: rows held, the rows to fold included
    VALID = 1  # rows of the next verify, 0 once the text has ended; a narrower width may be written after the draft
    FOLD = 2  # rows of the last block to fold, which were also the tokens it committed
    SLOT = 3  # side of the recurrent memories that the next pass reads
    BUDGET = 4  # tokens that may still be committed
    ENDED = 5  # 0, or the Cut that ended the text
    WIDTH = 6  # most rows of a verify; 1 is plain decoding
    CYCLE = 7  # cycles settled since the sequence began


FIELDS = 16
"""Length of `control`: a cache line, the rest is spare."""


class Cut(IntEnum):
    """Why a cycle committed fewer tokens than it might have; numbers for speculate.seam.Cut's names."""

    NONE = 0
    BUDGET = 1
    STOP = 2
    IDLE = 3


class Told(IntEnum):
    """Places in a row of `record`."""

    START = 0  # position of the anchor of the block that was verified
    COMMITTED = 1  # tokens that follow
    OFFERED = 2  # drafts verified
    ACCEPTED = 3  # leading drafts that were the target's choice, before any cut
    CUT = 4
    CYCLE = 5


RECORD = 8
"""Where the tokens begin in a row of `record`."""


def accept(
    block: torch.Tensor,
    choices: torch.Tensor,
    stops: torch.Tensor,
    control: torch.Tensor,
    positions: torch.Tensor,
    record: torch.Tensor,
    mask: int,
    imposed: torch.Tensor | None = None,
) -> None:
    """One launch, no host."""
    now = control.tolist()
    start, valid, budget, cycle = now[Field.START], now[Field.VALID], now[Field.BUDGET], now[Field.CYCLE]
    drafts, own = block[1 : max(valid, 1)].tolist(), choices[:valid].tolist()
    offered = len(drafts)
    accepted = next((i for i, (draft, token) in enumerate(zip(drafts, own, strict=False)) if draft != token), offered)
    if imposed is not None:
        accepted = min(int(imposed[cycle % imposed.shape[0]]), offered)
    tokens = own[: min(accepted + 1, budget)]
    ends = set(stops.tolist())
    stop_at = next((i for i, token in enumerate(tokens) if token in ends), None)
    if stop_at is not None:
        tokens = tokens[: stop_at + 1]
    if not valid:
        cut = Cut.IDLE
    elif stop_at is not None:
        cut = Cut.STOP
    else:  # the verify was, or might have been, made smaller
        cut = Cut.BUDGET if budget < now[Field.WIDTH] else Cut.NONE
    committed = len(tokens)
    row = record[cycle % record.shape[0]]
    row[:RECORD] = 0
    for place, value in (
        (Told.START, start),
        (Told.COMMITTED, committed),
        (Told.OFFERED, offered),
        (Told.ACCEPTED, accepted),
        (Told.CUT, cut),
        (Told.CYCLE, cycle),
    ):
        row[place] = value
    row[RECORD:] = -1
    row[RECORD : RECORD + committed] = torch.tensor(tokens, dtype=row.dtype)
    budget -= committed
    if valid:
        ended = Cut.STOP if cut is Cut.STOP else Cut.BUDGET if budget == 0 else Cut.NONE
        block[0], block[1:] = tokens[-1], mask
        now[Field.ENDED] = int(ended)
        now[Field.VALID] = 0 if ended else min(now[Field.WIDTH], budget)
    now[Field.START], now[Field.FOLD], now[Field.BUDGET] = start + committed, committed, budget
    now[Field.SLOT], now[Field.CYCLE] = 1 - now[Field.SLOT], cycle + 1
    control.copy_(torch.tensor(now, dtype=control.dtype))
    positions.copy_(start + committed + torch.arange(positions.shape[0], device=positions.device))
