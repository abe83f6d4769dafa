"""Shapes of models to fabricate: small ones for tests, the real ones for benches."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Shape:
    """A target's sizes. Fields that a family does not have are ignored."""

    hidden: int = 64
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    intermediate: int = 96  # dense MLP
    vocab: int = 512  # rows of the embedding; the tokenizer has a few less
    positions: int = 4096
    linear_key_heads: int = 2
    linear_value_heads: int = 4
    linear_dim: int = 16
    experts: int = 8
    experts_per_token: int = 4
    expert_width: int = 32


SMALL = Shape()

QWEN36_35B_A3B = Shape(
    hidden=2048,
    layers=40,
    heads=16,
    kv_heads=2,
    head_dim=256,
    intermediate=0,
    vocab=248320,
    positions=262144,
    linear_key_heads=16,
    linear_value_heads=32,
    linear_dim=128,
    experts=256,
    experts_per_token=8,
    expert_width=512,
)

QWEN36_27B = replace(
    QWEN36_35B_A3B, hidden=5120, layers=64, heads=24, kv_heads=4, intermediate=17408, linear_value_heads=48
)

SHAPES = {"small": SMALL, "35b-a3b": QWEN36_35B_A3B, "27b": QWEN36_27B}


@dataclass(frozen=True, slots=True)
class DraftShape:
    """A drafter's sizes. Width and vocabulary are the target's."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    block: int
    taps: tuple[int, ...]
    window: int | None  # None: all layers full; else all but the last slide
    yarn: bool = False


def draft_shape(revision: str, target: Shape, block: int) -> DraftShape:
    """The released file's revisions: "april" (YaRN), "april-2" (plain rope), "june"; "dflash2" is another file.

    At the real target's depth these are the published values; at other depths the same pattern, scaled.
    """
    if target.layers == QWEN36_27B.layers:  # a preview with one revision only
        return DraftShape(5, 32, 8, 128, 17408, block, (1, 16, 31, 46, 61), window=2048)
    real = target.layers == QWEN36_35B_A3B.layers
    heads, dim = (32, 128) if real else (4, 16)
    april = DraftShape(
        layers=8 if real else 3,
        heads=heads,
        kv_heads=4 if real else 1,
        head_dim=dim,
        intermediate=6144 if real else 96,
        block=block,
        taps=(1, 10, 19, 28, 37) if real else _spread(target.layers, 2),
        window=None,
        yarn=revision == "april",
    )
    if revision in ("april", "april-2"):
        return april
    june = replace(
        april,
        layers=6 if real else 3,
        kv_heads=8 if real else 2,
        taps=(1, 6, 11, 16, 22, 27, 32, 37) if real else _spread(target.layers, 3),
        window=4096 if real else 24,
    )
    return june


def _spread(layers: int, count: int) -> tuple[int, ...]:
    """Evenly over the layers, the last but one at most."""
    return tuple(round(i * (layers - 2) / (count - 1)) for i in range(count))
