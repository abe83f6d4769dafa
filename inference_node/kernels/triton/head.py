"""The head with the choice of a token in the same pass: a tile of the vocabulary per program, then one program per row.

Tensors and rules: `plain/head.py`. Each tile leaves, for each row, its best score, that score's id and bare logit, and
the maximum and sum of its exponentials; the second launch goes through the tiles of a row in one order. Logits are
written only when asked for. Noise is made while the next weights are under way, and skipped at temperature 0.

Cost: V * K elements of the weight; 20 bytes per row and tile.
Exactness: a row's bits depend on no other row; ties go to the lowest id inside a tile and among tiles.
Checked by: tests/inference_node/kernels/triton/test_head.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference_node.kernels.plain.head import TILE, Chosen
from inference_node.kernels.plain.linear import GROUP, ROWS
from inference_node.kernels.plain.packed import Weight
from inference_node.kernels.triton import tiles
from inference_node.kernels.triton.linear import block_product, fed_scale
from inference_node.kernels.triton.packed import operand
from inference_node.kernels.triton.philox import philox_noise


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
    tile: tiles.Tile | None = None,
) -> Chosen:
    """Returns `result`. `tile` is for measuring only."""
    vocab, k = weight.shape
    rows, words = x.shape[0], -(-vocab // 32)
    if rows > ROWS or x.shape[1] != k or x.stride(1) != 1:
        raise ValueError(f"x is {tuple(x.shape)}; expected at most {ROWS} contiguous rows of {k}")
    if weight.kind == "mxfp4":
        raise ValueError("the head is bf16 or int8; mxfp4 is for experts")
    for name, tensor, shape in (
        ("known", known, (words,)),
        ("allowed", allowed, (rows, words)),
        ("logits", logits, (rows, vocab)),
        ("position", position, (rows,)),
        ("squares", squares, (rows, k // GROUP)),
    ):
        if tensor is not None and (tuple(tensor.shape) != shape or tensor.stride(-1) != 1):
            raise ValueError(f"{name} is {tuple(tensor.shape)}; expected contiguous {shape}")
    tile = (tile or tiles.head()).within(k)
    n_tiles = triton.cdiv(vocab, tile.block_n)
    if tile.block_n < TILE or n_tiles > result.tiles.shape[2]:
        raise ValueError(f"scratch for {result.tiles.shape[2]} tiles; this vocabulary of {vocab} needs {n_tiles}")
    data, scale, kind = operand(weight)
    _tiles[(n_tiles,)](
        x,
        data,
        scale,
        squares if squares is not None else x,
        valid,
        temperature,
        seed,
        position,
        known if known is not None else valid,
        allowed if allowed is not None else valid,
        logits if logits is not None else x,
        result.tiles,
        vocab,
        k,
        x.stride(0),
        0 if allowed is None else allowed.stride(0),
        0 if logits is None else logits.stride(0),
        result.tiles.shape[2],
        eps,
        SQUARES=0 if squares is None else triton.next_power_of_2(k // GROUP),
        KNOWN=known is not None,
        ALLOWED=allowed is not None,
        LOGITS=logits is not None,
        KIND=kind,
        EVEN_N=vocab % tile.block_n == 0,
        EVEN_K=k % tile.block_k == 0,
        LIBRARY=not triton.knobs.runtime.interpret,
        ROWS=ROWS,
        GROUP=GROUP,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        num_warps=tile.warps,
        num_stages=tiles.stages(tile),
        enable_fp_fusion=False,
    )
    _pick[(rows,)](
        result.tiles,
        valid,
        result.choice,
        result.logit,
        result.mass,
        n_tiles,
        result.tiles.shape[2],
        ROWS=ROWS,
        BLOCK=triton.next_power_of_2(n_tiles),
        num_warps=8,
        num_stages=1,
        enable_fp_fusion=False,
    )
    return result


@triton.jit
def _is_set(p_words, o_id, is_id):
    b_word = tl.load(p_words + o_id // 32, mask=is_id, other=0)
    return ((b_word >> (o_id % 32)) & 1) == 1


@triton.jit
def _tiles(
    p_x,
    p_w,
    p_scale,
    p_squares,
    p_valid,
    p_temperature,
    p_seed,
    p_position,
    p_known,
    p_allowed,
    p_logits,
    p_tiles,
    V,
    K,
    x_stride,
    allowed_stride,
    logits_stride,
    room,
    eps,
    SQUARES: tl.constexpr,
    KNOWN: tl.constexpr,
    ALLOWED: tl.constexpr,
    LOGITS: tl.constexpr,
    KIND: tl.constexpr,
    EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    LIBRARY: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    valid = tl.load(p_valid)
    if valid == 0:
        return
    i_tile = tl.program_id(0)
    o_id = i_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    is_id = o_id < V
    o_row = tl.arange(0, ROWS)
    is_row = o_row < valid
    b_logit = tl.zeros([ROWS, BLOCK_N], tl.float32)
    for k in range(0, K, BLOCK_K):
        b_logit = block_product(
            b_logit, p_x, x_stride, is_row, p_w, o_id, is_id, k, K, EVEN_N, EVEN_K, ROWS, BLOCK_K, 1
        )
    if SQUARES > 0:
        b_logit = b_logit * fed_scale(p_squares, o_row, is_row, K, eps, GROUP, SQUARES)[:, None]
    if KIND == 1:
        b_logit = b_logit * tl.load(p_scale + o_id, mask=is_id, other=0.0)[None, :]
    is_pair = is_row[:, None] & is_id[None, :]
    if LOGITS:
        tl.store(p_logits + o_row.to(tl.int64)[:, None] * logits_stride + o_id[None, :], b_logit, mask=is_pair)

    temperature = tl.load(p_temperature)
    b_score = tl.div_rn(b_logit, tl.zeros([ROWS, BLOCK_N], tl.float32) + tl.where(temperature == 0.0, 1.0, temperature))
    is_allowed = is_pair
    if KNOWN:
        is_allowed = is_allowed & _is_set(p_known, o_id, is_id)[None, :]
    if ALLOWED:
        p_words = p_allowed + o_row[:, None] * allowed_stride
        is_allowed = is_allowed & _is_set(p_words, o_id[None, :] + o_row[:, None] * 0, is_pair)
    b_broken = tl.sum(tl.where(is_allowed, b_logit * 0.0, 0.0), 1)  # 0, or NaN where a logit is not finite
    b_score = tl.where(is_allowed, b_score, float("-inf"))
    b_peak = tl.max(b_score, 1)
    b_base = tl.where(b_peak == float("-inf"), 0.0, b_peak)
    b_mass = tl.sum(tl.exp(b_score - b_base[:, None]), 1) + b_broken
    if temperature > 0.0:
        b_position = tl.load(p_position + o_row, mask=is_row, other=0)
        b_noise = philox_noise(
            b_position[:, None], o_id[None, :], tl.load(p_seed), tl.load(p_seed + 1), LIBRARY=LIBRARY
        )
        b_score = b_score + b_noise
    b_best = tl.max(b_score, 1)
    b_at = tl.argmax(b_score, 1, tie_break_left=True) + i_tile * BLOCK_N
    b_bare = tl.sum(tl.where(o_id[None, :] == b_at[:, None], b_logit, 0.0), 1)
    p_out = p_tiles + o_row * room + i_tile
    tl.store(p_out, b_best, mask=is_row)
    tl.store(p_out + ROWS * room, b_at.to(tl.float32), mask=is_row)  # exact: ids are below 2^24
    tl.store(p_out + 2 * ROWS * room, b_bare, mask=is_row)
    tl.store(p_out + 3 * ROWS * room, b_base, mask=is_row)
    tl.store(p_out + 4 * ROWS * room, b_mass, mask=is_row)


@triton.jit
def _pick(
    p_tiles,
    p_valid,
    p_choice,
    p_logit,
    p_mass,
    n_tiles,
    room,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i_row = tl.program_id(0)
    if i_row >= tl.load(p_valid):
        return
    o_tile = tl.arange(0, BLOCK)
    is_tile = o_tile < n_tiles
    p_row = p_tiles + i_row * room + o_tile
    b_best = tl.load(p_row, mask=is_tile, other=float("-inf"))
    best = tl.max(b_best, 0)
    at = tl.argmax(b_best, 0, tie_break_left=True)
    p_winner = p_tiles + i_row * room + at
    found = best > float("-inf")
    tl.store(p_choice + i_row, tl.where(found, tl.load(p_winner + ROWS * room).to(tl.int32), -1))
    tl.store(p_logit + i_row, tl.where(found, tl.load(p_winner + 2 * ROWS * room), float("-inf")))
    b_base = tl.load(p_row + 3 * ROWS * room, mask=is_tile, other=float("-inf"))
    b_mass = tl.load(p_row + 4 * ROWS * room, mask=is_tile, other=0.0)
    top = tl.max(tl.where(b_mass != 0.0, b_base, float("-inf")), 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    mass = tl.sum(tl.where(b_mass == 0.0, 0.0, b_mass * tl.exp(b_base - base)), 0)
    tl.store(p_mass + i_row, base + tl.log(mass))
