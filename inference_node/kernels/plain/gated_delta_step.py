"""One layer's gated delta memory, walked through a block of 1 to 16 rows, with rollback by folding.

Why: a block is verified before it is known how many of its rows stay. So the state is left at the block's start, and
what the rule consumed is kept in a small ring: the next pass first folds the rows that stayed, stores the state it then
has (the boundary), and walks on through its own rows. Fold and step are the same loop over the same stored values, so
a folded state has the bits of having stepped. State and ring are double: a pass reads side `slot`, writes side
1 - slot. After a pass the old side still reaches every position of the block before, so a host that reads one cycle
late can go back to any position from the start of the cycle before last.

Per row and channel   x = SiLU(sum over taps of conv * input), rounded to the inputs' type; q, k, v are its parts
Per row and head      decay = exp(-rate * softplus(a + shift));  beta = sigmoid(b);  q, k to unit length, q / sqrt(K)
                      S = decay * S;  u = beta * (v - S^T k);  S = S + k u^T;  out = S^T q

    x             [block, C]             conv inputs, C = 2 * H * K + HV * V: queries, keys, values
    b, a          [block, HV]            rows of x, b and a may lie apart (views of one wide projection)
    slot          [1]            int32   the side that is read, 0 or 1
    fold          [1]            int32   rows of the last block to fold in, 0 to block
    valid         [1]            int32   rows of this block, 0 to block; with 0 the pass only folds
    out           [block, HV, V]         in x's type; rows from `valid` on are set to zero
    state         [2, HV, K, V]  fp32    at the start of the block whose rows the ring's same side holds
    line          [2, 3 + block, C]      conv inputs: the 3 before the block, then the block's; x's type
    k             [2, block, H, K] fp32  normalised, as the rule read them
    v             [2, block, HV, V]      in x's type, after conv and SiLU
    gates         [2, block, 2, HV] fp32 decay and beta

H key heads, HV value heads (value head h reads key head h // (HV // H)), 4 taps. Ring rows past the kept ones may hold
anything, NaN too.

Three ways to roll back, for comparison (`keep`):
    FOLD       the above.
    SNAPSHOTS  the state after every row is written to snapshots [2, block, HV, K, V]; the next pass starts from the
               one after its last kept row instead of folding. Needs no ring but the line.
    NOTHING    verify of replay: state, line and ring are only read (fold is ignored, the line's first 3 rows are used).
    LAST       commit of replay: the rows that stayed once more, as `valid`; the state after them and the line's first
               3 rows go to the other side. `out` is not written.
Exactness: row for row and bit for bit the same whatever `fold`, `valid` and `keep`; a row alone is the row in a block.
Checked by: tests/inference_node/kernels/triton/test_gated_delta_step.py
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch.nn import functional as F

from inference_node.kernels.plain import causal_conv
from inference_node.kernels.plain.gated_delta import normalise

TAPS = 4
APART = 32
"""Words between two marks, so that programs that wait for one do not hold up those that count another."""


class Keep(StrEnum):
    """What a pass keeps, so that its rows can be taken back."""

    FOLD = "fold"
    SNAPSHOTS = "snapshots"
    NOTHING = "nothing"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """What a layer's rule needs beside its projections."""

    conv: torch.Tensor  # [C, 4], oldest tap first
    rate: torch.Tensor  # [HV] fp32, exp(A_log)
    shift: torch.Tensor  # [HV] fp32, dt_bias


@dataclass(frozen=True, slots=True)
class DeltaMemory:
    """State and ring of one layer; shapes in the module's docstring."""

    state: torch.Tensor
    line: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    gates: torch.Tensor

    def __post_init__(self) -> None:
        _, heads, width, value_width = self.state.shape
        _, block, key_heads, _ = self.k.shape
        channels = 2 * key_heads * width + heads * value_width
        for name, tensor, shape, dtype in (
            ("state", self.state, (2, heads, width, value_width), torch.float32),
            ("line", self.line, (2, TAPS - 1 + block, channels), self.line.dtype),
            ("k", self.k, (2, block, key_heads, width), torch.float32),
            ("v", self.v, (2, block, heads, value_width), self.line.dtype),
            ("gates", self.gates, (2, block, 2, heads), torch.float32),
        ):
            if tuple(tensor.shape) != shape or tensor.dtype != dtype or not tensor.is_contiguous():
                raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}; expected contiguous {dtype} {shape}")
        if heads % key_heads:
            raise ValueError(f"{heads} value heads do not share {key_heads} key heads evenly")

    @property
    def block(self) -> int:
        return int(self.k.shape[1])

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.state, self.line, self.k, self.v, self.gates))


def memory(
    *, block: int, key_heads: int, heads: int, width: int, value_width: int, dtype: torch.dtype, device: torch.device
) -> DeltaMemory:
    """An empty sequence's memory: zero state, zeros before the first token."""
    channels = 2 * key_heads * width + heads * value_width
    return DeltaMemory(
        state=torch.zeros(2, heads, width, value_width, device=device),
        line=torch.zeros(2, TAPS - 1 + block, channels, dtype=dtype, device=device),
        k=torch.zeros(2, block, key_heads, width, device=device),
        v=torch.zeros(2, block, heads, value_width, dtype=dtype, device=device),
        gates=torch.zeros(2, block, 2, heads, device=device),
    )


def marks_for(key_heads: int, heads: int) -> int:
    """Words that the kernel counts in; zero before each pass."""
    return (key_heads + heads) * APART


def step(
    x: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    weights: DeltaWeights,
    memory: DeltaMemory,
    slot: torch.Tensor,
    fold: torch.Tensor,
    valid: torch.Tensor,
    out: torch.Tensor,
    *,
    keep: Keep = Keep.FOLD,
    snapshots: torch.Tensor | None = None,
    marks: torch.Tensor | None = None,
) -> None:
    """Fold, store, step: see the module's docstring. marks: zeros that the kernel counts in; the twin has no use for
    them."""
    read, rows = int(slot), int(valid)
    write = 1 - read
    kept = int(fold) if keep in (Keep.FOLD, Keep.SNAPSHOTS) else 0
    state = memory.state[read].clone()
    if keep is Keep.SNAPSHOTS and kept:
        assert snapshots is not None
        state = snapshots[read, kept - 1].clone()
    elif kept:
        for t in range(kept):
            state = advance(state, memory.k[read, t], memory.v[read, t], *memory.gates[read, t])
    tail = memory.line[read, kept : kept + TAPS - 1].clone()
    line = torch.cat([tail, x[:rows].to(tail.dtype)])
    if keep in (Keep.FOLD, Keep.SNAPSHOTS):
        memory.state[write] = state
        memory.line[write, : line.shape[0]] = line
    if keep is not Keep.LAST:
        out[rows:] = 0.0
    for t in range(rows):
        q, k, v, gates = enter(line[t : t + TAPS], b[t], a[t], weights, memory)
        state = advance(state, k, v, *gates)
        if keep is not Keep.LAST:
            out[t] = read_out(state, q)
        if keep is Keep.FOLD:
            memory.k[write, t], memory.v[write, t], memory.gates[write, t] = k, v, gates
        if keep is Keep.SNAPSHOTS:
            assert snapshots is not None
            snapshots[write, t] = state
    if keep is Keep.LAST:
        memory.state[write] = state
        memory.line[write, : TAPS - 1] = line[rows:]


def enter(
    taps: torch.Tensor, b: torch.Tensor, a: torch.Tensor, weights: DeltaWeights, memory: DeltaMemory
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """What one row brings to the rule: q [H, K] and k [H, K] fp32, v [HV, V], gates [2, HV] fp32.

    taps [4, C] are the conv inputs that the row reads, its own last.
    """
    _, _, key_heads, width = memory.k.shape
    convolved = causal_conv.convolve(taps[None].clone(), weights.conv, None)[0]
    q, k, v = convolved.split([key_heads * width, key_heads * width, memory.v.shape[2] * memory.v.shape[3]])
    q = normalise(q.view(key_heads, width)) * width**-0.5
    decay = torch.exp(-weights.rate * F.softplus(a.to(torch.float32) + weights.shift))
    beta = torch.sigmoid(b.to(torch.float32))
    return q, normalise(k.view(key_heads, width)), v.view(memory.v.shape[2:]), torch.stack([decay, beta])


def advance(
    state: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    """The state after one more row."""
    keys = k.repeat_interleave(state.shape[0] // k.shape[0], dim=0).unsqueeze(-1)
    state = state * decay[:, None, None]
    change = (v.to(torch.float32) - (state * keys).sum(-2)) * beta[:, None]
    return state + keys * change.unsqueeze(-2)


def read_out(state: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """[HV, V] fp32: what the row reads from the state it has written to."""
    return (state * q.repeat_interleave(state.shape[0] // q.shape[0], dim=0).unsqueeze(-1)).sum(-2)
