"""The choice of tokens from scores in memory: a tile of ids of one row per program, then one program per row.

Tensors and rules: `plain/pick.py`. Cost: the scores once; noise is skipped at temperature 0.
Exactness: a row function; ties go to the lowest id inside a tile and among tiles.
Checked by: tests/inference_node/kernels/triton/test_pick.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference_node.kernels.triton.philox import philox_noise

TILE = 2048


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
    rows, ids = scores.shape
    if scores.stride(1) != 1 or not scores.dtype == cut.dtype == torch.float32:
        raise ValueError(f"scores are {scores.dtype} with stride {scores.stride(1)}; expected contiguous rows in fp32")
    for name, tensor in (("cut", cut), ("position", position), ("choice", choice), ("best", best)):
        if tuple(tensor.shape) != (rows,) or not tensor.is_contiguous():
            raise ValueError(f"{name} is {tuple(tensor.shape)}; expected contiguous ({rows},)")
    tiles = triton.cdiv(ids, TILE)
    found = torch.empty(2, rows, tiles, device=scores.device)
    _tiles[(rows, tiles)](
        scores, cut, temperature, seed, position, found, ids, scores.stride(0), tiles, rows * tiles,
        LIBRARY=not triton.knobs.runtime.interpret, BLOCK=TILE, num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    _rows[(rows,)](
        found, scores, choice, best, scores.stride(0), tiles, rows * tiles,
        BLOCK=triton.next_power_of_2(tiles), num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit
def _tiles(
    p_scores,
    p_cut,
    p_temperature,
    p_seed,
    p_position,
    p_found,
    ids,
    stride,
    tiles,
    plane,
    LIBRARY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i_row, i_tile = tl.program_id(0), tl.program_id(1)
    o_id = i_tile * BLOCK + tl.arange(0, BLOCK)
    is_id = o_id < ids
    b_score = tl.load(p_scores + i_row.to(tl.int64) * stride + o_id, mask=is_id, other=float("-inf"))
    temperature = tl.load(p_temperature)
    b_heat = tl.zeros([BLOCK], tl.float32) + tl.where(temperature == 0.0, 1.0, temperature)
    b_score = tl.div_rn(b_score, b_heat)
    stays = b_score >= tl.load(p_cut + i_row)
    if temperature != 0.0:
        b_score += philox_noise(tl.load(p_position + i_row), o_id, tl.load(p_seed), tl.load(p_seed + 1), LIBRARY)
    b_score = tl.where(stays, b_score, float("-inf"))
    at = tl.argmax(b_score, 0, tie_break_left=True)
    p_out = p_found + i_row * tiles + i_tile
    tl.store(p_out, tl.max(b_score, 0))
    tl.store(p_out + plane, (i_tile * BLOCK + at).to(tl.float32))  # exact: ids are far below 2^24


@triton.jit
def _rows(p_found, p_scores, p_choice, p_best, stride, tiles, plane, BLOCK: tl.constexpr):
    i_row = tl.program_id(0)
    o_tile = tl.arange(0, BLOCK)
    b_best = tl.load(p_found + i_row * tiles + o_tile, mask=o_tile < tiles, other=float("-inf"))
    at = tl.argmax(b_best, 0, tie_break_left=True)
    token = tl.load(p_found + plane + i_row * tiles + at).to(tl.int32)
    tl.store(p_choice + i_row, token)
    tl.store(p_best + i_row, tl.load(p_scores + i_row.to(tl.int64) * stride + token))
