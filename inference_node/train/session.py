"""One arm on one target and one set of samples, from opening to the drafter's files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from inference_node.models.errors import NodeError
from inference_node.train import evaluate, export
from inference_node.train import run as running
from inference_node.train.arm import Arm
from inference_node.train.features import LocalTarget, Source
from inference_node.train.run import Line, Told
from inference_node.train.sample import Sample
from inference_node.train.step import Learner
from inference_node.train.target import OpenTarget, open_target, usual_device

LOOK_TOKENS = 96  # of an answer when tau is looked at


@dataclass
class Session:
    target: OpenTarget
    source: Source
    learner: Learner
    samples: Sequence[Sample]  # to train on
    held: Sequence[Sample]  # to look at tau with: never trained on

    @staticmethod
    def open(
        arm: Arm,
        samples: Sequence[Sample],
        model: str,
        *,
        device: str = "",
        weights: str = "bf16",
        mask_id: int | None = None,
        held_out: int = 0,
    ) -> Session:
        """Raises NodeError, also when an id in the samples cannot be the target's."""
        target = open_target(model, device=usual_device(device), weights=weights, mask_id=mask_id)
        return Session.over(target, arm, samples, held_out=held_out)

    @staticmethod
    def over(target: OpenTarget, arm: Arm, samples: Sequence[Sample], *, held_out: int = 0) -> Session:
        """With a target that is open."""
        _check(samples, target, arm)
        if held_out >= len(samples):
            raise NodeError(f"--held-out {held_out} leaves nothing of {len(samples)} samples to train on.")
        held, rest = samples[:held_out], samples[held_out:]
        source = LocalTarget(target.module, arm.tapped(target.shape.layers), last=arm.loss != "data")
        flex = target.device.type == "cuda"
        learner = running.new_learner(arm, target.shape, source, rest, target.device, flex=flex)
        return Session(target, source, learner, rest, held)

    def told(self) -> str:
        """What is about to be trained, in a line or two."""
        module, layers = self.learner.module, self.target.shape.layers
        weights = sum(weight.numel() for weight in module.parameters())
        tokens = sum(len(sample.targets) for sample in self.samples)
        lines = [
            f"{self.learner.arm.name}: {weights / 1e6:.1f} million weights, taps {list(module.config.taps)} of {layers}"
            f" layers; {len(self.samples)} samples, {tokens} supervised tokens"
        ]
        if self.learner.vocabulary is not None:
            chosen = self.learner.vocabulary
            lines.append(
                f"{len(chosen.ids)} of {chosen.size} ids, which {100 * chosen.coverage:.2f} % of the tokens have"
            )
        return "\n".join(lines)

    def train(self, folder: Path, *, look_every: int = 0, told: Told = lambda line: None, log_every: int = 50) -> Line:
        look = self.look if self.held else None
        return running.train(
            self.learner, self.source, self.samples, folder,
            told=told, log_every=log_every, look_every=look_every, look=look,
        )  # fmt: skip

    def look(self, learner: Learner) -> float:
        """tau of the real loop over the prompts that were kept back, greedy."""
        served = evaluate.pair(self.target, learner)
        prompts = [sample.tokens[: sample.supervised[0][0]] for sample in self.held]
        return evaluate.tau(evaluate.decode(served, prompt, most=LOOK_TOKENS) for prompt in prompts if prompt)

    def export(self, folder: Path, form: str, last: Line) -> Path:
        """The drafter's files, with what they came from."""
        learner = self.learner
        provenance = {
            "arm": learner.arm.model_dump(),
            "target": self.target.files.name,
            "samples": len(self.samples),
            "samples_sha256": _digest(self.samples),
            "torch": torch.__version__,
            "last": asdict(last),
        }
        return export.write(
            folder, learner.module, learner.arm, self.target.shape, form=form, verifier=self.target.files.name,
            vocabulary=learner.vocabulary, head=self.source.head, provenance=provenance,
        )  # fmt: skip


def _check(samples: Sequence[Sample], target: OpenTarget, arm: Arm) -> None:
    usable = 0
    for sample in samples:
        highest = max(sample.tokens, default=0)
        if highest >= target.shape.vocab:
            raise NodeError(
                f'Sample "{sample.id}" has the id {highest}; {target.files.name} has {target.shape.vocab}. '
                "The samples are another model's."
            )
        mask = target.shape.mask_id
        if mask in sample.tokens:
            raise NodeError(f'Sample "{sample.id}" has the mask\'s id {mask} as a token. Name another with --mask-id.')
        usable += len(sample.tokens) <= arm.rows
    if not usable:
        raise NodeError(f"None of {len(samples)} samples fits the {arm.rows} rows of a step. Raise rows in the arm.")


def _digest(samples: Sequence[Sample]) -> str:
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(repr((sample.id, sample.tokens, sample.supervised)).encode())
    return digest.hexdigest()
