"""Two open boxes, base and head, in which one benchmark is timed in turns."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.measure import protocol, verdict
from orchestrator.measure.records import RULE, Block, Canary, Metric, Rule, Side, Taken
from orchestrator.measure.verdict import Compared, Void, compared
from orchestrator.sandbox.contract import Box
from orchestrator.services.bases import Built
from orchestrator.services.job import Job, StepRun
from orchestrator.services.workshop import Stopwatch
from review_agents.ports import Checkout, CommandFailed, NoSuchFile, Workspace
from review_agents.records import Benchmark, Environment, Ran

CANARY = "canary"
LONGEST_RUN_S = 60.0  # a benchmark that takes longer is not timed here
FIGURES_BYTES = 10 << 20


@dataclass(frozen=True)
class End:
    """One of the two boxes."""

    built: Built
    box: Box
    workspace: Workspace
    stopwatch: Stopwatch


@dataclass(frozen=True)
class Pair:
    ends: Mapping[Side, End]

    @property
    def head(self) -> End:
        return self.ends[Side.HEAD]

    @property
    def base(self) -> End:
        return self.ends[Side.BASE]

    def close(self) -> None:
        for end in self.ends.values():
            end.box.destroy()


def opened(job: Job, run: StepRun, base: Built, head: Built, *, part: str) -> Pair:
    """Fresh boxes, pinned alike, with our programs and the canary in them."""
    measuring, make = job.shop.measuring, job.shop.workspace
    assert measuring is not None and make is not None
    ends = {}
    for side, built in ((Side.BASE, base), (Side.HEAD, head)):
        requires = built.prepared.manifests[0].requires_python if built.prepared.manifests else ""
        box = run.open(part=f"{part}-{side}", volumes=built.volumes, cpus=measuring.cpus(), requires_python=requires)
        ends[side] = End(built, box, make(box, job.patience), measuring.stopwatch(box, job.patience))
        sent(ends[side].workspace, CANARY)
    return Pair(ends)


def sent(workspace: Workspace, name: str, path: str = "") -> str:
    from review_agents.probes.within import send

    return send(workspace, name, path)


def bring(pair: Pair, one: Benchmark, head: Checkout) -> None:
    """Give both sides the benchmark as the head has it, and the programs that it starts."""
    for end in pair.ends.values():
        overlay(end, one, head)


def overlay(end: End, one: Benchmark, head: Checkout) -> None:
    for name in one.inside:
        sent(end.workspace, name)
    wanted, there = head.blobs(), end.built.checkout.blobs()
    for path in one.files:
        if path in wanted and wanted[path] != there.get(path) and (content := head.content(path)) is not None:
            end.box.write(path, content)


def figures_of(end: End, one: Benchmark) -> Callable[[Ran], Mapping[str, float]]:
    """How the benchmark's own figures are read after each run."""
    from review_agents.probes import figures

    def read(ran: Ran) -> Mapping[str, float]:
        if not one.figures_file:
            return figures.from_output(ran.output)
        try:
            return figures.from_file(end.workspace.read(one.figures_file, limit_bytes=FIGURES_BYTES))
        except NoSuchFile:
            return {}

    return read


def warmed_up(pair: Pair, one: Benchmark) -> float | str:
    """Seconds that a run takes, or why the benchmark cannot be compared."""
    took = 0.0
    for side in (Side.HEAD, Side.BASE):
        ran = pair.ends[side].box.run(command(one, 1), environment=one.environment, timeout_s=LONGEST_RUN_S)
        if not ran.ok:
            where = "" if side is Side.HEAD else " at the base"
            last = (ran.output.strip().splitlines() or [""])[-1][:200]
            return f"it does not work{where} ({ran.ending}): {last}"
        took = max(took, ran.seconds)
    return took


def command(one: Benchmark, seed: int) -> str:
    return f"export PYTHONHASHSEED={seed}\n{one.command}"


@dataclass(frozen=True)
class Timed:
    """One block of one benchmark."""

    taken: tuple[Taken, ...]
    canary: Canary | None
    void: str  # why it gives no number; empty when it does

    def compared(self, metric: Metric, block: Block, **given: Any) -> Compared | Void:
        if self.void:
            return Void(self.void)
        base, head = (protocol.values(self.taken, block, side, metric) for side in (Side.BASE, Side.HEAD))
        if min(len(base), len(head)) < protocol.sessions_each(block):
            return Void("not every session gave this figure")
        return compared(base, head, metric, **given)


def block(pair: Pair, which: Block, one: Benchmark, run_s: float, rule: Rule = RULE) -> Timed:
    """All places of the block, each until it is good or given up; the first that is given up ends it."""
    first = canary_s(pair.head)
    if isinstance(first, str):
        return Timed((), None, f"before the first session: {first}")
    taken: list[Taken] = []
    for turn in protocol.turns(which):
        end = pair.ends[turn.side]
        try:
            tried = end.stopwatch.until_good(
                command(one, turn.seed),
                one.environment,
                LONGEST_RUN_S,
                processes=protocol.processes(run_s),
                figures=figures_of(end, one),
            )
        except CommandFailed as failed:
            return Timed(tuple(taken), None, f"it failed at the {turn.side}: {failed.ran.ending}")
        taken += [Taken(which, turn.place, turn.side, at, session) for at, session in enumerate(tried, start=1)]
        if tried[-1].void:
            break
    void = protocol.contaminated(taken)
    last = first if void else canary_s(pair.head)
    if isinstance(last, str):
        return Timed(tuple(taken), None, f"after the last session: {last}")
    canary = Canary(which, first, last)
    return Timed(tuple(taken), canary, void or verdict.drifted(canary, rule))


def canary_s(end: End) -> float | str:
    """Seconds of our own fixed program, or why it gave none."""
    from review_agents.probes import figures

    try:
        tried = end.stopwatch.until_good(
            f"python3 -I /tmp/lamplighter-{CANARY}.py",
            Environment.NONE,
            LONGEST_RUN_S,
            figures=lambda ran: figures.from_output(ran.output),
        )
    except CommandFailed as failed:
        return f"the canary ended with {failed.ran.ending}"
    if tried[-1].void:
        return tried[-1].reason
    return tried[-1].figures.get(CANARY, "the canary gave no time")


# Why -----------------------------------------------------------------------------------------

STACKS = "/tmp/lamplighter-stacks.json"
SAMPLER = "/tmp/lamplighter-profile"
SAMPLED_S, MOST_ROUNDS = 1.0, 30


def stacks(end: End, one: Benchmark, run_s: float) -> dict[str, float] | str:
    """What the benchmark spends its processor time on: "file:line:function;..." -> seconds; or why it is unknown.

    Short ones are run again until enough ticks have fallen into them.
    """
    sent(end.workspace, "sample_stacks", f"{SAMPLER}/sitecustomize.py")
    rounds = max(1, min(MOST_ROUNDS, math.ceil(SAMPLED_S / max(run_s, 1e-3))))
    script = (
        f"echo '{{}}' >{STACKS}\nexport PYTHONPATH={SAMPLER} LAMPLIGHTER_STACKS={STACKS}\n"
        f"for round in $(seq {rounds}); do\n(\n{command(one, 1)}\n) || exit\ndone"
    )
    ran = end.box.run(script, environment=one.environment, timeout_s=2 * LONGEST_RUN_S)
    if not ran.ok:
        return f"it did not run under the profile ({ran.ending})"
    try:
        told = json.loads(end.workspace.read(STACKS, limit_bytes=FIGURES_BYTES)).get("stacks", {})
        return {str(stack): float(seconds) for stack, seconds in told.items()}
    except (NoSuchFile, ValueError, AttributeError, TypeError):
        return f"no profile was written ({ran.ending})"
