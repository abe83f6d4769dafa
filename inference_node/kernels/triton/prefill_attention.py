"""Causal attention of many rows over keys in pages.

Tensors and rules: `plain/prefill_attention.py`. A program holds a tile of 64 (or 32) rows of one or two query heads
that share a key head, and walks over the keys up to its last row in steps cut at absolute multiples, with a running
softmax.

Cost: matrix products, 4 * heads * dim floating-point operations per pair of row and key seen.
Exactness: a row's bits depend on its place in its tile and on what it sees, not on how the prompt is cut at multiples
of 64. Probabilities are rounded to the values' type before the product, sums are fp32; against the twin as it says.
Checked by: tests/inference_node/kernels/triton/test_prefill_attention.py
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from inference_node.kernels.plain.kv_write import PAGE
from inference_node.kernels.plain.prefill_attention import TILE


@dataclass(frozen=True, slots=True)
class Tiles:
    rows: int  # a divisor of 64
    heads: int  # query heads of one program, at most those that share a key head
    keys: int  # of one step
    warps: int
    stages: int


def tiles(device: str, dim: int) -> Tiles:
    if device == "hip":
        return Tiles(rows=32, heads=1, keys=32 if dim <= 128 else 16, warps=8, stages=1)
    return Tiles(rows=64, heads=2, keys=64, warps=8, stages=2)


def attend(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    table: torch.Tensor,
    start: int,
    valid: int,
    out: torch.Tensor,
    *,
    scale: float,
    gate: torch.Tensor | None = None,
    cut: Tiles | None = None,
) -> None:
    """See the twin. `cut` is for measurements."""
    n, heads, dim = q.shape
    _, kv_heads, page, _ = k_pages.shape
    if start % TILE or n % TILE or not 0 < valid <= n:
        raise ValueError(f"{valid} valid of {n} rows from position {start}; expected multiples of {TILE}, 1 to n valid")
    if k_pages.stride()[1:] != (PAGE * dim, dim, 1) or page != PAGE or v_pages.stride() != k_pages.stride():
        raise ValueError(
            f"pages are {tuple(k_pages.shape)}; expected [pages, kv_heads, {PAGE}, {dim}], contiguous inside"
        )
    if not (q.is_contiguous() and out.is_contiguous() and out.shape == q.shape):
        raise ValueError(f"q is {tuple(q.shape)}, out {tuple(out.shape)}; expected the same and contiguous")
    if dim & (dim - 1) or heads % kv_heads:
        raise ValueError(f"{heads} heads of {dim} over {kv_heads}; expected a power of two and an even share")
    if gate is not None and (gate.shape != q.shape or gate.stride(2) != 1):
        raise ValueError(f"gate is {tuple(gate.shape)}; expected {tuple(q.shape)} with contiguous heads")
    cut = cut or tiles("hip" if torch.version.hip else "cuda", dim)
    share = heads // kv_heads
    together = cut.heads if share % cut.heads == 0 else 1
    _attend[(n // cut.rows, heads // together)](
        q,
        k_pages,
        v_pages,
        table,
        gate if gate is not None else q,
        out,
        start,
        valid,
        scale * math.log2(math.e),
        k_pages.stride(0),
        gate.stride(0) if gate is not None else 0,
        gate.stride(1) if gate is not None else 0,
        HEADS=heads,
        SHARE=share,
        TOGETHER=together,
        DIM=dim,
        TILE=cut.rows,
        STEP=cut.keys,
        PAGE=PAGE,
        GATED=gate is not None,
        num_warps=cut.warps,
        num_stages=cut.stages,
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=["start", "valid", "scale"])
def _attend(
    p_q,
    p_k_pages,
    p_v_pages,
    p_table,
    p_gate,
    p_out,
    start,
    valid,
    scale,  # log2(e) included: weights are powers of two
    page_stride,
    gate_row,
    gate_head,
    HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    TOGETHER: tl.constexpr,
    DIM: tl.constexpr,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    PAGE: tl.constexpr,
    GATED: tl.constexpr,
):
    i_tile = tl.num_programs(0) - 1 - tl.program_id(0)  # tiles that see most keys begin first
    i_heads = tl.program_id(1)
    i_kv = i_heads * TOGETHER // SHARE
    o_query = tl.arange(0, TILE * TOGETHER)
    o_row = (i_tile * TILE + o_query % TILE).to(tl.int64)
    o_head = i_heads * TOGETHER + o_query // TILE
    o_dim = tl.arange(0, DIM)
    is_row = o_row < valid
    p_place = (o_row * HEADS + o_head)[:, None] * DIM + o_dim[None, :]
    if i_tile * TILE >= valid:
        tl.store(p_out + p_place, tl.zeros([TILE * TOGETHER, DIM], p_out.dtype.element_ty))
    else:
        b_q = tl.load(p_q + p_place, mask=is_row[:, None], other=0.0)
        b_position = start + i_tile * TILE + o_query % TILE
        end = start + tl.minimum(valid, (i_tile + 1) * TILE)
        b_top = tl.full([TILE * TOGETHER], float("-inf"), tl.float32)
        b_mass = tl.zeros([TILE * TOGETHER], tl.float32)
        b_total = tl.zeros([TILE * TOGETHER, DIM], tl.float32)
        o_step = tl.arange(0, STEP)
        for first in range(0, end, STEP):
            page = tl.load(p_table + first // PAGE).to(tl.int64)
            o_cached = page * page_stride + (i_kv * PAGE + first % PAGE) * DIM
            o_keys = o_step[:, None] * DIM + o_dim[None, :]
            o_key = first + o_step
            b_k = tl.load(p_k_pages + o_cached + o_keys)
            b_v = tl.load(p_v_pages + o_cached + o_keys, mask=(o_key < end)[:, None], other=0.0)
            b_score = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale
            is_seen = (b_position[:, None] >= o_key[None, :]) & (o_key < end)[None, :]
            b_score = tl.where(is_seen, b_score, float("-inf"))
            b_new_top = tl.maximum(b_top, tl.max(b_score, 1))
            b_base = tl.where(b_new_top == float("-inf"), 0.0, b_new_top)
            b_weight = tl.exp2(b_score - b_base[:, None])
            b_factor = tl.exp2(b_top - b_base)
            b_mass = b_mass * b_factor + tl.sum(b_weight, 1)
            b_total = b_total * b_factor[:, None]
            b_total = tl.dot(b_weight.to(b_v.dtype), b_v, b_total, input_precision="ieee")
            b_top = b_new_top
        b_out = b_total / tl.where(b_mass == 0.0, 1.0, b_mass)[:, None]
        if GATED:
            p_gates = p_gate + o_row[:, None] * gate_row + o_head[:, None] * gate_head + o_dim[None, :]
            b_gate = tl.load(p_gates, mask=is_row[:, None], other=0.0).to(tl.float32)
            b_out = b_out / (1.0 + tl.exp(-b_gate))
        b_out = tl.where(is_row[:, None], b_out, 0.0)
        tl.store(p_out + p_place, b_out.to(p_out.dtype.element_ty))
