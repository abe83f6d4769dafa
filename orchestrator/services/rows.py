"""From rows of the store to the records of views.py; a fixed number of queries however many rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from orchestrator.services import checks
from orchestrator.services.slots import in_zone
from orchestrator.services.views import (
    Evidence,
    FindingCounts,
    FindingRow,
    MeasurementRow,
    OpenFinding,
    ReviewRow,
    ScheduleRow,
    StepRow,
    Unable,
)
from orchestrator.store import findings, repos, reviews, steps
from orchestrator.store.measurements import MeasurementRow as StoredMeasurement
from orchestrator.store.reviews import Review, ReviewState
from orchestrator.store.schedules import Schedule
from orchestrator.store.steps import Step, StepState
from review_agents.records import (
    Candidate,
    Change,
    FindingState,
    Lifecycle,
    ProbeState,
    Severity,
    VerificationState,
)

INTERRUPTED = "it was interrupted, and is done again from here"
THERE = (Lifecycle.NEW, Lifecycle.PERSISTING, Lifecycle.REGRESSED)


def review_rows(db: Session, found: Sequence[Review]) -> tuple[ReviewRow, ...]:
    names = repos.names(db, {review.repo_id for review in found})
    counts = review_counts(db, [review.id for review in found])
    lacking = unchecked(db, [review.id for review in found])
    return tuple(
        review_row(review, names[review.repo_id], counts[review.id], lacking.get(review.id, "")) for review in found
    )


def unchecked(db: Session, review_ids: Sequence[UUID]) -> dict[UUID, str]:
    """In a few words, of those reviews of which not every check could run."""
    return {review_id: checks.in_short(*those) for review_id, those in lacking_checks(db, review_ids).items()}


def lacking_checks(db: Session, review_ids: Sequence[UUID]) -> dict[UUID, tuple[tuple[Unable, ...], tuple[str, ...]]]:
    """Of those reviews of which not every check could run: which could not, and which came to an end."""
    unable: dict[UUID, list[tuple[str, str]]] = {}
    ended: dict[UUID, list[str]] = {}
    for one in steps.probes_of_reviews(db, review_ids) if review_ids else ():
        if one.state == ProbeState.COULD_NOT_RUN:
            unable.setdefault(one.review_id, []).append((one.probe, one.reason))
        else:
            ended.setdefault(one.review_id, []).append(one.probe)
    return {
        review_id: (checks.unable_of(those), tuple(ended.get(review_id, ()))) for review_id, those in unable.items()
    }


def looked_at(db: Session, repo_id: UUID, commit: str, *, besides: UUID | None = None) -> bool:
    """Whether a review of that commit came to its end and could check something."""
    done = [one for one in reviews.done_at(db, repo_id, commit) if one != besides]
    barred = {review_id for review_id, those in lacking_checks(db, done).items() if checks.barred_by(*those)}
    return bool(set(done) - barred)


def review_row(review: Review, repo_name: str, counts: FindingCounts, lacking: str) -> ReviewRow:
    return ReviewRow(
        id=review.id,
        repo_id=review.repo_id,
        repo_name=repo_name,
        ref=review.ref,
        commit=review.commit,
        state=review.state,
        requested_by=review.requested_by,
        agents=review.agents,
        created_at=review.created_at,
        started_at=review.started_at,
        finished_at=review.finished_at,
        counts=counts,
        error=review.error,
        outcome_note=review.outcome_note,
        slot=review.slot,
        unchecked=lacking,
    )


def review_counts(db: Session, review_ids: Sequence[UUID]) -> Mapping[UUID, FindingCounts]:
    by_review: dict[UUID, list[findings.Count]] = {review_id: [] for review_id in review_ids}
    for count in findings.counts_of_reviews(db, review_ids) if review_ids else ():
        by_review[count.review_id].append(count)
    return {review_id: counted(counts) for review_id, counts in by_review.items()}


def counted(counts: Iterable[findings.Count]) -> FindingCounts:
    by_severity: dict[Severity, int] = {}
    new = unproved = 0
    for count in counts:
        if count.lifecycle not in THERE:
            continue
        if count.verification is not VerificationState.CONFIRMED:
            unproved += count.number
            continue
        by_severity[count.severity] = by_severity.get(count.severity, 0) + count.number
        if count.lifecycle is Lifecycle.NEW and not count.seen_late:
            new += count.number
    return FindingCounts(by_severity=worst_first(by_severity), new=new, unproved=unproved)


def repo_counts(db: Session, now: datetime, repo_id: UUID | None = None) -> dict[UUID, FindingCounts]:
    """Of that repo or every one with open findings; `new` is the last review's business."""
    by_repo: dict[UUID, dict[Severity, int]] = {}
    claimed: dict[UUID, int] = {}
    for count in findings.counts_of_repos(db, now, repo_id):
        if count.state is FindingState.OPEN:
            by_repo.setdefault(count.repo_id, {})[count.severity] = count.number
        else:
            claimed[count.repo_id] = claimed.get(count.repo_id, 0) + count.number
    return {
        repo_id: FindingCounts(by_severity=worst_first(by_repo.get(repo_id, {})), unproved=claimed.get(repo_id, 0))
        for repo_id in by_repo.keys() | claimed.keys()
    }


def worst_first(by_severity: Mapping[Severity, int]) -> dict[Severity, int]:
    return {severity: by_severity[severity] for severity in Severity if severity in by_severity}


def step_row(step: Step) -> StepRow:
    return StepRow(
        id=step.id,
        name=step.name,
        state=step.state,
        attempt=step.attempt,
        started_at=step.started_at,
        ended_at=step.ended_at,
        summary=step.summary,
        reason=step.reason,
    )


def step_rows(review: Review, found: Iterable[Step]) -> tuple[StepRow, ...]:
    """Steps in order. What a lost worker left behind as running does not run while its review waits to be taken up."""
    shown = map(step_row, found)
    if review.state is not ReviewState.QUEUED:
        return tuple(shown)
    return tuple(
        replace(step, state=StepState.PENDING, reason=INTERRUPTED) if step.state is StepState.RUNNING else step
        for step in shown
    )


class ShownResult(BaseModel):
    """What is shown of a stored ProbeResult. Its candidates and log, which can be large, are not even made objects."""

    probe: str
    state: ProbeState
    reason: str = ""
    seconds: float = 0.0
    summary: str = ""
    facts: dict[str, Any] = Field(default_factory=dict)


def evidence(step_id: UUID, body: str) -> Evidence:
    result = ShownResult.model_validate_json(body)
    return Evidence(
        probe=result.probe,
        state=result.state,
        reason=result.reason,
        seconds=result.seconds,
        summary=result.summary,
        facts=result.facts,
        step_id=step_id,
    )


def finding_row(seen: findings.Seen) -> FindingRow:
    candidate = Candidate.model_validate_json(seen.body)
    return FindingRow(
        id=seen.finding_id,
        fingerprint=seen.fingerprint,
        kind=candidate.kind,
        rule=candidate.rule,
        title=candidate.title,
        description=candidate.description,
        severity=seen.severity,
        places=candidate.places,
        opinion=candidate.opinion,
        reproduction=candidate.reproduction,
        also=candidate.also,
        verification_state=seen.verification_state,
        verification_reason=seen.verification_reason,
        lifecycle=seen.lifecycle,
        seen_late=seen.seen_late,
        source=seen.source,
        focus=seen.focus,
        ignored_by=seen.ignored_by,
    )


def importance(finding: FindingRow) -> tuple[Any, ...]:
    """For sorting: what is there and proved before what is only claimed, fixed and ignored ones last."""
    return (
        finding.lifecycle not in THERE,
        finding.lifecycle is Lifecycle.IGNORED,
        finding.verification_state is not VerificationState.CONFIRMED,
        finding.severity.rank,
        finding.places[0].file,
        finding.places[0].line or 0,
        finding.title,
        finding.fingerprint,
    )


def open_finding(one: findings.Open, now: datetime) -> OpenFinding:
    return OpenFinding(
        id=one.id,
        kind=one.kind,
        rule=one.rule,
        title=one.title,
        path=one.path,
        symbol=one.symbol,
        severity=one.severity,
        state=one.state,
        first_review_id=one.first_review_id,
        first_seen=one.first_seen,
        last_review_id=one.last_review_id,
        ignored_reason=one.ignored_reason,
        ignored_until=one.ignored_until,
        ignored_by=ignored_by(one, now),
    )


def ignored_by(one: findings.Open, now: datetime) -> str:
    if findings.in_force(one.ignored_reason, one.ignored_until, now):
        return f"operator: {one.ignored_reason}"
    return f"repo: {one.repo_ignores}" if one.repo_ignores else ""


def measurement_row(row: StoredMeasurement) -> MeasurementRow:
    return MeasurementRow(
        name=row.name,
        command=row.command,
        unit=row.unit,
        samples=tuple(session["value"] for session in row.sessions if not session["void"]),
        median=row.median,
        spread=row.spread,
        contaminated=row.contaminated,
        note=row.note,
        change=change_of(row.verdict),
    )


def change_of(verdict: Any) -> Change | None:
    return None if verdict is None else Change.model_validate(verdict)


def schedule_row(schedule: Schedule, repo_name: str) -> ScheduleRow:
    return ScheduleRow(
        id=schedule.id,
        repo_id=schedule.repo_id,
        repo_name=repo_name,
        ref=schedule.ref,
        kind=schedule.kind,
        at=schedule.at,
        zone=schedule.zone,
        pause_minutes=schedule.pause_minutes,
        enabled=schedule.enabled,
        skip_unchanged=schedule.skip_unchanged,
        focuses=tuple(schedule.focuses),
        profile=schedule.profile,
        flavour=schedule.flavour,
        budget_minutes=schedule.budget_minutes,
        next_at=schedule.next_at,
        last_slot=schedule.last_slot,
        last_note=schedule.last_note,
        next_local=in_zone(schedule.next_at, schedule.zone) if schedule.next_at else "",
    )
