"""A drafter's files judged on texts that its target wrote: by slot, in the loop, with intervals, as one JSON file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from inference_node.models import states as states_form
from inference_node.models.draft_weights import load_drafter
from inference_node.models.errors import NodeError
from inference_node.models.files import find
from inference_node.train import arm as arms
from inference_node.train import evaluate, statistics
from inference_node.train.attention import ROOM
from inference_node.train.batch import rows_for
from inference_node.train.evaluate import Decoded, Forced
from inference_node.train.features import LocalTarget
from inference_node.train.provenance import provenance
from inference_node.train.replay import replay
from inference_node.train.sample import Sample, check_answers, digest
from inference_node.train.statistics import Cost, Estimate
from inference_node.train.step import Learner
from inference_node.train.target import OpenTarget
from inference_node.train.vocabulary import Vocabulary

Told = Callable[[str], Any]
ROWS, ANCHORS = 2048, 256


@dataclass(frozen=True)
class Judged:
    """What one drafter did."""

    name: str
    block: int
    forced: Forced
    replayed: list[Decoded]  # over all texts
    looped: list[Decoded]  # the real loop, over the first of them
    identical: tuple[int, int]  # answers that plain decoding gives token for token, of those compared

    @property
    def survival(self) -> tuple[float, ...]:
        """S_k of the cycles."""
        return statistics.survival([one for answer in self.replayed for one in answer.accepted], self.block)

    def body(self, cost: Cost | None = None) -> dict[str, Any]:
        """As JSON."""
        accepted = [one for answer in self.looped for one in answer.accepted]
        found: dict[str, Any] = {
            "drafter": self.name,
            "block": self.block,
            "slot_accuracy": self.forced.accuracy,
            "forced_tau": self.forced.tau,
            "forced_blocks": self.forced.blocks,
            "prompts": len(self.replayed),
            "tau": asdict(statistics.interval([answer.counts for answer in self.replayed])),
            "tau_loop_free": asdict(statistics.interval([answer.loop_free for answer in self.replayed])),
            "survival": self.survival,
            "cycles": sum(answer.cycles for answer in self.replayed),
            "per_prompt": [(answer.committed, answer.cycles) for answer in self.replayed],
        }
        if self.looped:
            found |= {
                "loop_prompts": len(self.looped),
                "loop_tau": asdict(statistics.interval([answer.counts for answer in self.looped])),
                "loop_tau_loop_free": asdict(statistics.interval([answer.loop_free for answer in self.looped])),
                "loop_survival": statistics.survival(accepted, self.block),
                "replayed_tau_of_these": evaluate.tau(self.replayed[: len(self.looped)]),
                "identical_to_plain": self.identical,
            }
            woken = [one for answer in self.looped for one in answer.woken]
            if woken:
                found["experts_woken"] = sum(woken) / len(woken)
        if cost is not None:
            expected = statistics.eta(self.survival, cost)
            best = max(expected, key=lambda rows: expected[rows])
            found["eta"] = {"machine": cost.machine, "by_rows": expected, "best_rows": best, "best": expected[best]}
        return found


def learner_from(folder: str, target: OpenTarget) -> Learner:
    """A drafter from its files, in fp32. Raises NodeError."""
    loaded = load_drafter(find(folder), target.ids, torch.float32, target.device)
    c, body = loaded.config, target.module
    source = LocalTarget(body, c.taps, last=False)
    arm = arms.made(
        {
            "name": Path(folder).name or "drafter", "kind": c.kind, "block": c.block, "layers": len(c.layers),
            "taps": tuple(c.taps), "rows": ROWS, "anchors": ANCHORS, "vocabulary": c.draft_vocab % c.vocab,
        }
    )  # fmt: skip
    chosen = None if loaded.head_ids is None else Vocabulary(loaded.head_ids.cpu(), target.shape.vocab, 0.0)
    head = (source.head if loaded.head is None else loaded.head).detach().to(target.device, torch.float32)
    flex = target.device.type == "cuda"
    embedding = source.embedding.detach()
    return Learner(loaded.module, loaded.rope, arm, embedding, head, chosen, flex, ROOM if flex else 0)


def judge(
    learner: Learner,
    target: OpenTarget,
    samples: Sequence[Sample],
    *,
    name: str,
    loop: int = 16,
    identical: int = 4,
    told: Told = lambda text: None,
) -> Judged:
    """samples: texts that the target wrote, greedily, and that nothing was trained on. loop: answered in the real loop.

    identical: of these, answered without drafts too. Raises NodeError.
    """
    if not samples:
        raise NodeError("There is no text to judge the drafter on.")
    check_answers(samples)
    source = LocalTarget(target.module, learner.arm.tapped(target.shape.layers), last=False)
    # As it is served, whatever it was trained with: the text's own tokens behind an anchor, every other slot masked.
    served_as = {"loss": "data", "corruption": "full", "rows": rows_for(learner.arm, samples)}
    learner = replace(learner, arm=learner.arm.model_copy(update=served_as))
    forced = evaluate.forced(learner, source, samples)
    told(f"{name}: forced tau {forced.tau:.3f}, slots {' '.join(f'{one:.3f}' for one in forced.accuracy)}")
    replayed = replay(learner, source, samples)
    told(f"{name}: tau {evaluate.tau(replayed):.3f} over {len(replayed)} prompts")
    looped, same = [], 0
    served = evaluate.pair(target, learner) if loop else None
    for number, sample in enumerate(samples[:loop]):
        assert served is not None
        first, end = sample.answer
        prompt, most = sample.tokens[:first], end - first
        looped.append(evaluate.decode(served, prompt, most=most))
        if number < identical:
            same += evaluate.decode(served, prompt, most=most, draft=False).tokens == looped[-1].tokens
    if looped:
        told(f"{name}: tau {evaluate.tau(looped):.3f} in the real loop over {len(looped)} prompts")
    return Judged(name, learner.arm.block, forced, replayed, looped, (same, min(identical, len(looped))))


def compared(base: Judged, other: Judged) -> Estimate:
    """tau of `other` less that of `base`, paired over the same prompts."""
    return statistics.difference(
        [answer.counts for answer in base.replayed], [answer.counts for answer in other.replayed]
    )


def write(
    path: Path, judged: Sequence[Judged], target: OpenTarget, samples: Sequence[Sample], cost: Cost | None = None
) -> None:
    """One file: each drafter's figures, and each against the first."""
    body = {
        "provenance": provenance(
            target=target.files.name,
            model=states_form.fingerprint(target.files),
            samples=len(samples),
            samples_sha256=digest(samples),
        ),
        "drafters": [one.body(cost) for one in judged],
        "against_the_first": {one.name: asdict(compared(judged[0], one)) for one in judged[1:]},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
