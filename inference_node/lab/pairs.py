"""What the two recipes for real pairs share: time, texts by the target, a drafter, and what is measured of it.

Everything is written to one folder as it is made, and what is there is not made again: a recipe that was stopped goes
on where it was.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from inference_node.models import states as states_form
from inference_node.models.errors import NodeError
from inference_node.speculate.seam import Target
from inference_node.train import collect as collecting
from inference_node.train import evaluate, judge
from inference_node.train import sample as samples
from inference_node.train.arm import Arm
from inference_node.train.collect import Answers, Wanted
from inference_node.train.export import TargetShape
from inference_node.train.judge import Judged
from inference_node.train.prompts import Prompt
from inference_node.train.provenance import provenance
from inference_node.train.replay import replay
from inference_node.train.run import Line
from inference_node.train.sample import Sample
from inference_node.train.session import Session
from inference_node.train.step import Learner
from inference_node.train.target import OpenTarget

MOST_BYTES = 16 << 20
"""Of a drafter that is shipped."""

RUN, STEPS = "run", "steps.json"
"""Where the drafter's run stands in a recipe's folder, and in that the steps that were chosen when it began."""

SO_FAR = "so-far"
"""The drafter as it was when tau was last looked at, beside the run."""

PROBED = 12
"""Steps by which the time of one is measured; the first of them compile."""


@dataclass
class Clock:
    """Minutes of one recipe, and what has been said so far; all of it is also in out/progress.txt."""

    out: Path
    minutes: float
    began: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> float:
        return (time.monotonic() - self.began) / 60

    def until(self, share: float) -> float:
        """The time.monotonic() at which this share of the minutes is spent."""
        return self.began + 60 * self.minutes * share

    def say(self, text: str) -> None:
        line = f"[{self.spent:6.2f} min] {text}"
        print(line, flush=True)
        self.out.mkdir(parents=True, exist_ok=True)
        with (self.out / "progress.txt").open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def parser(recipe: str, description: str | None, *, most: int, timed: int) -> argparse.ArgumentParser:
    """The options that both recipes have. most: tokens of an answer; timed: texts that speed is measured on."""
    made = argparse.ArgumentParser(prog=f"python -m inference_node.lab.{recipe}", description=description)
    add = made.add_argument
    add("--out", required=True, type=Path, help="folder; what is there is not made again")
    add("--minutes", type=float, default=9.0)
    add("--device", default="", help="default: the first accelerator")
    add("--seed", type=int, default=0)
    add("--threads", type=int, default=0)
    add("--held", type=int, default=128, help="texts of each kind that are held out")
    add("--max-tokens", type=int, default=most, help="of an answer")
    add("--batch", type=int, default=1024, help="answers at a time")
    add("--steps", type=int, default=0, help="of the drafter; 0: as many as fit")
    add("--rows", type=int, default=8192, help="tokens of context in a step of the drafter")
    add("--anchors", type=int, default=1536, help="blocks in a step of the drafter")
    add("--rate", type=float, default=1e-3)
    add("--loop", type=int, default=12, help="held-out texts answered in the real loop")
    add("--timed", type=int, default=timed, help="held-out texts of each kind that speed is measured on")
    add(
        "--plain-attention",
        action="store_true",
        help="where flex attention cannot be compiled (no C compiler, a card that Triton does not know): a mask of all "
        "pairs instead, anchors x block x (rows + anchors x block) bytes; a CPU always has it",
    )
    return made


def write(path: Path, body: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def texts(
    clock: Clock, target: OpenTarget, prompts: Sequence[Prompt], out: Path, wanted: Wanted, *, batch: int, until: float
) -> list[Sample]:
    """The target's answers, as many as there is time for. None is added once a drafter has begun to learn from them."""
    if begun(out.parent / RUN):
        return samples.read(out) if out.exists() else []
    tokenizer = target.files.tokenizer
    if tokenizer is None:
        raise NodeError(f"{target.files.name} has no tokenizer files, so prompts cannot be turned into tokens.")
    made = ending(collecting.here(target, tokenizer, wanted, batch=batch), until, batch)
    said = time.monotonic()

    def told(done: int, of: int) -> None:
        nonlocal said
        if time.monotonic() - said > 10:
            said = time.monotonic()
            clock.say(f"{out.name}: {done} of {of} answers")

    found = collecting.collect(prompts, made, out, told=told)
    clock.say(f"{out.name}: {found.written} more answers, {found.tokens} tokens, {found.cut} cut, {found.short} short")
    return samples.read(out) if out.exists() else []


def begun(place: Path) -> bool:
    """Whether a drafter is being trained there, or was."""
    return (place / STEPS).exists()


def ending(answers: Answers, until: float, batch: int) -> Answers:
    """Batches, none begun after `until`, except that there is always one."""

    def some(prompts: Sequence[Prompt]) -> Iterator[tuple[Prompt, Sequence[int], Sequence[int]]]:
        for start in range(0, len(prompts), batch):
            if start and time.monotonic() > until:
                return
            yield from answers(prompts[start : start + batch])

    return some


def steps_for(target: OpenTarget, arm: Arm, texts: Sequence[Sample], seconds: float, flex: bool | None = None) -> int:
    """How many steps of the arm fit, by a few that are thrown away."""
    session = Session.over(target, arm.model_copy(update={"steps": PROBED}), texts, flex=flex)
    stamps: list[float] = []

    def kept(line: Line) -> None:
        stamps.append(time.monotonic())

    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as scratch:
        session.train(Path(scratch), told=kept, log_every=1)
    each = (stamps[-1] - stamps[2]) / (len(stamps) - 3)
    return max(PROBED, int(seconds / each))


def drafter(
    clock: Clock, target: OpenTarget, arm: Arm, trained_on: Sequence[Sample], looked_at: Sequence[Sample], place: Path,
    *, until: float, steps: int = 0, flex: bool | None = None,
) -> Learner:  # fmt: skip
    """Train an arm until then, or for so many steps, and write its files to place/drafter."""
    chosen = place / STEPS
    if not begun(place):
        count = steps or steps_for(target, arm, trained_on, until - time.monotonic(), flex)
        write(chosen, {"steps": count})
        clock.say(f"{arm.name}: {count} steps fit")
    arm = arm.model_copy(update={"steps": json.loads(chosen.read_text())["steps"]})
    session = Session.over(target, arm, trained_on, flex=flex)
    clock.say(session.told())

    def line(one: Line) -> None:
        tau = "" if one.tau is None else f" tau {one.tau:.3f}"
        clock.say(
            f"{arm.name} {one.step}/{arm.steps}: loss {one.loss:.3f}, forced tau {one.tau_teacher_forced:.2f},{tau} "
            f"slots {' '.join(f'{a:.2f}' for a in one.accuracy)}, {one.tokens_per_s:,.0f} tokens/s"
        )
        if one.tau is not None:  # for whoever cannot wait, or has lost the machine
            session.export(place / SO_FAR, "zlab", one)

    every = max(1, arm.steps // 8)
    last = session.train(
        place, told=line, log_every=max(1, every // 2), look_every=every,
        look=lambda learner: evaluate.tau(replay(learner, session.source, looked_at)),
    )  # fmt: skip
    folder = session.export(place / "drafter", "zlab", last)
    size = (folder / "model.safetensors").stat().st_size
    clock.say(f"{folder}: {size / 2**20:.2f} MiB")
    return session.learner


def bytes_of(arm: Arm, shape: TargetShape) -> int:
    """Of the arm's drafter file, without its header."""
    from inference_node.train.memory import predicted

    return predicted(arm, shape).held["weights"] // 2


def judged(
    clock: Clock, learner: Learner, target: OpenTarget, held: Sequence[Sample], name: str, out: Path, *, loop: int
) -> Judged:
    """Judge a drafter on texts that were held out, and write out/name.json."""
    found = judge.judge(learner, target, held, name=name, loop=loop, identical=min(4, loop), told=clock.say)
    write(out / f"{name}.json", {**found.body(), "provenance": origin(target, held)})
    return found


def origin(target: OpenTarget, of: Sequence[Sample], **more: Any) -> dict[str, Any]:
    return provenance(
        target=target.files.name, model=states_form.fingerprint(target.files), texts_sha256=samples.digest(of), **more
    )


@dataclass(frozen=True, slots=True)
class Speed:
    """Wall time of answers in the real loop, prefill left out."""

    tokens: int
    cycles: int
    seconds: float

    @property
    def token_s(self) -> float:
        return self.seconds / self.tokens

    @property
    def cycle_s(self) -> float:
        return self.seconds / self.cycles

    @property
    def tau(self) -> float:
        """All cycles, cut ones too: what time was spent on."""
        return self.tokens / self.cycles


def timed(target: Target, held: Sequence[Sample], *, draft: bool = True) -> Speed:
    """Answers to the texts' prompts, as long as the texts; the first one warms up."""
    counts: list[tuple[int, int, float]] = []
    for sample in [held[0], *held]:
        first, end = sample.answer
        answer, seconds = evaluate.timed(target, sample.tokens[:first], most=end - first, draft=draft)
        counts.append((len(answer.tokens), answer.all_cycles, seconds))
    tokens, cycles, seconds = (sum(column) for column in zip(*counts[1:], strict=True))
    return Speed(int(tokens), int(cycles), float(seconds))


Load = Callable[[str, int, str], Target]
"""(draft, block, width) -> a target that serves it; block 1 with draft "none" is the fastest plain decode."""


def speeds(
    clock: Clock,
    load: Load,
    place: Path,
    held: Sequence[Sample],
    survived: Sequence[float],
    out: Path,
    target: OpenTarget,
    *,
    widths: Sequence[int],
) -> dict[str, Any]:
    """eta by rows of a verify, measured and predicted.

    Predicted: from S_k on other texts and the time of a cycle of that width, which is measured on the first half of the
    texts; measured: whole answers to the second half.
    """
    half = max(1, len(held) // 2)
    first, second = held[:half], held[half:] or held[:half]
    plain = load("none", 1, "off")
    base = timed(plain, second, draft=False)
    plain.close()
    clock.say(f"plain: {1 / base.token_s:.1f} tokens/s")
    found: dict[str, Any] = {"plain_tokens_per_s": 1 / base.token_s, "widths": {}}
    for width in widths:
        served = load(str(place / "drafter"), 0, str(width) if len(widths) > 1 else "off")
        cost = timed(served, first).cycle_s
        got = timed(served, second)
        served.close()
        expected = (1 + sum(survived[: width - 1])) * base.token_s / cost
        measured = base.token_s / got.token_s
        clock.say(f"width {width}: eta {measured:.3f} measured, {expected:.3f} predicted, tau {got.tau:.2f}")
        found["widths"][str(width)] = {"eta": measured, "predicted": expected, "cycle_s": cost, **asdict(got)}
        write(out, {**found, "provenance": origin(target, held)})
    return found
