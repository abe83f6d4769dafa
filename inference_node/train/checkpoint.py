"""What a training run keeps so that it can go on: written whole or not at all."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from inference_node.models.errors import NodeError
from inference_node.train.arm import Arm

NAME = "checkpoint.pt"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A run after `step` steps. Schedule, order and anchors follow from the step and the arm alone."""

    arm: Arm
    step: int
    module: dict[str, torch.Tensor]
    optimizer: dict[str, Any]


def save(folder: Path, checkpoint: Checkpoint) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{NAME}.part"
    with part.open("wb") as file:
        torch.save(
            {
                "arm": checkpoint.arm.model_dump(),
                "step": checkpoint.step,
                "module": checkpoint.module,
                "optimizer": checkpoint.optimizer,
            },
            file,
        )
        file.flush()
        os.fsync(file.fileno())
    part.replace(folder / NAME)


def load(folder: Path, arm: Arm) -> Checkpoint | None:
    """The run's last, or None where it has not begun. Raises NodeError when another arm's run is there."""
    path = folder / NAME
    if not path.exists():
        return None
    held = torch.load(path, map_location="cpu", weights_only=True)
    there = Arm.model_validate(held["arm"])
    if there != arm:
        differ = [key for key in Arm.model_fields if getattr(there, key) != getattr(arm, key)]
        raise NodeError(
            f"{folder} holds a run of another arm: {differ[0]} is {getattr(there, differ[0])!r} there and "
            f"{getattr(arm, differ[0])!r} here. Name another folder, or remove that one."
        )
    return Checkpoint(arm, held["step"], held["module"], held["optimizer"])
