"""Reading and cancelling reviews."""

from uuid import UUID

from sqlalchemy.orm import Session

from orchestrator.services import rows, scheduling
from orchestrator.services.checks import checks_of, in_short
from orchestrator.services.errors import BadInput, NotNow, UnknownReview
from orchestrator.services.views import Listed, LogLine, Progress, ReviewPage, ReviewRow
from orchestrator.services.workshop import Workshop
from orchestrator.store import findings, logs, measurements, outputs, steps
from orchestrator.store import reviews as table
from orchestrator.store.repos import Repo
from orchestrator.store.reviews import Review, ReviewState
from orchestrator.store.steps import StepState

WAITING = (ReviewState.QUEUED, ReviewState.WAITING_FOR_NODE)
MOST_PER_PAGE = 500
MOST_PAGES = 1_000_000
TAIL_CHUNKS = 200  # of a log, for whoever begins to follow
NEXT_CHUNKS = 500  # at most, for whoever follows


def listed(
    shop: Workshop,
    *,
    repo: UUID | None = None,
    state: ReviewState | None = None,
    page: int = 1,
    per_page: int = 50,
) -> Listed[ReviewRow]:
    """Reviews, newest first."""
    if not 1 <= page <= MOST_PAGES or not 1 <= per_page <= MOST_PER_PAGE:
        raise BadInput("page", f"Pages count from 1 and hold 1 to {MOST_PER_PAGE} (found {page} and {per_page}).")
    with shop.sessions.reading() as db:
        found, total = table.page(
            db, repo_id=repo, states=(state,) if state else (), offset=(page - 1) * per_page, limit=per_page
        )
        return Listed(items=rows.review_rows(db, found), page=page, per_page=per_page, total=total)


def get(shop: Workshop, review_id: UUID) -> ReviewPage:
    """All that the review's page shows; logs and outputs of verification runs apart."""
    with shop.sessions.reading() as db:
        review, repo = known(db, review_id)
        found = map(rows.finding_row, findings.of_review(db, review_id))
        evidence = tuple(rows.evidence(*one) for one in steps.results(db, review_id, steps.PROBE))
        checks = checks_of(evidence)
        counts = rows.review_counts(db, [review_id])[review_id]
        return ReviewPage(
            row=rows.review_row(review, repo.name, counts, in_short(checks.unable, (*checks.ran, *checks.idle))),
            repo_url=repo.url,
            commit_date=review.commit_date,
            focuses=tuple(review.focuses),
            profile=review.profile,
            flavour=review.flavour,
            budget_minutes=review.budget_minutes,
            budget_tokens=review.budget_tokens,
            force=review.force,
            attempt=review.attempt,
            cancel_requested=review.cancel_requested,
            machine=review.machine or "",
            sandbox=review.sandbox or {},
            model=review.model,
            node=review.node,
            tokens=review.tokens or {},
            schedule_id=review.schedule_id,
            steps=rows.step_rows(review, steps.of_review(db, review_id)),
            evidence=evidence,
            checks=checks,
            findings=tuple(sorted(found, key=rows.importance)),
            measurements=tuple(map(rows.measurement_row, measurements.of_review(db, review_id))),
        )


def progress(shop: Workshop, review_id: UUID, after_seq: int | None = None) -> Progress:
    """Where the review is, and what it said after that chunk; without one, its latest output.

    There may be more than fits: ask again with the new `last_seq` while lines come.
    """
    with shop.sessions.reading() as db:
        review, _ = known(db, review_id)
        found = steps.of_review(db, review_id)
        if after_seq is None:
            chunks = logs.last(db, review_id, limit=TAIL_CHUNKS)
        else:
            chunks = logs.after(db, review_id, after_seq, limit=NEXT_CHUNKS)
        ahead = table.ahead_of(db, review) if review.state is ReviewState.QUEUED else 0
    names = {step.id: step.name for step in found}
    until = review.finished_at or shop.clock()
    step_rows = rows.step_rows(review, found)
    return Progress(
        review_id=review_id,
        state=review.state,
        steps=step_rows,
        current=next((step for step in step_rows if step.state is StepState.RUNNING), None),
        elapsed_s=max(0.0, (until - review.started_at).total_seconds()) if review.started_at else 0.0,
        ahead=ahead,
        lines=tuple(LogLine(chunk.id, names.get(chunk.step_id, ""), chunk.at, chunk.text) for chunk in chunks),
        last_seq=chunks[-1].id if chunks else after_seq or 0,
        error=review.error,
    )


def waits_s(shop: Workshop, review_id: UUID) -> tuple[float, str]:
    """How long a review that was put back still waits before anybody may go on with it, and why it does."""
    with shop.sessions.reading() as db:
        review, _ = known(db, review_id)
    if review.not_before is None or review.state not in WAITING:
        return 0.0, ""
    return max(0.0, (review.not_before - shop.clock()).total_seconds()), review.outcome_note


def cancel(shop: Workshop, review_id: UUID) -> None:
    """End a review: at once when it waits, within seconds when it runs. Twice is once; raises `NotNow` when it has
    ended already."""
    with shop.sessions.begin() as db:
        now = shop.clock()
        if table.cancel_waiting(db, review_id, now):
            review, _ = known(db, review_id)
            steps.skip_unfinished(db, review_id, now, reason="the review was cancelled")
            outputs.forget(db, review_id)
            scheduling.after(db, review, now, state=ReviewState.CANCELLED)
        elif not table.cancel_running(db, review_id):
            review, _ = known(db, review_id)
            if review.state.ended:
                raise NotNow(f"Review {review_id} has ended already ({review.state}), so it cannot be cancelled.")


def known(db: Session, review_id: UUID) -> tuple[Review, Repo]:
    found = table.with_repo(db, review_id)
    if found is None:
        raise UnknownReview(review_id)
    return found
