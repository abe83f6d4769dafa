"""Findings on their way between the tables and the rules of `review_agents.lifecycle`."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session, undefer

from orchestrator.services import rows
from orchestrator.store.findings import FindingRow, Sighting, add_or_find
from orchestrator.store.findings import get as get_finding
from orchestrator.store.reviews import Review
from review_agents.identity import clean_path
from review_agents.lifecycle import Filed
from review_agents.records import Candidate, FindingState, VerificationState
from review_agents.sameness import Known

IGNORED_BY_REPO = "repo: "


def known(db: Session, repo_id: UUID, now: datetime) -> tuple[Known, ...]:
    """All findings of the repo, each as it was last seen."""
    seen = db.execute(
        select(FindingRow, Sighting, Review.commit)
        .join(Sighting, (Sighting.finding_id == FindingRow.id) & (Sighting.review_id == FindingRow.last_review_id))
        .join(Review, Review.id == FindingRow.last_review_id)
        .where(FindingRow.repo_id == repo_id)
        .options(undefer(Sighting.body))
    )
    return tuple(
        Known(
            id=str(row.id),
            fingerprint=row.fingerprint,
            state=row.state,
            candidate=Candidate.model_validate(sighting.body),
            step=row.step,
            commit=commit,
            ignored=row.ignored_reason if row.ignored(now) else "",
            flaky=sighting.verification_state is VerificationState.FLAKY,
        )
        for row, sighting, commit in seen
    )


def reviewed_before(db: Session, review: Review) -> bool:
    """Whether an earlier review of this very commit came to its end, and could look at something."""
    return rows.looked_at(db, review.repo_id, review.commit, besides=review.id)


def file(db: Session, review: Review, filed: Sequence[Filed]) -> None:
    """Write what the review says about each finding."""
    for one in filed:
        row = get_finding(db, UUID(one.finding_id)) if one.finding_id else None
        if row is None:
            row = add_or_find(db, new_row(review, one))
        row.state = one.state
        row.last_review_id = review.id
        row.title = one.candidate.title
        row.severity = one.candidate.severity
        row.step = one.step
        row.repo_ignores = one.ignored_by.removeprefix(IGNORED_BY_REPO) if is_ignored_by_repo(one) else ""
        db.flush()
        db.add(sighting(review, row, one))
    db.flush()


def new_row(review: Review, one: Filed) -> FindingRow:
    place = one.candidate.places[0]
    return FindingRow(
        repo_id=review.repo_id,
        fingerprint=one.fingerprint,
        kind=one.candidate.kind,
        rule=one.candidate.rule,
        path=clean_path(place.file),
        symbol=" ".join(place.symbol.split()),
        shape=one.candidate.shape,
        first_review_id=review.id,
        last_review_id=review.id,
        state=one.state,
        title=one.candidate.title,
        severity=one.candidate.severity,
        step=one.step,
    )


def sighting(review: Review, row: FindingRow, one: Filed) -> Sighting:
    return Sighting(
        review_id=review.id,
        finding_id=row.id,
        lifecycle=one.lifecycle,
        seen_late=one.seen_late,
        severity=one.candidate.severity,
        source=one.candidate.source,
        focus=one.candidate.focus,
        ignored_by=one.ignored_by,
        verification_state=one.verification.state,
        verification_reason=one.verification.reason,
        body=one.candidate.model_dump(mode="json"),
        verification=one.verification.model_dump(mode="json"),
    )


def is_ignored_by_repo(one: Filed) -> bool:
    return one.ignored_by.startswith(IGNORED_BY_REPO)


def in_words(filed: Sequence[Filed]) -> str:
    """One line for the step."""
    states = [str(one.lifecycle) for one in filed]
    counted = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    still_open = sum(one.state is FindingState.OPEN for one in filed)
    return f"{', '.join(counted)}; {still_open} open" if counted else "nothing found"
