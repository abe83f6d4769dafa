"""Base against head in one review: a step that times both in turns, confirms what moved, and says why.

Its time is bounded by a setting, whatever a repo has to offer. It never fails a review: what could not be built or run
is its reason. Only a slowdown that a second, independent block confirmed becomes a finding.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import TYPE_CHECKING

from pydantic import ValidationError
from sqlalchemy.orm import Session as Database

from orchestrator.measure import profiles, protocol, verdict
from orchestrator.measure.machine_key import changed_dependencies, digest, machine_key
from orchestrator.measure.records import (
    Block,
    CodeThatRan,
    Comparison,
    Metric,
    Outcome,
    Side,
    Surroundings,
    Unit,
    Why,
)
from orchestrator.measure.verdict import Compared, Void
from orchestrator.sandbox.contract import Description, NeedsMissing, SandboxError
from orchestrator.services import bases, bisecting, nights, pairs, slowdowns
from orchestrator.services.bases import Built
from orchestrator.services.job import UNWANTED, Job, StepRun
from orchestrator.services.job import Outcome as StepOutcome
from orchestrator.services.pairs import Pair, Timed
from orchestrator.store import comparisons, transcripts
from review_agents.ports import Checkout, CommandFailed, RepoProblem
from review_agents.records import (
    Benchmark,
    BenchmarkKind,
    Entry,
    Environment,
    ProbeResult,
    ProbeState,
    Repo,
    Verdict,
)
from review_agents.tools import Measure

if TYPE_CHECKING:
    from review_agents.probes import Prepared

NAME = "base against head"
STEP, POSITION = "measure:base", 400
MOST_SHARE = 0.5  # of the review's time that is left
SAME_CODE_PAIRS = 30  # that are remembered of a series
MOST_PROFILED = 3
MOST_OF_EQUAL_CODE = 3  # benchmarks, when base and head are one commit
MEASURE, MOST_ASKED = "measure", 6  # the agents' tool


class NotCompared(Exception):
    """Why this review compares nothing."""


def run(
    job: Job,
    repo: Repo,
    checkout: Checkout,
    prepared: "Prepared",
    results: Mapping[str, ProbeResult],
    description: Description,
) -> dict[str, ProbeResult]:
    """The step, where there is a base. What it returns is its result by step name, only if it found something."""
    base = bases.chosen(job, repo)
    if base is None or not (prepared.installed_plain or prepared.installed_test):
        return {}
    job.plan((STEP, POSITION))
    head = Built(repo, checkout, prepared, "")

    def work(run: StepRun) -> StepOutcome:
        comparing = Comparing(job, run, head, base, results, description)
        try:
            return comparing.outcome(comparing.compared())
        except (NeedsMissing, NotCompared, RepoProblem) as error:
            return comparing.nothing(str(error))
        except CommandFailed as error:
            return comparing.nothing(f"a command that worked failed when it was timed: {error}")
        except SandboxError as error:
            if isinstance(run.trouble, UNWANTED):
                raise run.trouble from None
            if error.retry and not job.hold.lease.last:  # the engine is away, a box was killed: later all of it
                raise
            return comparing.nothing(f"the sandbox failed: {error}")
        finally:
            run.close()
            bases.drop(job, "base")

    result = ProbeResult.model_validate(job.step(STEP, work))
    return {STEP: result} if result.candidates else {}


@dataclass
class Screened:
    """A benchmark after its first block."""

    benchmark: Benchmark
    run_s: float
    timed: list[Timed]
    metrics: list[Metric]


@dataclass
class Comparing:
    """One attempt of the step."""

    job: Job
    run: StepRun
    head: Built
    base_checkout: Checkout
    results: Mapping[str, ProbeResult]
    description: Description
    skipped: dict[str, str] = field(default_factory=dict)  # benchmark -> why it was not compared
    proofs: dict[tuple[Side, Environment], CodeThatRan] = field(default_factory=dict)
    arounds: dict[str, Surroundings] = field(default_factory=dict)  # by name of the benchmark

    def __post_init__(self) -> None:
        settings = self.job.shop.settings
        allowed = min(settings.compare_minutes * 60, self.job.time_left() * MOST_SHARE)
        self.deadline = time.monotonic() + allowed
        self.base = self.head
        assert self.job.shop.measuring is not None
        self.rule = self.job.shop.measuring.rule
        self.here = replace(
            self.job.shop.measuring.surroundings(self.description),
            dependencies=self.head.prepared.resolved_test or self.head.prepared.resolved,
        )

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    def say(self, text: str) -> None:
        self.run.log.write(f"{text}\n")

    # The whole ----------------------------------------------------------------------------

    def compared(self) -> list[Comparison]:
        if self.base_checkout.commit != self.head.checkout.commit:
            took = sum(attempt.seconds for attempt in self.head.prepared.commands)
            if took > self.left_s / 2:  # the head's is the best guess at the base's
                raise NotCompared(
                    f"installing takes {took:.0f} s, more than half of what LAMPLIGHTER_COMPARE_MINUTES allows"
                )
            self.say(f"base {self.base_checkout.commit[:12]} is built beside {self.head.checkout.commit[:12]}")
            self.base = bases.build(self.job, self.run, self.head.repo, self.base_checkout, name="base")
        pair = pairs.opened(self.job, self.run, self.base, self.head, part="screen")
        try:
            screened = self.screen(pair)
        finally:
            pair.close()
        screens = self.judged(screened, Block.SCREEN)
        moved = {
            name for name, one in screens.items() if isinstance(one, Compared) and verdict.is_candidate(one, self.rule)
        }
        confirms: dict[str, Compared | Void] = {}
        why: dict[str, Why] = {}
        if moved:
            confirms, why = self.confirm(screened, screens, moved)
        outcomes = verdict.settled(screens, confirms, self.rule)
        return [
            self.comparison(one, metric, outcomes[name], why.get(one.benchmark.name))
            for one in screened
            for metric in one.metrics
            if (name := protocol.series_name(one.benchmark.name, metric)) in outcomes
        ]

    def screen(self, pair: Pair) -> list[Screened]:
        """Everything once to see that it works and how long it takes, then the first block of what is affordable."""
        usable: list[tuple[Benchmark, float]] = []
        for one in self.found(pair):
            problem = self.wrong_code(pair, one)
            took = problem or self.warm_up(pair, one)
            if isinstance(took, str):
                self.skipped[one.name] = took
            else:
                usable.append((one, took))
        affordable = protocol.affordable([took for _, took in usable], self.left_s)
        screened = []
        for (one, took), fits in zip(usable, affordable, strict=True):
            if not fits or self.left_s <= 0:
                self.skipped[one.name] = (
                    f"there is no time for it (LAMPLIGHTER_COMPARE_MINUTES): a run takes {took:.1f} s"
                )
                continue
            timed = pairs.block(pair, Block.SCREEN, one, took, self.rule)
            self.say(f"{one.name}: {timed.void or 'first block taken'}")
            screened.append(Screened(one, took, [timed], protocol.metrics(timed.taken)))
        return screened

    def found(self, pair: Pair) -> list[Benchmark]:
        from review_agents.probes import found_benchmarks
        from review_agents.probes.source_tree import is_test_path

        slowest = self.results["probe:tests"].facts.get("slowest", ()) if "probe:tests" in self.results else ()
        timed = self.results["probe:benchmarks"].facts.get("commands", {}) if "probe:benchmarks" in self.results else {}
        found = found_benchmarks.found(
            pair.head.workspace,
            self.head.repo,
            self.head.prepared,
            slowest=slowest,
            test_command=timed.get(found_benchmarks.TEST_RUN, ""),
            asked=self.asked(),
        )
        changed = self.head.checkout.changed(self.base.checkout.commit) if self.base is not self.head else ()
        same_tests = not any(is_test_path(path) for path in changed)
        kept = []
        for one in found:
            if one.kind is BenchmarkKind.TEST_RUN and not same_tests:
                self.skipped[one.name] = "base and head have different tests"
            else:
                kept.append(one)
        return kept if self.base is not self.head else self.drawn(kept)

    def drawn(self, found: list[Benchmark]) -> list[Benchmark]:
        """Of equal code a few are enough to know our own false alarms, other ones each night."""
        day = date.fromisoformat(self.head.repo.today or "2026-01-01").toordinal()
        start = day * MOST_OF_EQUAL_CODE % max(1, len(found))
        return [*found[start:], *found[:start]][:MOST_OF_EQUAL_CODE]

    def asked(self) -> list[Benchmark]:
        """What agents measured in the review before."""
        with self.job.shop.sessions.reading() as db:
            return asked_by_agents(db, self.job)

    def wrong_code(self, pair: Pair, one: Benchmark) -> str:
        """Why the benchmark would time something else than the two commits; empty when it does not."""
        if one.environment is Environment.NONE:
            return ""
        for side, end in pair.ends.items():
            key = (side, one.environment)
            if key not in self.proofs:
                self.proofs[key] = bases.ran_code(end.workspace, end.built, one.environment)
                self.say(f"{side}: {self.proofs[key].import_path} {self.proofs[key].problem or 'is the commit'}")
            if not self.proofs[key].matches:
                return f"{side}: {self.proofs[key].problem}"
        return ""

    def warm_up(self, pair: Pair, one: Benchmark) -> float | str:
        if self.left_s <= 0:
            return "there was no time for it (LAMPLIGHTER_COMPARE_MINUTES)"
        pairs.bring(pair, one, self.head.checkout)
        return pairs.warmed_up(pair, one)

    def judged(self, screened: Sequence[Screened], block: Block) -> dict[str, Compared | Void]:
        found: dict[str, Compared | Void] = {}
        for one in screened:
            key = self.key(one.benchmark)
            for metric in one.metrics:
                name = protocol.series_name(one.benchmark.name, metric)
                found[name] = one.timed[-1].compared(
                    metric, block, same_code=self.same_code_ratios(name, key), rule=self.rule
                )
        return found

    def same_code_ratios(self, name: str, key: str) -> Sequence[float]:
        with self.job.shop.sessions.reading() as db:
            return comparisons.same_code_ratios(db, self.job.asked.repo_id, name, key, newest=SAME_CODE_PAIRS)

    def confirm(
        self, screened: Sequence[Screened], screens: Mapping[str, Compared | Void], moved: set[str]
    ) -> tuple[dict[str, Compared | Void], dict[str, Why]]:
        """The second block, in fresh boxes, of every benchmark that moved; profiles of what got slower."""
        pair = pairs.opened(self.job, self.run, self.base, self.head, part="confirm")
        confirms: dict[str, Compared | Void] = {}
        why: dict[str, Why] = {}
        try:
            for one in screened:
                names = {protocol.series_name(one.benchmark.name, metric): metric for metric in one.metrics}
                wanted = moved & set(names)
                if not wanted:
                    continue
                if self.left_s < 0.5 * protocol.seconds(Block.CONFIRM, one.run_s):
                    self.say(f"{one.benchmark.name}: it moved, and there is no time for a second block")
                    continue
                pairs.bring(pair, one.benchmark, self.head.checkout)
                pairs.warmed_up(pair, one.benchmark)
                one.timed.append(pairs.block(pair, Block.CONFIRM, one.benchmark, one.run_s, self.rule))
                self.say(f"{one.benchmark.name}: {one.timed[-1].void or 'second block taken'}")
                for name in wanted:
                    ratios = self.same_code_ratios(name, self.key(one.benchmark))
                    confirms[name] = one.timed[-1].compared(
                        names[name], Block.CONFIRM, same_code=ratios, rule=self.rule
                    )
                outcomes = verdict.settled(
                    {name: screens[name] for name in confirms}, confirms, self.rule
                )  # of those so far: enough to decide whether a profile is worth its time
                slower = [name for name in wanted if outcomes[name].verdict is Verdict.SLOWER]
                slower.sort(key=lambda name: names[name].unit is Unit.BYTES)  # samples are of time
                if slower and len(why) < MOST_PROFILED:
                    # A function has a part of a figure only where the samples are of that figure alone.
                    of_time = sum(names[name].unit is not Unit.BYTES for name in slower)
                    shares = of_time > 1 or sum(metric.own for metric in one.metrics) > 1
                    why[one.benchmark.name] = self.explain(pair, one, outcomes[slower[0]], shares)
        finally:
            pair.close()
        return confirms, why

    def explain(self, pair: Pair, one: Screened, outcome: Outcome, shares: bool) -> Why:
        """Profiles of both sides and what differs in what was installed."""
        from review_agents.probes.source_tree import SourceTree

        base, head = self.base.prepared, self.head.prepared
        dependencies = changed_dependencies(base.resolved_test or base.resolved, head.resolved_test or head.resolved)
        told = {side: pairs.stacks(end, one.benchmark, one.run_s) for side, end in pair.ends.items()}
        problems = [f"{side}: {said}" for side, said in told.items() if isinstance(said, str)]
        if not problems and not any(told.values()):
            problems = ["no tick of the clock fell into its Python code"]
        if problems or outcome.best is None:
            return Why(dependencies=dependencies, problem="; ".join(problems))
        trees = {side: SourceTree(end.workspace, end.built.repo, end.built.prepared) for side, end in pair.ends.items()}
        base_stacks, head_stacks = (dict(told[side]) for side in (Side.BASE, Side.HEAD))  # type: ignore[arg-type]
        grown = profiles.grown(
            base_stacks,
            head_stacks,
            base_metric=1.0 if shares else outcome.best.base,
            head_metric=1.0 if shares else outcome.best.head,
            base_file=trees[Side.BASE].tracked_path,
            head_file=trees[Side.HEAD].tracked_path,
        )
        return Why(grown, base_stacks, head_stacks, dependencies, shares=shares)

    def key(self, one: Benchmark) -> str:
        return machine_key(self.around(one))

    def around(self, one: Benchmark) -> Surroundings:
        if one.name not in self.arounds:
            blobs = self.head.checkout.blobs()
            files = {path: blobs.get(path, "") for path in one.files}
            self.arounds[one.name] = replace(self.here, benchmark=digest(one.command, files))
        return self.arounds[one.name]

    def comparison(self, one: Screened, metric: Metric, outcome: Outcome, why: Why | None) -> Comparison:
        environment = one.benchmark.environment
        base_ran, head_ran = (self.proofs.get((side, environment)) for side in (Side.BASE, Side.HEAD))
        same = self.base is self.head or (
            base_ran is not None and head_ran is not None and bases.same_code(self.base, self.head, base_ran, head_ran)
        )
        return Comparison(
            name=protocol.series_name(one.benchmark.name, metric),
            benchmark=one.benchmark,
            metric=metric,
            base_commit=self.base_checkout.commit,
            head_commit=self.head.checkout.commit,
            same_code=same,
            machine_key=self.key(one.benchmark),
            outcome=outcome,
            taken=protocol.alone([taken for timed in one.timed for taken in timed.taken], metric),
            canaries=tuple(timed.canary for timed in one.timed if timed.canary),
            base_ran=base_ran,
            head_ran=head_ran,
            why=why_of(why, metric) if outcome.verdict is Verdict.SLOWER else None,
        )

    # What becomes of it -------------------------------------------------------------------

    def outcome(self, found: Sequence[Comparison]) -> StepOutcome:
        alarms = [one for one in found if not one.same_code and slowdowns.worth_a_finding(one)]
        candidates = tuple(slowdowns.candidate(one, self.head) for one in alarms)
        searched = bisecting.searched(self.job, self.run, self.head, self.base, alarms) if alarms else {}
        earlier = [] if alarms else bisecting.of_series(self.job, self.run, self.head, found)
        if searched:
            candidates = tuple(
                bisecting.named(candidate, searched.get(one.name), self.job)
                for candidate, one in zip(candidates, alarms, strict=True)
            )
        counts = {word: sum(one.outcome.verdict is word for one in found) for word in Verdict}
        said = ", ".join(f"{number} {word.replace('_', ' ')}" for word, number in counts.items() if number)
        summary = f"against {self.base_checkout.commit[:12]}: {said or 'nothing was compared'}"
        contaminated = found and all(one.outcome.verdict is Verdict.CONTAMINATED for one in found)
        facts = {
            "base": self.base_checkout.commit,
            "compared": {one.name: in_words(one) for one in found},
            "not_compared": self.skipped,
            "dependencies_changed": {
                name: f"{before or 'none'} -> {after or 'none'}"
                for name, (before, after) in changed_dependencies(
                    self.base.prepared.resolved, self.head.prepared.resolved
                ).items()
            },
            "grew": {
                one.name: [f"{grew.function} in {grew.file}" for grew in one.why.grown[:5]]
                for one in found
                if one.why and one.why.grown
            },
        }
        state = ProbeState.FAILED if candidates else ProbeState.PASSED
        reason = ""
        if contaminated or not found:
            state = ProbeState.COULD_NOT_RUN
            reason = (
                found[0].outcome.reason if found else "; ".join(self.skipped.values()) or "there is nothing to time"
            )
        result = ProbeResult(
            probe=NAME, state=state, reason=reason[:1000], summary=summary, facts=facts, candidates=candidates
        )
        now = self.job.shop.clock()
        arounds = [self.around(one.benchmark) for one in found]

        def also(db: Database) -> None:
            for one, around in zip(found, arounds, strict=True):
                nights.keep_compared(db, self.job, one, around, now)
            bisecting.keep(db, self.job, [*bisecting.of_tonight(alarms, searched, now), *earlier], now)

        return StepOutcome(result.model_dump(mode="json"), summary=summary, reason=reason[:1000], also=also)

    def nothing(self, reason: str) -> StepOutcome:
        result = ProbeResult(probe=NAME, state=ProbeState.COULD_NOT_RUN, reason=reason)
        return StepOutcome(result.model_dump(mode="json"), reason=reason)


def why_of(why: Why | None, metric: Metric) -> Why | None:
    """Of memory only what was installed otherwise: samples tell where time goes."""
    if why is None or metric.unit is not Unit.BYTES:
        return why
    return Why(dependencies=why.dependencies, problem="samples of the running code tell where time goes, not memory")


def in_words(one: Comparison) -> str:
    best = one.outcome.best
    if best is None:
        return f"{one.outcome.verdict}: {one.outcome.reason}"
    moved = f"{best.effect:+.1%} ({best.low - 1:+.1%} to {best.high - 1:+.1%})"
    return f"{str(one.outcome.verdict).replace('_', ' ')}: {moved}; {one.outcome.reason}"


def asked_by_agents(db: Database, job: Job) -> list[Benchmark]:
    """The commands that agents timed in the newest finished review before this one, each once."""
    before = bases.previous_review(db, job)
    if before is None:
        return []
    found: dict[str, Benchmark] = {}
    for step_id, _, _ in transcripts.steps_with(db, before.id):
        for turn in transcripts.of_step(db, step_id):
            message = Entry.model_validate(turn.body).message
            for call in message.calls if message else ():
                if call.name == MEASURE and (one := wished_for(call.arguments)) is not None:
                    found.setdefault(one.name, one)
    return list(found.values())[:MOST_ASKED]


def wished_for(arguments: str) -> Benchmark | None:
    """A call of the tool `measure` as a benchmark; None where the model wrote nonsense."""
    try:
        call = Measure.model_validate_json(arguments)
    except ValidationError:
        return None
    name = f"agent: {call.name}"
    return Benchmark(name=name, kind=BenchmarkKind.AGENT, command=call.command, environment=call.environment)
