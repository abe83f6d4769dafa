"""An arm: one way to train a drafter, as a small TOML file says it.

    name = "ce-causal"
    loss = "data"
    attention = "causal"

What a file leaves out has the default here, so that two files show in what two arms differ.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from inference_node.models.errors import NodeError

DECAY = {8: 4.0, 10: 5.0, 16: 7.0}
"""Slots over which the exponential weighting falls by e, by block size: the published values."""


class Arm(BaseModel, frozen=True, extra="forbid"):
    """How a drafter is made. Counts are per step unless they say otherwise."""

    name: str = Field("arm", pattern=r"^[\w.-]+$")
    seed: int = Field(0, ge=0)

    # What is minimised
    loss: Literal["data", "teacher", "kl"] = "data"  # CE on the text; CE on the target's best token; KL from the target
    weighting: Literal["exp", "dpace", "none"] = "exp"
    smoothing: float = Field(0.5, gt=0, le=1)  # D-PACE's alpha
    corruption: Literal["full", "uniform", "prefix"] = "full"  # which slots are masked

    # The drafter
    kind: Literal["dflash", "dflash2"] = "dflash"
    attention: Literal["bidirectional", "causal", "mixed"] = "bidirectional"  # mixed: all but the last layer causal
    window: int = Field(2048, ge=2)  # rows that mixed's causal layers see
    block: int = Field(8, ge=2, le=64)
    layers: int = Field(2, ge=1)
    taps: tuple[int, ...] | int = 3  # layers of the target, or how many, spread evenly
    vocabulary: int = Field(0, ge=0)  # rows of its head, the most frequent ids; 0: all
    heads: int = Field(0, ge=0)  # here and below 0: as the target
    kv_heads: int = Field(0, ge=0)
    head_dim: int = Field(0, ge=0)
    intermediate: int = Field(0, ge=0)

    # The run
    steps: int = Field(1000, ge=1)
    rows: int = Field(4096, ge=16)  # tokens of context, packed from whole samples
    anchors: int = Field(512, ge=1)  # blocks
    rate: float = Field(6e-4, gt=0)
    warmup: float = Field(0.04, ge=0, lt=1)  # share of the steps
    clip: float = Field(1.0, gt=0)
    decay: float = Field(0.01, ge=0)  # of weights

    @model_validator(mode="after")
    def _fits(self) -> Arm:
        if self.attention == "mixed" and self.layers < 2:
            raise ValueError("attention: mixed needs at least 2 layers, one of them bidirectional")
        if isinstance(self.taps, int) and self.taps < 1:
            raise ValueError("taps: at least one")
        return self

    @property
    def slots_to_e(self) -> float:
        """lambda of the exponential weighting."""
        return DECAY.get(self.block, 0.44 * self.block)

    def tapped(self, target_layers: int) -> tuple[int, ...]:
        """Zero-based target layers whose outputs are read: given, or from layer 1 to the third last as published."""
        if not isinstance(self.taps, int):
            return self.taps
        if self.taps == 1:
            return (target_layers // 2,)
        last = max(target_layers - 3, min(self.taps, target_layers - 1))
        return tuple(round(1 + i * (last - 1) / (self.taps - 1)) for i in range(self.taps))


def read(path: Path, **changes: Any) -> Arm:
    """An arm from its file; `changes` come last. Raises NodeError naming the file and the key."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise NodeError(f'{path}: {error}. An arm is a small TOML file; `name = "mine"` is the shortest.') from None
    given.setdefault("name", path.stem)
    return made({**given, **changes}, path)


def made(given: dict[str, Any], where: object = "arm") -> Arm:
    """Raises NodeError naming the key that does not fit."""
    try:
        return Arm.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"][:1]) or "arm"
        raise NodeError(f"{where}: {key}: {first['msg']}. Known keys: {', '.join(Arm.model_fields)}.") from None


def grid(folder: Path, **changes: Any) -> Sequence[Arm]:
    """The arms of a folder, in the order of their files' names; `changes` are for all. Raises NodeError."""
    files = sorted(folder.glob("*.toml"))
    if not files:
        raise NodeError(f"{folder} has no arm in it: no file ends with .toml.")
    arms = [read(file, **changes) for file in files]
    names = [arm.name for arm in arms]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise NodeError(f'{folder}: two arms are called "{sorted(twice)[0]}".')
    return arms
