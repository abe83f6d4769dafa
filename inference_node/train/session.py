"""One arm on one target and one set of samples, from opening to the drafter's files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from inference_node.models import states as states_form
from inference_node.models.errors import NodeError
from inference_node.train import evaluate, export
from inference_node.train import run as running
from inference_node.train.arm import Arm
from inference_node.train.attention import ROOM
from inference_node.train.features import Kept, LocalTarget, Source, room_on
from inference_node.train.memory import Memory, predicted
from inference_node.train.provenance import provenance
from inference_node.train.run import Line, Look, Told
from inference_node.train.sample import Sample, check_answers, digest
from inference_node.train.states import RemoteTarget
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
    def remote(
        arm: Arm,
        samples: Sequence[Sample],
        model: str,
        url: str,
        *,
        device: str = "",
        mask_id: int | None = None,
        memory_gb: float = 0.0,
        **options: Any,
    ) -> Session:
        """With states from the node at `url`; options are RemoteTarget's. tau cannot be looked at: the target is there.

        memory_gb: refuse an arm that is predicted to need more. Raises NodeError.
        """
        target = open_target(model, device=usual_device(device), weights="bf16", mask_id=mask_id, ends_only=True)
        needed = predicted(arm, target.shape, remote=True, flex=target.device.type == "cuda")
        if memory_gb and needed.total > memory_gb * 1e9:
            raise NodeError(f"{needed.told()} That is more than --memory-gb {memory_gb:g}. {needed.advice(arm)}")
        if memory_gb and target.device.type == "cuda":  # what is predicted is also what may be taken
            whole = torch.cuda.get_device_properties(target.device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, memory_gb * 1e9 / whole), target.device)
        source = RemoteTarget(
            url, target.module, arm.tapped(target.shape.layers), layers=target.shape.layers,
            model=states_form.fingerprint(target.files), last=arm.loss != "data", device=target.device, **options,
        )  # fmt: skip
        try:
            return Session.over(target, arm, samples, source=source)
        except BaseException:
            source.close()
            raise

    @staticmethod
    def over(
        target: OpenTarget,
        arm: Arm,
        samples: Sequence[Sample],
        *,
        held_out: int = 0,
        source: Source | None = None,
        flex: bool | None = None,
    ) -> Session:
        """With a target that is open, and its states from here unless a source is given.

        flex: attention that skips what is not seen, or copies short texts' rows; by default on an accelerator.
        """
        _check(samples, target, arm)
        if held_out >= len(samples):
            raise NodeError(f"--held-out {held_out} leaves nothing of {len(samples)} samples to train on.")
        held, rest = samples[:held_out], samples[held_out:]
        check_answers(held)
        if source is None:
            local = LocalTarget(target.module, arm.tapped(target.shape.layers), last=arm.loss != "data")
            source = Kept(local, room_on(target.device))
        flex = target.device.type == "cuda" if flex is None else flex
        learner = running.new_learner(arm, target.shape, source, rest, target.device, flex=flex)
        if flex and not isinstance(source, RemoteTarget):
            learner.room = ROOM
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
        lines.append(self.memory.told())
        return "\n".join(lines)

    @property
    def memory(self) -> Memory:
        """What a step is predicted to need on the trainer's device."""
        return predicted(
            self.learner.arm, self.target.shape, remote=isinstance(self.source, RemoteTarget), flex=self.learner.flex
        )

    @cached_property
    def fingerprint(self) -> str:
        """Of the target's files."""
        return states_form.fingerprint(self.target.files)

    def train(
        self,
        folder: Path,
        *,
        look_every: int = 0,
        told: Told = lambda line: None,
        log_every: int = 50,
        look: Look | None = None,
    ) -> Line:
        """look: in place of this session's own, which is the real loop over the texts held out."""
        return running.train(
            self.learner, self.source, self.samples, folder, target=self.fingerprint,
            told=told, log_every=log_every, look_every=look_every, look=look or (self.look if self.held else None),
        )  # fmt: skip

    def close(self) -> None:
        """End what fetches states."""
        if isinstance(self.source, RemoteTarget):
            self.source.close()

    def look(self, learner: Learner) -> float:
        """tau of the real loop over the prompts that were kept back, greedy."""
        served = evaluate.pair(self.target, learner)
        return evaluate.tau(evaluate.decode(served, sample.prompt, most=LOOK_TOKENS) for sample in self.held)

    def export(self, folder: Path, form: str, last: Line) -> Path:
        """The drafter's files, with what they came from."""
        learner = self.learner
        told = provenance(
            **{
                "arm": learner.arm.model_dump(),
                "target": self.target.files.name,
                "samples": len(self.samples),
                "samples_sha256": digest(self.samples),
                "last": asdict(last),
            }
        )
        return export.write(
            folder, learner.served(), learner.arm, self.target.shape, form=form, verifier=self.target.files.name,
            vocabulary=learner.vocabulary, head=self.source.head, provenance=told,
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
