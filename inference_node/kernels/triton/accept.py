"""Settle a verified block in one launch: see `plain/accept.py` for tensors and rules.

One program, a handful of words. Exactness: integers, equal to the twin.
Checked by: tests/inference_node/kernels/triton/test_accept.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference_node.kernels.plain.accept import RECORD, Cut, Field, Told

START, VALID, FOLD, SLOT, BUDGET, ENDED, WIDTH, CYCLE = (tl.constexpr(int(field)) for field in Field)
CUT_NONE, CUT_BUDGET, CUT_STOP, CUT_IDLE = (tl.constexpr(int(cut)) for cut in Cut)
T_START, T_COMMITTED, T_OFFERED, T_ACCEPTED, T_CUT, T_CYCLE = (tl.constexpr(int(told)) for told in Told)


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
    """See the twin."""
    rows = block.shape[0]
    for name, tensor in (
        ("block", block),
        ("choices", choices),
        ("stops", stops),
        ("control", control),
        ("positions", positions),
        ("record", record),
        ("imposed", imposed),
    ):
        if tensor is not None and (tensor.dtype != torch.int32 or not tensor.is_contiguous()):
            raise ValueError(f"{name} is {tensor.dtype}; expected contiguous int32")
    if choices.shape[0] < rows or positions.shape[0] != rows or record.shape[1] != RECORD + rows:
        raise ValueError(
            f"block has {rows} rows, choices {tuple(choices.shape)}, positions {tuple(positions.shape)}, "
            f"record {tuple(record.shape)}; expected records of {RECORD + rows} words"
        )
    _accept[(1,)](
        block,
        choices,
        stops,
        control,
        positions,
        record,
        imposed if imposed is not None else control,
        stops.shape[0],
        record.shape[0],
        imposed.shape[0] if imposed is not None else 0,
        mask,
        ROWS=rows,
        ROOM=triton.next_power_of_2(rows),
        RECORD=RECORD,
        num_warps=1,
        num_stages=1,
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=["stop_count", "records", "imposed_count", "mask_id"])
def _accept(
    p_block,
    p_choices,
    p_stops,
    p_control,
    p_positions,
    p_record,
    p_imposed,
    stop_count,
    records,
    imposed_count,
    mask_id,
    ROWS: tl.constexpr,
    ROOM: tl.constexpr,
    RECORD: tl.constexpr,
):
    start, valid = tl.load(p_control + START), tl.load(p_control + VALID)
    budget, cycle = tl.load(p_control + BUDGET), tl.load(p_control + CYCLE)
    slot, width, ended = tl.load(p_control + SLOT), tl.load(p_control + WIDTH), tl.load(p_control + ENDED)
    o_row = tl.arange(0, ROOM)
    is_row = o_row < ROWS
    b_choice = tl.load(p_choices + o_row, mask=o_row < valid, other=-1)
    b_draft = tl.load(p_block + 1 + o_row, mask=o_row < valid - 1, other=-2)
    offered = tl.maximum(valid - 1, 0)
    # The first row whose draft is another token; rows without a draft count as such.
    accepted = tl.min(tl.where((b_draft != b_choice) | (o_row >= offered), o_row, ROOM), 0)
    accepted = tl.minimum(accepted, offered)
    if imposed_count > 0:
        accepted = tl.minimum(tl.load(p_imposed + cycle % imposed_count), offered)
    committed = tl.where(valid > 0, tl.minimum(accepted + 1, budget), 0)
    stop_at = ROOM
    for i in range(0, stop_count):
        is_stop = (b_choice == tl.load(p_stops + i)) & (o_row < committed)
        stop_at = tl.minimum(stop_at, tl.min(tl.where(is_stop, o_row, ROOM), 0))
    is_stopped = stop_at < ROOM
    committed = tl.where(is_stopped, stop_at + 1, committed)
    cut = tl.where(budget < width, CUT_BUDGET, CUT_NONE)
    cut = tl.where(is_stopped, CUT_STOP, cut)
    cut = tl.where(valid > 0, cut, CUT_IDLE)

    p_told = p_record + (cycle % records) * (RECORD + ROWS)
    o_told = tl.arange(0, RECORD)
    b_told = tl.where(o_told == T_START, start, 0)
    b_told = tl.where(o_told == T_COMMITTED, committed, b_told)
    b_told = tl.where(o_told == T_OFFERED, offered, b_told)
    b_told = tl.where(o_told == T_ACCEPTED, accepted, b_told)
    b_told = tl.where(o_told == T_CUT, cut, b_told)
    b_told = tl.where(o_told == T_CYCLE, cycle, b_told)
    tl.store(p_told + o_told, b_told)
    tl.store(p_told + RECORD + o_row, tl.where(o_row < committed, b_choice, -1), mask=is_row)

    left = budget - committed
    if valid > 0:
        ended = tl.where(left == 0, CUT_BUDGET, CUT_NONE)
        ended = tl.where(is_stopped, CUT_STOP, ended)
        anchor = tl.max(tl.where(o_row == committed - 1, b_choice, -1), 0)
        tl.store(p_block + o_row, tl.where(o_row == 0, anchor, mask_id), mask=is_row)
        tl.store(p_control + VALID, tl.where(ended > 0, 0, tl.minimum(width, left)))
        tl.store(p_control + ENDED, ended)
    tl.store(p_control + START, start + committed)
    tl.store(p_control + FOLD, committed)
    tl.store(p_control + BUDGET, left)
    tl.store(p_control + SLOT, 1 - slot)
    tl.store(p_control + CYCLE, cycle + 1)
    tl.store(p_positions + o_row, start + committed + o_row, mask=is_row)
