"""How good a drafter is: by its slots over given text, and in the real decoding loop, which is what counts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from inference_node.models.draft_weights import LoadedDrafter
from inference_node.speculate.dflash import DFlashDrafter
from inference_node.speculate.reference import ReferenceTarget, make_target
from inference_node.speculate.seam import CHUNK, Cut, Sampling, Target, TargetFacts
from inference_node.train import statistics
from inference_node.train.batch import batches
from inference_node.train.features import Source
from inference_node.train.sample import Sample, without_loop
from inference_node.train.statistics import Counts
from inference_node.train.step import Hits, Learner, precision
from inference_node.train.target import OpenTarget


@dataclass(frozen=True, slots=True)
class Forced:
    """Over text that is given: every anchor counts the same, whatever came before was right."""

    accuracy: tuple[float, ...]  # by slot, from slot 1
    survival: tuple[float, ...]  # S_k, from k = 1
    blocks: int

    @property
    def tau(self) -> float:
        return 1 + sum(self.survival)


@dataclass(frozen=True, slots=True)
class Decoded:
    """One prompt's answer in the real loop."""

    tokens: tuple[int, ...]
    accepted: tuple[int, ...]  # by cycle, those cut by the budget or a stop left out: they are the last
    woken: tuple[float, ...] = ()  # experts of each of these cycles' verifies, mean over layers; where there are any

    cut: int = 0  # cycles that were cut

    @property
    def cycles(self) -> int:
        return len(self.accepted)

    @property
    def all_cycles(self) -> int:
        return len(self.accepted) + self.cut

    @property
    def committed(self) -> int:
        return sum(self.accepted) + len(self.accepted)

    @property
    def counts(self) -> Counts:
        return Counts(self.committed, self.cycles)

    @property
    def loop_free(self) -> Counts:
        """Of the cycles before the text begins to say again what it has said."""
        room, committed, cycles = len(without_loop(self.tokens, 0)), 0, 0
        for accepted in self.accepted:
            if committed + accepted + 1 > room:
                break
            committed, cycles = committed + accepted + 1, cycles + 1
        return Counts(committed, cycles)


def tau(answers: Iterable[Decoded]) -> float:
    """Tokens committed per cycle, over all cycles of all answers; 1 where there is none."""
    return statistics.tau([answer.counts for answer in answers])


def forced(learner: Learner, source: Source, samples: Sequence[Sample], *, blocks: int = 50_000) -> Forced:
    """Teacher-forced over at least so many whole blocks, or over all samples once if they have fewer."""
    hits: list[Hits] = []
    seen = whole = 0
    tokens = sum(len(sample.tokens) for sample in samples)
    learner.module.eval()
    with torch.no_grad():
        for batch in batches(samples, learner.arm):
            states = source.states(
                batch.samples
            )  # before autocast, as in training: the target computes in its own type
            with precision(learner.head.device):
                hits.append(learner.step(batch.to(learner.head.device), states).hits)
            seen += sum(len(sample.tokens) for sample in batch.samples)
            whole += int(batch.whole.sum())
            if whole >= blocks or seen >= tokens:
                break
    learner.module.train()
    found = Hits.added(hits)
    return Forced(found.accuracy, found.survival, whole)


def pair(target: OpenTarget, learner: Learner) -> ReferenceTarget:
    """The drafter as it is now in front of its target, in the target's type: what the node would serve."""
    model = target.text_model(learner.arm.block)
    module = learner.served().to(model.dtype)
    chosen = learner.vocabulary
    loaded = LoadedDrafter(
        module,
        learner.rope,
        None if chosen is None else learner.head,
        None if chosen is None else chosen.ids.to(model.device),
    )
    facts = TargetFacts(
        name=target.files.name, family=target.config.model_type, engine="reference", device=str(model.device),
        weights=str(model.dtype), vocab=model.vocab, known_ids=model.known_ids,
        context=target.config.max_position_embeddings, block=learner.arm.block, stop_ids=target.stop_ids,
        drafter=learner.arm.kind, rollback="replay" if model.deltas else "none",
    )  # fmt: skip
    return make_target(model, DFlashDrafter(loaded, model), facts)


def decode(
    target: Target, prompt: Sequence[int], *, most: int, sampling: Sampling | None = None, draft: bool = True
) -> Decoded:
    """Answer one prompt with at most so many tokens."""
    return timed(target, prompt, most=most, sampling=sampling, draft=draft)[0]


def timed(
    target: Target, prompt: Sequence[int], *, most: int, sampling: Sampling | None = None, draft: bool = True
) -> tuple[Decoded, float]:
    """An answer, and the seconds of its cycles."""
    target.reset()
    rows = prompt[:-1]
    for start in range(0, len(rows), CHUNK):
        target.prefill(rows[start : start + CHUNK])
    target.begin(prompt, sampling or Sampling(), budget=most, stop_ids=target.facts.stop_ids, draft=draft)
    tokens: list[int] = []
    accepted: list[int] = []
    woken: list[float] = []
    cut, began = 0, time.perf_counter()
    while True:
        result = target.cycle().read()
        if result.cut is Cut.IDLE:
            return Decoded(tuple(tokens), tuple(accepted), tuple(woken), cut), time.perf_counter() - began
        tokens += result.tokens
        if result.cut is Cut.NONE:
            accepted.append(result.accepted)
            if result.experts_woken:
                woken.append(sum(result.experts_woken) / len(result.experts_woken))
        else:
            cut += 1
