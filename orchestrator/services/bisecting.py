"""Which commit made it slow: builds and times those between, and names one only after timing it against its parent."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pydantic import TypeAdapter
from sqlalchemy import delete
from sqlalchemy.orm import Session as Database

from orchestrator.measure import bisect, verdict
from orchestrator.measure.change_points import change_points
from orchestrator.measure.records import RULE, Bisection, Block, ChangePoint, Comparison, Estimate, Outcome, Rule, Tried
from orchestrator.measure.verdict import Compared, Void
from orchestrator.sandbox.contract import NeedsMissing, SandboxError
from orchestrator.services import bases, histories, pairs
from orchestrator.services.bases import Built
from orchestrator.services.histories import CHANGE_POINT
from orchestrator.services.job import UNWANTED, Job, StepRun
from orchestrator.store import comparisons, measurements
from orchestrator.store.comparisons import ChangePointRow
from review_agents.ports import Checkout, CommandFailed, RepoProblem
from review_agents.records import Candidate, Verdict

MOST_SEARCHES = 2  # of a review; more alarms usually have one reason
BISECTION = TypeAdapter(Bisection)


def searched(job: Job, run: StepRun, head: Built, base: Built, alarms: Sequence[Comparison]) -> dict[str, Bisection]:
    """By name of the comparison. The search of the largest alarm answers for the others of its benchmark."""
    deadline = time.monotonic() + min(job.shop.settings.bisect_minutes * 60, job.time_left() / 2)
    found: dict[str, Bisection] = {}
    of_benchmark: dict[str, Bisection] = {}
    for one in sorted(alarms, key=lambda alarm: -(alarm.outcome.best.ratio if alarm.outcome.best else 0)):
        if one.benchmark.name not in of_benchmark:
            if len(of_benchmark) >= MOST_SEARCHES:
                continue
            of_benchmark[one.benchmark.name] = Search(job, run, head, base, one, deadline).done()
        found[one.name] = of_benchmark[one.benchmark.name]
    return found


@dataclass(frozen=True, slots=True)
class Found:
    """A step of a series to be kept, and what became of the search for its commit."""

    point: ChangePoint
    search: Bisection | None
    tonight: bool = False  # this review has confirmed it


def of_series(job: Job, run: StepRun, head: Built, found: Sequence[Comparison]) -> list[Found]:
    """The largest slowdown that the nights show and nobody has searched for, as after a night without a verdict.

    Its commit is looked for between those of its two nights.
    """
    if not job.shop.settings.bisect_minutes:
        return []
    with job.shop.sessions.reading() as db:
        kept = comparisons.change_points(db, job.asked.repo_id)
        every = histories.series_of(db, job.asked.repo_id)
    by_name = {one.name: one for one in found}
    unknown = [
        point
        for series in every
        if series.name in by_name
        for point in change_points(series)
        if point.ratio > 1 and point.from_commit != point.to_commit and histories.known(point, kept) is None
    ]
    if not unknown:
        return []
    point = max(unknown, key=lambda one: one.ratio)
    run.log.write(f"{point.name}: the nights show a step of {point.ratio:.2f} that has no name yet\n")
    search = search_between(job, run, head, as_comparison(by_name[point.name], point))
    return [Found(point, search)] if search else []


def as_comparison(one: Comparison, point: ChangePoint) -> Comparison:
    estimate = Estimate(point.ratio, point.ratio, point.ratio, 0.0, point.before, point.after, point.points_after)
    outcome = Outcome(Verdict.SLOWER, "a step in the nights", estimate, estimate)
    return replace(
        one,
        base_commit=point.from_commit,
        head_commit=point.to_commit,
        machine_key=point.machine_key,
        outcome=outcome,
        same_code=False,
    )


def search_between(job: Job, run: StepRun, head: Built, alarm: Comparison) -> Bisection | None:
    """Build both ends of the step, where the head is not one of them, and look between; None when they are gone."""
    names = []
    try:
        ends = []
        for name, commit in (("from", alarm.base_commit), ("to", alarm.head_commit)):
            if commit == head.checkout.commit:
                ends.append(head)
                continue
            names.append(name)
            ends.append(bases.build(job, run, head.repo, job.shop.git.at(job.asked.url, commit), name=name))
        deadline = time.monotonic() + min(job.shop.settings.bisect_minutes * 60, job.time_left() / 2)
        return Search(job, run, ends[1], ends[0], alarm, deadline, files=head.checkout).done()
    except (RepoProblem, SandboxError) as error:
        if isinstance(run.trouble, UNWANTED):
            raise
        run.log.write(f"the ends of the step cannot be built: {error}\n")
        return None
    finally:
        for name in names:
            bases.drop(job, name)


@dataclass
class Search:
    job: Job
    run: StepRun
    head: Built
    base: Built
    alarm: Comparison
    deadline: float
    files: Checkout | None = None  # whose benchmark files are used; None: the head's

    @property
    def rule(self) -> Rule:
        measuring = self.job.shop.measuring
        return measuring.rule if measuring else RULE

    def done(self) -> Bisection:
        """Whatever fails in it ends the search, never the slowdown that it is about."""
        try:
            return self.halved()
        except (RepoProblem, SandboxError, CommandFailed) as error:
            if isinstance(self.run.trouble, UNWANTED):
                raise self.run.trouble from None
            ends = self.base.checkout.commit, self.head.checkout.commit
            return self.ended((), *ends, problem=f"the search failed: {error}")

    def halved(self) -> Bisection:
        commits = self.head.checkout.since(self.base.checkout.commit)
        good, bad = self.base.checkout.commit, self.head.checkout.commit
        if not commits:
            return self.ended((), good, bad, problem="the base does not lie on the head's line of first parents")
        line = (good, *commits)
        known: dict[str, bool | None] = {}
        tried: list[Tried] = []
        while (commit := bisect.next_commit(line, known)) is not None:
            if time.monotonic() > self.deadline:
                left = bisect.narrowed(line, known)
                return self.ended(tried, left.good, left.bad, problem="the time for it was used up")
            one = self.tried(commit)
            self.run.log.write(f"bisecting: {commit[:12]} is {told(one)}\n")
            tried.append(one)
            known[commit] = one.slow
        left = bisect.narrowed(line, known)
        if not left.culprit:
            return self.ended(
                tried, left.good, left.bad, problem="the commits between could not be built or told apart"
            )
        return self.proved(tried, left.good, left.culprit)

    def tried(self, commit: str) -> Tried:
        found = self.against_base(commit)
        if isinstance(found, str):
            return Tried(commit, None, None, found)
        outcome = verdict.outcome(found, None, False)
        return Tried(commit, outcome, self.is_slow(found))

    def against_base(self, commit: str) -> Compared | str:
        """One block of that commit against the good end, a longer one if that does not decide; or why there is none."""
        with self.built(commit) as middle:
            if isinstance(middle, str):
                return middle
            found = self.timed(self.base, middle, Block.SCREEN)
            if isinstance(found, Compared) and self.is_slow(found) is None:
                found = self.timed(self.base, middle, Block.CONFIRM)
            return found

    def is_slow(self, found: Compared) -> bool | None:
        best = self.alarm.outcome.best
        return bisect.is_slow(found.estimate, best.ratio) if best else None

    def proved(self, tried: Sequence[Tried], good: str, culprit: str) -> Bisection:
        """Named only if it is slower than its own parent in a block of its own."""
        if good == self.base.checkout.commit and culprit == self.head.checkout.commit and self.files is None:
            return self.ended(tried, good, culprit, culprit=culprit)  # that is what the alarm itself has shown twice
        with self.built(good, name="good") as before, self.built(culprit) as after:
            if isinstance(before, str) or isinstance(after, str):
                problem = before if isinstance(before, str) else str(after)
                return self.ended(tried, good, culprit, problem=problem)
            found = self.timed(before, after, Block.CONFIRM)
        if isinstance(found, str):
            return self.ended(tried, good, culprit, problem=found)
        ends = Tried(culprit, verdict.outcome(found, found, found.estimate.p < self.rule.false_discoveries), True)
        if ends.outcome is None or ends.outcome.verdict is not Verdict.SLOWER:
            return self.ended([*tried, ends], good, culprit, problem="timed against its parent it is not slower")
        return self.ended([*tried, ends], good, culprit, culprit=culprit)

    def timed(self, base: Built, other: Built, block: Block) -> Compared | str:
        benchmark, metric = self.alarm.benchmark, self.alarm.metric
        pair = pairs.opened(self.job, self.run, base, other, part=f"bisect-{other.checkout.commit[:10]}-{block}")
        try:
            pairs.bring(pair, benchmark, self.files or self.head.checkout)
            for end in pair.ends.values():
                ran = bases.ran_code(end.workspace, end.built, benchmark.environment)
                if not ran.matches:
                    return ran.problem
            took = pairs.warmed_up(pair, benchmark)
            if isinstance(took, str):
                return took
            found = pairs.block(pair, block, benchmark, took, self.rule).compared(metric, block, rule=self.rule)
            return found.reason if isinstance(found, Void) else found
        finally:
            pair.close()

    def built(self, commit: str, *, name: str = "middle") -> "Middle":
        return Middle(self, commit, name)

    def ended(self, tried: Sequence[Tried], good: str, bad: str, *, culprit: str = "", problem: str = "") -> Bisection:
        self.run.log.write(f"bisecting ends: {culprit[:12] or problem}\n")
        return Bisection(self.alarm.name, good, bad, tuple(tried), culprit, problem)


@dataclass
class Middle:
    """A commit built in volumes that are gone afterwards; the ends of the search are there already."""

    search: Search
    commit: str
    name: str
    built: bool = False

    def __enter__(self) -> Built | str:
        search, job = self.search, self.search.job
        for end in (search.base, search.head):
            if end.checkout.commit == self.commit:
                return end
        self.built = True
        try:
            checkout = job.shop.git.at(job.asked.url, self.commit)
            made = bases.build(job, search.run, search.head.repo, checkout, name=self.name)
        except (NeedsMissing, RepoProblem) as error:
            return str(error)
        except SandboxError as error:
            if isinstance(search.run.trouble, UNWANTED):
                raise
            return f"the sandbox failed: {error}"
        if not (made.prepared.installed_test or made.prepared.installed_plain):
            return made.prepared.not_installed or "it could not be installed"
        return made

    def __exit__(self, *error: object) -> None:
        if self.built:
            bases.drop(self.search.job, self.name)


def told(one: Tried) -> str:
    if one.slow is None:
        return one.problem or "between both"
    return "on the slow side" if one.slow else "on the fast side"


# What becomes of it --------------------------------------------------------------------------


def named(candidate: Candidate, found: Bisection | None, job: Job) -> Candidate:
    """The claim with the commit, where one was named, else with the narrowest range."""
    if found is None:
        return candidate
    if not found.culprit:
        said = f"It came after {found.good[:12]}, with {found.bad[:12]} at the latest ({found.problem})."
        return candidate.model_copy(update={"description": f"{candidate.description} {said}"})
    try:
        subject = f' "{job.shop.git.at(job.asked.url, found.culprit).subject()}"'
    except RepoProblem:
        subject = ""
    built = len({one.commit for one in found.tried if one.outcome is not None})
    said = f"It came with commit {found.culprit[:12]}{subject}"
    said += f", found by building and timing {built} of the commits between." if built else "."
    return candidate.model_copy(update={"description": f"{candidate.description} {said}"})


def of_tonight(alarms: Sequence[Comparison], searched: Mapping[str, Bisection], now: datetime) -> list[Found]:
    """Slowdowns that this review confirmed, as steps that came with this night."""
    return [
        Found(
            ChangePoint(
                name=one.name,
                unit=str(one.metric.unit),
                machine_key=one.machine_key,
                from_commit=one.base_commit,
                to_commit=one.head_commit,
                from_at=now,
                to_at=now,
                before=best.base,
                after=best.head,
                ratio=best.ratio,
                points_after=1,
            ),
            searched.get(one.name),
            tonight=True,
        )
        for one in alarms
        if (best := one.outcome.best) is not None
    ]


def keep(db: Database, job: Job, steps: Sequence[Found], now: datetime) -> None:
    """Each with the commits that its search left, and the nights that it was seen between."""
    for one in steps:
        point, search = one.point, one.search
        night = measurements.named(db, job.review_id, point.name) if one.tonight else None
        if night is not None:  # a probe has perhaps taken it, in a series of another key: the step is that series' own
            point = replace(point, machine_key=night.machine_key, from_at=night.at, to_at=night.at)
        if search is not None:
            point = replace(point, from_commit=search.good, to_commit=search.bad)
        same = (
            ChangePointRow.repo_id == job.asked.repo_id,
            ChangePointRow.name == point.name,
            ChangePointRow.machine_key == point.machine_key,
            ChangePointRow.to_commit == point.to_commit,
        )
        db.execute(delete(ChangePointRow).where(*same), execution_options={"synchronize_session": False})
        db.add(
            ChangePointRow(
                repo_id=job.asked.repo_id,
                name=point.name,
                machine_key=point.machine_key,
                from_commit=point.from_commit,
                to_commit=point.to_commit,
                found_at=now,
                ratio=point.ratio,
                culprit=search.culprit if search else "",
                body=CHANGE_POINT.dump_python(point, mode="json"),
                bisection=BISECTION.dump_python(search, mode="json") if search else None,
            )
        )
