"""What a pass has to read and write at least, by part, and in how many launches: the count that times are held against.

Weights count once however many rows there are; experts once each that is woken, the shared one included; recurrent
states are read and written; keys and values of the context are read. Activations, a few hundred KB, stay in caches and
are left out. Everything follows from a `Shape`, so that the page of predictions cannot drift from the code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from inference_node.lab.shapes import DraftShape, Shape

FP32 = 4


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of work of a pass."""

    name: str
    bytes: int
    launches: int


def verify(shape: Shape, *, rows: int, woken: int, context: int, folded: int = 0, weight: float = 2.0) -> list[Part]:
    """A pass of the target over `rows` rows whose layers wake `woken` routed experts each. weight: bytes of a number of
    the matrices (1.0 for int8; routers, norms and convolutions stay at 2)."""
    deltas = recurrent_layers(shape)
    attentions = shape.layers - deltas
    values = shape.linear_value_heads * shape.linear_dim
    channels = 2 * shape.linear_key_heads * shape.linear_dim + values
    enter = (channels + values + 2 * shape.linear_value_heads) * shape.hidden
    ring = folded * (FP32 * shape.linear_key_heads * shape.linear_dim + 2 * values)
    queries = shape.heads * shape.head_dim
    cached = 2 * shape.kv_heads * shape.head_dim * 2  # of one token, bf16
    attention = (2 * queries + 2 * shape.kv_heads * shape.head_dim + queries) * shape.hidden
    experts = (woken + 1) * 3 * shape.expert_width * shape.hidden
    return [
        Part("delta projections", round(deltas * weight * enter), deltas),
        Part("delta states", deltas * (2 * FP32 * values * shape.linear_dim + 2 * 4 * channels + ring), deltas),
        Part("delta outputs", round(deltas * weight * values * shape.hidden), 2 * deltas),
        Part("attention projections", round(attentions * weight * attention), 2 * attentions),
        Part("attention", attentions * cached * (context + rows), 3 * attentions),
        Part("routers", shape.layers * 2 * (shape.experts + 1) * shape.hidden, shape.layers),
        Part("experts", round(shape.layers * weight * experts), 2 * shape.layers),
        Part("head", round(weight * shape.vocab * shape.hidden), 2),
    ]  # fmt: skip


def draft(shape: Shape, drafter: DraftShape, *, context: int, head: float = 2.0) -> list[Part]:
    """A pass of a DFlash drafter over its block in bf16, the target's head included. head: bytes of a number of it."""
    heads, kv = drafter.heads * drafter.head_dim, drafter.kv_heads * drafter.head_dim
    layer = (2 * heads + 2 * kv) * shape.hidden + 3 * drafter.intermediate * shape.hidden
    seen = min(context, drafter.window) if drafter.window else context
    full = 1 if drafter.window else drafter.layers  # the last layer is full where the others slide
    keys = 2 * kv * 2
    return [
        Part("drafter's layers", drafter.layers * 2 * layer, 4 * drafter.layers),
        Part("drafter's attention", keys * (full * context + (drafter.layers - full) * seen), 3 * drafter.layers),
        Part("drafter's context", drafter.layers * 2 * 2 * kv * shape.hidden, 1),
        Part("drafter's taps", 2 * len(drafter.taps) * shape.hidden * shape.hidden, 2),
        Part("drafter's head", round(head * shape.vocab * shape.hidden), 2),
    ]


def recurrent_layers(shape: Shape) -> int:
    """Three in four of a hybrid's layers."""
    return shape.layers * 3 // 4


def total(parts: list[Part]) -> int:
    return sum(part.bytes for part in parts)


def table(parts: list[Part]) -> Iterator[str]:
    for part in parts:
        yield f"| {part.name} | {part.bytes / 1e6:,.0f} | {part.launches} |"
    yield f"| together | {total(parts) / 1e6:,.0f} | {sum(part.launches for part in parts)} |"
