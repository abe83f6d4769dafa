"""The training loop: batches in, a drafter out. Interrupted, it goes on from its last checkpoint to the same end."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from inference_node.models import draft_config
from inference_node.models.drafter import DFlash
from inference_node.models.errors import NodeError
from inference_node.train import checkpoint as checkpoints
from inference_node.train import vocabulary as vocabularies
from inference_node.train.arm import Arm
from inference_node.train.batch import batches
from inference_node.train.checkpoint import Checkpoint, Subject
from inference_node.train.export import TargetShape, zlab_config
from inference_node.train.features import Source, column_scale
from inference_node.train.sample import Sample, digest
from inference_node.train.step import Hits, Learner, Outcome, precision, quick_products

LOG = "log.jsonl"
INITIAL = 0.02  # standard deviation of new weights
CONFIDENT = 0.999  # AdamW's second moment
KEEP_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a run's log: means since the line before."""

    step: int
    loss: float
    rate: float
    accuracy: tuple[float, ...]  # by slot, from slot 1
    survival: tuple[float, ...]  # S_k, from k = 1
    seen: int  # tokens of context up to here
    tokens_per_s: float
    tau: float | None = None  # of the decoding loop, where it was looked at

    @property
    def tau_teacher_forced(self) -> float:
        return 1 + sum(self.survival)


Told = Callable[[Line], Any]
Look = Callable[[Learner], float]
"""The decoding loop's tau with the drafter as it is now."""


def new_learner(
    arm: Arm, shape: TargetShape, source: Source, samples: Sequence[Sample], device: torch.device, *, flex: bool
) -> Learner:
    """A drafter with fresh weights, drawn from the arm's seed, and the target's head and embedding beside it."""
    config = draft_config.read(zlab_config(arm, shape), arm.name)
    torch.manual_seed(arm.seed)
    module = DFlash(config)
    for name, weight in module.named_parameters():
        if weight.dim() >= 2:
            torch.nn.init.normal_(weight, std=0.0 if _starts_silent(name) else INITIAL)
    if arm.kind == "dflash2":
        for name, weight in module.named_parameters():
            if name.endswith("base_kernel"):
                torch.nn.init.zeros_(weight)
                weight.data[:, 0] = 1.0  # at first a convolution passes its row through
    chosen = vocabularies.most_frequent(samples, arm.vocabulary, shape.vocab) if arm.vocabulary else None
    head = source.head if chosen is None else source.head[chosen.ids.to(source.head.device)]
    return Learner(
        module.to(device).train(),
        config.rope(device, arm.name),
        arm,
        source.embedding.detach().to(device),
        head.detach().to(device=device, dtype=torch.float32),
        chosen,
        flex,
        scale=column_scale(source, samples).to(device),
    )


def _starts_silent(name: str) -> bool:
    """What DFlash 2 adds begins at zero, so that it starts as DFlash 1."""
    return "kernel_projection" in name or name.endswith("successor_codebook")


def rate_at(arm: Arm, step: int) -> float:
    """Warm-up, then a cosine to zero."""
    warm = max(1, round(arm.warmup * arm.steps))
    if step < warm:
        return arm.rate * (step + 1) / warm
    return arm.rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, arm.steps - warm)))


def train(
    learner: Learner,
    source: Source,
    samples: Sequence[Sample],
    folder: Path,
    *,
    target: str,
    told: Told = lambda line: None,
    log_every: int = 50,
    look_every: int = 0,
    look: Look | None = None,
) -> Line:
    """Run an arm to its end, or on from its checkpoint in `folder`. Returns the last line of its log.

    target: the fingerprint of the files whose states `source` gives.
    look: called every `look_every` steps, and once at the end.
    Raises NodeError when the loss is no number, and when the folder has a run of another arm, texts or target.
    """
    arm, device = learner.arm, learner.head.device
    optimizer = _optimizer(learner.module, arm)
    subject = Subject(arm, digest(samples), target)
    first, seen = _resume(folder, subject, learner, optimizer)
    work = source.coming(islice(batches(samples, arm, first), arm.steps - first))
    tally, line = _Tally(seen), None
    kept = time.monotonic()
    with _interrupts() as interrupted:
        for step in range(first, arm.steps):
            batch = next(work)
            states = source.states(batch.samples)
            rate = rate_at(arm, step)
            for group in optimizer.param_groups:
                group["lr"] = rate
            with quick_products(device):
                with precision(device):
                    outcome = learner.step(batch.to(device), states)
                outcome.loss.backward()  # type: ignore[no-untyped-call]
            norm = torch.nn.utils.clip_grad_norm_(learner.module.parameters(), arm.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            tally.add(outcome, norm, sum(len(sample.tokens) for sample in batch.samples))
            done, last = step + 1, step + 1 == arm.steps
            looked = look is not None and (last or (look_every and done % look_every == 0))
            if looked or last or done % log_every == 0:
                tau = look(learner) if looked and look is not None else None
                line = tally.line(done, rate, tau)
                _log(folder, line)
                told(line)
            if last or interrupted() or time.monotonic() - kept > KEEP_EVERY_S:
                tally.check(done)
                state = learner.module.state_dict(), optimizer.state_dict()
                checkpoints.save(folder, Checkpoint(subject, done, tally.seen, *state))
                kept = time.monotonic()
            if interrupted():
                raise KeyboardInterrupt
    return line if line is not None else _last_line(folder)


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Whether somebody has asked to stop since. A step under way is finished and kept; asked twice, it ends at once."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.getsignal(signal.SIGINT)
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


class _Tally:
    """Adds up outcomes on the device; they are read only when a line is made."""

    def __init__(self, seen: int) -> None:
        self.seen = seen
        self.clear()

    def clear(self) -> None:
        self.losses: list[torch.Tensor] = []
        self.norms: list[torch.Tensor] = []
        self.hits: list[Hits] = []
        self.tokens, self.began = 0, time.perf_counter()

    def add(self, outcome: Outcome, norm: torch.Tensor, tokens: int) -> None:
        self.losses.append(outcome.loss.detach())
        self.norms.append(norm)
        self.hits.append(outcome.hits)
        self.tokens += tokens
        self.seen += tokens

    def check(self, step: int) -> None:
        """Before anything is kept. A number's gradient may be none, and then the weights are none."""
        if not self.losses:  # a line was just made of them
            return
        worst = torch.stack([*self.losses, *self.norms]).sum()
        if not math.isfinite(float(worst)):
            raise NodeError(
                f"The loss or its gradient is not a number at step {step} or shortly before. A smaller rate may help; "
                "nothing was kept of these steps."
            )

    def line(self, step: int, rate: float, tau: float | None) -> Line:
        self.check(step)
        hits = Hits.added(self.hits)
        line = Line(
            step,
            float(torch.stack(self.losses).mean()),
            rate,
            hits.accuracy,
            hits.survival,
            self.seen,
            self.tokens / (time.perf_counter() - self.began),
            tau,
        )
        self.clear()
        return line


def _optimizer(module: DFlash, arm: Arm) -> torch.optim.Optimizer:
    """AdamW over fp32 weights; norms and other vectors do not decay."""
    matrices = [weight for weight in module.parameters() if weight.dim() >= 2]
    vectors = [weight for weight in module.parameters() if weight.dim() < 2]
    groups = [{"params": matrices, "weight_decay": arm.decay}, {"params": vectors, "weight_decay": 0.0}]
    fused = module.norm.weight.is_cuda
    return torch.optim.AdamW(groups, lr=arm.rate, betas=(0.9, CONFIDENT), fused=fused)


def _resume(folder: Path, subject: Subject, learner: Learner, optimizer: torch.optim.Optimizer) -> tuple[int, int]:
    """Steps that are done, and the tokens that they saw."""
    held = checkpoints.load(folder, subject)
    if held is None:
        return 0, 0
    learner.module.load_state_dict(held.module)
    optimizer.load_state_dict(held.optimizer)
    return held.step, held.seen


def _log(folder: Path, line: Line) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOG).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(line)) + "\n")


def read_log(folder: Path) -> list[Line]:
    """Lines of a run, in order; after a resume those that were written twice count once."""
    path = folder / LOG
    if not path.exists():
        return []
    lines = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        body = json.loads(text)
        lines[body["step"]] = Line(**{**body, "accuracy": tuple(body["accuracy"]), "survival": tuple(body["survival"])})
    return [lines[step] for step in sorted(lines)]


def _last_line(folder: Path) -> Line:
    lines = read_log(folder)
    if not lines:
        raise NodeError(f"{folder} holds a finished run without a log.")
    return lines[-1]
