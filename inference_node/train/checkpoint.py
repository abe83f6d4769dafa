"""What a training run keeps so that it can go on: written whole or not at all."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from inference_node.models.errors import NodeError
from inference_node.train.arm import Arm

NAME = "checkpoint.pt"


@dataclass(frozen=True, slots=True)
class Subject:
    """What a run is a run of: one that goes on with anything else would give weights that nobody can name."""

    arm: Arm
    texts: str  # digest of the samples
    target: str  # fingerprint of its files


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A run after `step` steps. Schedule, order and anchors follow from the step and the subject alone."""

    subject: Subject
    step: int
    seen: int  # tokens of context up to here
    module: dict[str, torch.Tensor]
    optimizer: dict[str, Any]


def save(folder: Path, checkpoint: Checkpoint) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{NAME}.part"
    with part.open("wb") as file:
        torch.save(
            {
                **asdict(checkpoint.subject),
                "arm": checkpoint.subject.arm.model_dump(),
                "step": checkpoint.step,
                "seen": checkpoint.seen,
                "module": checkpoint.module,
                "optimizer": checkpoint.optimizer,
            },
            file,
        )
        file.flush()
        os.fsync(file.fileno())
    part.replace(folder / NAME)


def load(folder: Path, subject: Subject) -> Checkpoint | None:
    """The run's last, or None where it has not begun. Raises NodeError when the run there is of something else."""
    path = folder / NAME
    if not path.exists():
        return None
    held = torch.load(path, map_location="cpu", weights_only=True)
    _same(folder, held, subject)
    return Checkpoint(subject, held["step"], held["seen"], held["module"], held["optimizer"])


def _same(folder: Path, held: dict[str, Any], subject: Subject) -> None:
    there, advice = Arm.model_validate(held["arm"]), "Name another folder, or remove that one."
    for key in Arm.model_fields:
        if getattr(there, key) != getattr(subject.arm, key):
            raise NodeError(
                f"{folder} holds a run of another arm: {key} is {getattr(there, key)!r} there and "
                f"{getattr(subject.arm, key)!r} here. {advice}"
            )
    if held.get("texts") != subject.texts:
        raise NodeError(
            f"{folder} holds a run over other texts: another file, other lines of it, or others held out. {advice}"
        )
    if held.get("target") != subject.target:
        raise NodeError(
            f"{folder} holds a run in front of another target: its fingerprint is {held.get('target')} there and "
            f"{subject.target} here. {advice}"
        )
