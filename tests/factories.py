"""Rows and records that are valid by default; a test names only what matters to it.

    with sessions.begin() as db:
        review = make_review(db, state=ReviewState.DONE)
        make_sighting(db, review, severity=Severity.HIGH)

Functions that take a session add their row and flush. Times count from NOON, a fixed moment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

from pydantic import TypeAdapter
from sqlalchemy import insert
from sqlalchemy.orm import Session

from orchestrator.measure.records import ChangePoint, Comparison, Estimate, Metric, Outcome, Taken, Unit, Why
from orchestrator.services.witness import Witness
from orchestrator.services.workshop import Workshop
from orchestrator.settings import Settings
from orchestrator.store.comparisons import ChangePointRow, ComparisonRow
from orchestrator.store.findings import FindingRow, Sighting
from orchestrator.store.logs import LogChunk
from orchestrator.store.measurements import MeasurementRow
from orchestrator.store.repos import Repo, RepoKind
from orchestrator.store.reviews import Review, ReviewState
from orchestrator.store.schedules import Schedule, ScheduleKind
from orchestrator.store.session import Sessions
from orchestrator.store.steps import Step, StepState
from review_agents.identity import fingerprint_of
from review_agents.ports import RemoteHead, RepoProblem, UnknownRef
from review_agents.records import (
    Benchmark,
    BenchmarkKind,
    Candidate,
    FindingState,
    Kind,
    Lifecycle,
    Measurement,
    Place,
    ProbeResult,
    ProbeState,
    Ran,
    Reproduction,
    Severity,
    Source,
    Symptom,
    Verdict,
    Verification,
    VerificationState,
)
from review_agents.records import (
    Session as TimedSession,
)

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
COMMIT = "0123456789abcdef0123456789abcdef01234567"
numbers = count(1)


# Records -----------------------------------------------------------------------------------


def make_candidate(**changed: Any) -> Candidate:
    given: dict[str, Any] = {
        "kind": Kind.DOCUMENTATION,
        "rule": "readme.output-differs",
        "title": "The first example of README prints 3, not 4",
        "description": "README shows `4` below `print(1 + 2)`; a user who runs it sees `3`.",
        "severity": Severity.MEDIUM,
        "places": (Place(file="README.md", line=12, symbol="Usage", quote="4"),),
        "reproduction": make_reproduction(),
        **changed,
    }
    return Candidate(**given)


def make_reproduction(**changed: Any) -> Reproduction:
    given: dict[str, Any] = {
        "command": "python -c 'print(1 + 2)'",
        "expected": "4",
        "observed": "3",
        "control": "true",
        "symptom": Symptom(lacks=("4",)),
        **changed,
    }
    return Reproduction(**given)


def make_verification(state: VerificationState = VerificationState.CONFIRMED, **changed: Any) -> Verification:
    runs = () if state is VerificationState.UNVERIFIED else (Ran(exit=0, seconds=0.1, head="3\n"),) * 2
    return Verification(**{"state": state, "runs": runs, **changed})


def make_probe_result(probe: str = "readme", **changed: Any) -> ProbeResult:
    given: dict[str, Any] = {
        "probe": probe,
        "state": ProbeState.PASSED,
        "seconds": 1.5,
        "summary": "3 examples run",
        "facts": {"examples": 3},
        **changed,
    }
    return ProbeResult(**given)


def make_measurement(*values: float, **changed: Any) -> Measurement:
    values = values or (0.10, 0.11, 0.10, 0.12, 0.10, 0.11)
    given: dict[str, Any] = {
        "name": "tests",
        "command": "pytest -q",
        "sessions": tuple(TimedSession(value=value, pressure=0.0) for value in values),
        **changed,
    }
    return Measurement(**given)


# Rows --------------------------------------------------------------------------------------


def make_repo(db: Session, **changed: Any) -> Repo:
    number = next(numbers)
    return added(
        db,
        Repo(
            **{
                "name": f"repo{number}",
                "url": f"https://git.example/team/repo{number}",
                "kind": RepoKind.GIT,
                "default_ref": "main",
                "created_at": NOON,
                **changed,
            }
        ),
    )


def make_review(db: Session, repo: Repo | None = None, **changed: Any) -> Review:
    """Queued by default. One that has ended or runs gets fitting times and a machine."""
    repo = repo or make_repo(db)
    state = changed.get("state", ReviewState.QUEUED)
    created_at = changed.get("created_at", NOON)
    given: dict[str, Any] = {
        "repo_id": repo.id,
        "ref": "main",
        "commit": COMMIT,
        "commit_date": "2026-11-29T10:00:00+01:00",
        "budget_minutes": 60,
        "requested_by": "web",
        "created_at": created_at,
    }
    if state is not ReviewState.QUEUED:
        given |= {"started_at": created_at + timedelta(seconds=5), "machine": "machine", "attempt": 1, "fence": 1}
    if state.ended:
        given |= {"finished_at": created_at + timedelta(minutes=5)}
    return added(db, Review(**{**given, **changed}))


def make_step(db: Session, review: Review, name: str = "probe:readme", **changed: Any) -> Step:
    """Done by default; a probe's step has its result."""
    family, _, rest = name.partition(":")
    given: dict[str, Any] = {
        "review_id": review.id,
        "name": name,
        "position": next(numbers),
        "state": StepState.DONE,
        "attempt": 1,
        "started_at": NOON,
        "ended_at": NOON + timedelta(seconds=2),
    }
    if family == "probe" and changed.get("state", StepState.DONE) is StepState.DONE:
        result = changed.get("result") or make_probe_result(rest).model_dump(mode="json")
        given |= {"result": result, "summary": result.get("summary", ""), "reason": result.get("reason", "")}
    return added(db, Step(**{**given, **changed}))


def make_chunk(db: Session, step: Step, text: str = "a line\n", **changed: Any) -> LogChunk:
    given: dict[str, Any] = {
        "review_id": step.review_id,
        "step_id": step.id,
        "attempt": step.attempt,
        "seq": next(numbers),
        "at": NOON,
        "text": text,
    }
    return added(db, LogChunk(**{**given, **changed}))


def make_finding(db: Session, review: Review, candidate: Candidate | None = None, **changed: Any) -> FindingRow:
    """A finding without a sighting; `make_sighting` makes both."""
    candidate = candidate or make_candidate(shape=f"shape {next(numbers)}")
    given: dict[str, Any] = {
        "repo_id": review.repo_id,
        "fingerprint": fingerprint_of(candidate),
        "kind": candidate.kind,
        "rule": candidate.rule,
        "path": candidate.places[0].file,
        "symbol": candidate.places[0].symbol,
        "shape": candidate.shape,
        "first_review_id": review.id,
        "last_review_id": review.id,
        "state": FindingState.OPEN,
        "title": candidate.title,
        "severity": candidate.severity,
        "step": "probe:readme",
    }
    return added(db, FindingRow(**{**given, **changed}))


def make_sighting(
    db: Session,
    review: Review,
    finding: FindingRow | None = None,
    *,
    candidate: Candidate | None = None,
    verification: Verification | None = None,
    **changed: Any,
) -> Sighting:
    """A confirmed new finding by default; with `finding` an earlier one, seen again."""
    known = finding is not None
    candidate = candidate or make_candidate(shape=f"shape {next(numbers)}")
    verification = verification or make_verification()
    finding = finding or make_finding(db, review, candidate)
    finding.last_review_id = review.id
    given: dict[str, Any] = {
        "review_id": review.id,
        "finding_id": finding.id,
        "lifecycle": Lifecycle.PERSISTING if known else Lifecycle.NEW,
        "severity": candidate.severity,
        "source": Source.PROBE,
        "verification_state": verification.state,
        "verification_reason": verification.reason,
        "body": candidate.model_dump(mode="json"),
        "verification": verification.model_dump(mode="json"),
    }
    return added(db, Sighting(**{**given, **changed}))


def make_measured(
    db: Session, review: Review, measurement: Measurement | None = None, **changed: Any
) -> MeasurementRow:
    one = measurement or make_measurement()
    given: dict[str, Any] = {
        "review_id": review.id,
        "repo_id": review.repo_id,
        "name": one.name,
        "command": one.command,
        "unit": one.unit,
        "machine_key": "machine/fake/image/3.11.2",
        "commit": review.commit,
        "at": review.created_at,
        "sessions": [session.model_dump(mode="json") for session in one.sessions],
        "median": one.median,
        "spread": one.spread,
        "contaminated": one.contaminated,
        "note": one.note,
        "verdict": one.change.model_dump(mode="json") if one.change else None,
    }
    return added(db, MeasurementRow(**{**given, **changed}))


REASONS = {
    Verdict.SLOWER: "both blocks agree",
    Verdict.FASTER: "both blocks agree",
    Verdict.NO_CHANGE: "the interval lies within 2 %",
    Verdict.CONTAMINATED: "a session was void 4 times (others used 9 % of the processor time)",
}


def make_compared(
    db: Session,
    review: Review,
    name: str = "tests",
    ratio: float | None = 1.0,
    *,
    why: Why | None = None,
    taken: Sequence[Taken] = (),
    **changed: Any,
) -> ComparisonRow:
    """Base against head; without a ratio it was contaminated. Its verdict follows from the ratio."""
    verdict = Verdict.CONTAMINATED if ratio is None else Verdict.NO_CHANGE
    if ratio is not None and abs(ratio - 1) >= 0.03:
        verdict = Verdict.SLOWER if ratio > 1 else Verdict.FASTER
    unit = Unit(changed.pop("unit", "s"))
    reason = changed.pop("reason", REASONS[verdict])
    base = changed.pop("base", 0.1)
    screen = None if ratio is None else Estimate(ratio, ratio * 0.98, ratio * 1.02, 0.002, base, base * ratio, 6)
    confirm = replace(screen, sessions=10) if screen and verdict is not Verdict.NO_CHANGE else None
    given: dict[str, Any] = {
        "review_id": review.id,
        "repo_id": review.repo_id,
        "name": name,
        "kind": str(BenchmarkKind.SCRIPT),
        "unit": str(unit),
        "machine_key": "machine/fake/image/3.11.2",
        "base_commit": "f" * 40,
        "head_commit": review.commit,
        "same_code": False,
        "at": review.created_at,
        "verdict": verdict,
        "ratio": ratio,
        "low": screen.low if screen else None,
        "high": screen.high if screen else None,
        **changed,
    }
    whole = Comparison(
        name=name,
        benchmark=Benchmark(name=name, kind=BenchmarkKind.SCRIPT, command="python bench.py"),
        metric=Metric("", unit, 0.001),
        base_commit=given["base_commit"],
        head_commit=given["head_commit"],
        same_code=given["same_code"],
        machine_key=given["machine_key"],
        outcome=Outcome(verdict, reason, screen, confirm, 0.02 if verdict is Verdict.NO_CHANGE else None),
        taken=tuple(taken),
        why=why,
    )
    return added(db, ComparisonRow(body=TypeAdapter(Comparison).dump_python(whole, mode="json"), **given))


def make_step_found(db: Session, repo: Repo, point: ChangePoint, **changed: Any) -> ChangePointRow:
    """A step that a review confirmed, and bisected if a `culprit` is given."""
    given: dict[str, Any] = {
        "repo_id": repo.id,
        "name": point.name,
        "machine_key": point.machine_key,
        "from_commit": point.from_commit,
        "to_commit": point.to_commit,
        "found_at": point.to_at,
        "ratio": point.ratio,
        "body": TypeAdapter(ChangePoint).dump_python(point, mode="json"),
    }
    return added(db, ChangePointRow(**{**given, **changed}))


def make_schedule(db: Session, repo: Repo | None = None, **changed: Any) -> Schedule:
    """Every night at 02:00 in Berlin, next in the night after NOON."""
    repo = repo or make_repo(db)
    given: dict[str, Any] = {
        "repo_id": repo.id,
        "ref": "main",
        "kind": ScheduleKind.NIGHTLY,
        "at": "02:00",
        "zone": "Europe/Berlin",
        "next_at": datetime(2026, 12, 1, 1, tzinfo=UTC),
        "created_at": NOON,
    }
    return added(db, Schedule(**{**given, **changed}))


Row = TypeVar("Row")


def added(db: Session, row: Row) -> Row:
    db.add(row)
    db.flush()
    return row


# A workshop --------------------------------------------------------------------------------


@dataclass
class KnownRemotes:
    """The Git port over a dict: URL -> ref -> commit. The first ref is the default one."""

    heads: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    problem: RepoProblem | None = None  # what every look ends with
    everywhere: bool = True  # URLs that are not listed have one branch, main
    asked: list[tuple[str, str]] = field(default_factory=list)

    def sweep(self) -> tuple[str, ...]:
        return ()

    def probe(self, url: str, ref: str = "") -> RemoteHead:
        self.asked.append((url, ref))
        if self.problem is not None:
            raise self.problem
        refs = self.heads.get(url) or ({"main": COMMIT} if self.everywhere else {})
        default = next(iter(refs), "")
        if (ref or default) not in refs:
            raise UnknownRef(f"{url} has no branch, tag or commit “{ref}”.")
        return RemoteHead(commit=refs[ref or default], ref=ref or default, default_ref=default)


class Clock:
    """Stands at NOON until it is moved."""

    def __init__(self, now: datetime = NOON):
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def forward(self, **of: float) -> None:
        self.now += timedelta(**of)


def make_shop(sessions: Sessions, data: Path, **changed: Any) -> Workshop:
    """A workshop without a sandbox whose nudges are only counted (`shop.nudge.woken`)."""
    alone = {"data": data, "host_lock": data / "host.lock", "compare_with": "none", "measure_patience_s": 0}
    settings: dict[str, Any] = {**alone, **changed.pop("settings", {})}
    clock = changed.setdefault("clock", Clock())
    given: dict[str, Any] = {
        "sessions": sessions,
        "settings": Settings(**settings),
        "machine": "machine",
        "git": KnownRemotes(),
        "nudge": Nudges(),
        "resolve": lambda host: (),
        "witness": Witness(lambda: clock().timestamp()),
    }
    return Workshop(**{**given, **changed})


class Nudges:
    def __init__(self) -> None:
        self.woken: list[UUID] = []

    def __call__(self, review_id: UUID) -> None:
        self.woken.append(review_id)


# Many --------------------------------------------------------------------------------------


def fill(
    sessions: Sessions, *, repos: int = 20, reviews: int = 10_000, findings_each: int = 0, measurements_each: int = 0
) -> list[UUID]:
    """Ended reviews over some repos, oldest first, fast. Returns their ids.

    Only the last ten reviews have findings; all have their measurements.
    """
    with sessions.begin() as db:
        made = [make_repo(db) for _ in range(repos)]
        ids = [uuid4() for _ in range(reviews)]
        db.execute(insert(Review), [many_review(made[at % repos], ids[at], at) for at in range(reviews)])
        for at in range(max(0, reviews - 10), reviews) if findings_each else ():
            fill_findings(db, made[at % repos].id, ids[at], findings_each)
        measured = [
            many_measured(made[at % repos].id, ids[at], at, name)
            for at in range(reviews)
            for name in range(measurements_each)
        ]
        if measured:
            db.execute(insert(MeasurementRow), measured)
    return ids


def many_review(repo: Repo, review_id: UUID, at: int) -> dict[str, Any]:
    created_at = NOON - timedelta(minutes=100_000 - at)
    return {
        "id": review_id,
        "repo_id": repo.id,
        "ref": "main",
        "commit": f"{at:040x}",
        "commit_date": "",
        "state": ReviewState.DONE if at % 10 else ReviewState.FAILED,
        "focuses": [],
        "budget_minutes": 60,
        "agents": True,
        "force": False,
        "requested_by": "schedule",
        "priority": 0,
        "created_at": created_at,
        "started_at": created_at,
        "finished_at": created_at + timedelta(minutes=3),
        "attempt": 1,
        "max_attempts": 3,
        "fence": 1,
        "cancel_requested": False,
        "machine": "machine",
        "model": "",
        "node": "",
        "error": "",
        "outcome_note": "",
    }


def fill_findings(db: Session, repo_id: UUID, review_id: UUID, number: int) -> None:
    """Confirmed new findings with bodies of ordinary size and long outputs."""
    verification = make_verification(runs=(Ran(exit=1, head="x" * 4000, tail="y" * 4000),) * 2)
    rows, sightings = [], []
    for at in range(number):
        severity = list(Severity)[at % len(Severity)]
        candidate = make_candidate(
            title=f"Finding {at} of many: the example prints something else than README shows",
            description="What a user sees, and why it is wrong. " * 10,
            severity=severity,
            places=(Place(file=f"docs/page{at % 50}.md", line=at + 1, symbol=f"Section {at}", quote="a line " * 8),),
            reproduction=make_reproduction(command="set -e\n" + f"python -m tool --number {at}\n" * 5),
            shape=f"{review_id} {at}",
        )
        finding_id = uuid4()
        place = candidate.places[0]
        rows.append(
            {
                "id": finding_id,
                "repo_id": repo_id,
                "fingerprint": fingerprint_of(candidate),
                "kind": candidate.kind,
                "rule": candidate.rule,
                "path": place.file,
                "symbol": place.symbol,
                "shape": candidate.shape,
                "first_review_id": review_id,
                "last_review_id": review_id,
                "state": FindingState.OPEN,
                "title": candidate.title,
                "severity": severity,
                "step": "probe:readme",
                "repo_ignores": "",
                "ignored_reason": "",
            }
        )
        sightings.append(
            {
                "id": uuid4(),
                "review_id": review_id,
                "finding_id": finding_id,
                "lifecycle": Lifecycle.NEW,
                "seen_late": False,
                "severity": severity,
                "source": Source.PROBE,
                "focus": "",
                "ignored_by": "",
                "verification_state": verification.state,
                "verification_reason": "",
                "body": candidate.model_dump(mode="json"),
                "verification": verification.model_dump(mode="json"),
            }
        )
    db.execute(insert(FindingRow), rows)
    db.execute(insert(Sighting), sightings)
    result = make_probe_result(log="a line of a log\n" * 1000).model_dump(mode="json")
    result["candidates"] = [sighting["body"] for sighting in sightings]
    make_step(db, db.get_one(Review, review_id), "probe:readme", result=result)


def many_measured(repo_id: UUID, review_id: UUID, at: int, name: int) -> dict[str, Any]:
    """Night `at` of a series: a scatter of about one per cent, now and then a void session."""
    one = make_measurement()
    wobble = (at * 7919 + name * 104_729) % 1009 / 1009 - 0.5
    return {
        "id": uuid4(),
        "review_id": review_id,
        "repo_id": repo_id,
        "name": f"series {name}",
        "command": one.command,
        "unit": one.unit,
        "machine_key": "machine/fake/image/3.11.2",
        "commit": f"{at:040x}",
        "at": NOON - timedelta(minutes=100_000 - at),
        "sessions": [session.model_dump(mode="json") for session in one.sessions],
        "median": (one.median or 0.0) * (1 + 0.04 * wobble),
        "spread": one.spread,
        "contaminated": int((at + name) % 29 == 0),
        "note": "",
    }
