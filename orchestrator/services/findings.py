"""One finding over its reviews, and the operator's ignores."""

from datetime import datetime
from uuid import UUID

from sqlalchemy.orm import Session

from orchestrator.services import rows
from orchestrator.services.errors import BadInput, UnknownFinding
from orchestrator.services.views import FindingPage, FindingRuns, IgnoredRow, SightingRow
from orchestrator.services.workshop import Workshop
from orchestrator.store import findings as table
from orchestrator.store import repos
from orchestrator.store.findings import FindingRow, Sighting
from orchestrator.store.reviews import Review
from review_agents.records import Verification

LONGEST_REASON = 2000
LAST_YEAR = 9998  # so that any zone's time still has one in UTC


def get(shop: Workshop, finding_id: UUID) -> FindingPage:
    with shop.sessions.reading() as db:
        finding = known(db, finding_id)
        last = table.last_seen(db, finding)
        history = [sighting_row(sighting, review) for sighting, review in table.history(db, finding_id)]
        repo_name = repos.names(db, {finding.repo_id})[finding.repo_id]
    verification = Verification.model_validate_json(last.verification)
    return FindingPage(
        finding=rows.finding_row(last),
        repo_id=finding.repo_id,
        repo_name=repo_name,
        commit=next(row.commit for row in history if row.review_id == finding.last_review_id),
        state=finding.state,
        runs=verification.runs,
        controls=verification.controls,
        history=tuple(history),
        ignored=finding.ignored(shop.clock()),
        ignored_reason=finding.ignored_reason,
        ignored_until=finding.ignored_until,
    )


def ignored(shop: Workshop) -> tuple[IgnoredRow, ...]:
    """All that does not count now, what counts again first at the top."""
    now = shop.clock()
    with shop.sessions.reading() as db:
        found = table.ignored(db, now)
        names = repos.names(db, {repo_id for _, repo_id in found})
    shown = [IgnoredRow(rows.open_finding(one, now), repo_id, names[repo_id]) for one, repo_id in found]
    return tuple(sorted(shown, key=returning))


def returning(one: IgnoredRow) -> tuple[object, ...]:
    until = one.finding.ignored_until if one.by_operator else None
    return (until is None, until.timestamp() if until else 0.0, one.repo_name, one.finding.title, str(one.finding.id))


def runs(shop: Workshop, review_id: UUID, finding_id: UUID) -> FindingRuns:
    """The runs with which that review verified the finding."""
    with shop.sessions.reading() as db:
        finding = known(db, finding_id)
        seen = table.seen_by(db, finding_id, review_id)
        if seen is None:
            raise UnknownFinding(finding_id)
        repo_name = repos.names(db, {finding.repo_id})[finding.repo_id]
    verification = Verification.model_validate_json(seen.verification)
    return FindingRuns(
        finding=rows.finding_row(seen),
        repo_id=finding.repo_id,
        repo_name=repo_name,
        review_id=review_id,
        runs=verification.runs,
        controls=verification.controls,
    )


def ignore(shop: Workshop, finding_id: UUID, reason: str, until: datetime | None = None) -> None:
    """Count the finding no more, for good or until that time. Reviews go on looking at it."""
    reason = reason.strip()
    if not reason:
        raise BadInput("reason", "Say why it is ignored: whoever reads the list next year will ask.")
    if len(reason) > LONGEST_REASON:
        raise BadInput("reason", f"The reason has {len(reason)} characters; at most {LONGEST_REASON} are kept.")
    if until is not None and until.tzinfo is None:
        raise BadInput("until", "The time needs a time zone, for example 2027-01-31T00:00:00+01:00.")
    if until is not None and until.year > LAST_YEAR:
        raise BadInput("until", f"The year {until.year} is too far off; leave the time out to ignore it for good.")
    if until is not None and until <= shop.clock():
        raise BadInput("until", f"{until.isoformat()} is past; give a time to come, or none to ignore it for good.")
    with shop.sessions.begin() as db:
        finding = known(db, finding_id)
        finding.ignored_reason = reason
        finding.ignored_until = until


def unignore(shop: Workshop, finding_id: UUID) -> None:
    """Count it again. Quiet when it was not ignored."""
    with shop.sessions.begin() as db:
        finding = known(db, finding_id)
        finding.ignored_reason = ""
        finding.ignored_until = None


def known(db: Session, finding_id: UUID) -> FindingRow:
    finding = table.get(db, finding_id)
    if finding is None:
        raise UnknownFinding(finding_id)
    return finding


def sighting_row(sighting: Sighting, review: Review) -> SightingRow:
    return SightingRow(
        review_id=review.id,
        commit=review.commit,
        ref=review.ref,
        at=review.created_at,
        lifecycle=sighting.lifecycle,
        seen_late=sighting.seen_late,
        severity=sighting.severity,
        verification_state=sighting.verification_state,
        verification_reason=sighting.verification_reason,
    )
