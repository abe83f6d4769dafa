"""The verdict page of a review, made from what is stored whenever it is asked for."""

from dataclasses import dataclass
from uuid import UUID

from orchestrator.services import reviews, transcripts
from orchestrator.services.exports import memo as writing
from orchestrator.services.views import FindingRow, ReviewPage
from orchestrator.services.workshop import Workshop
from orchestrator.store import findings
from review_agents.focus import Focus
from review_agents.memo import Memo, Seen, memo_of
from review_agents.records import Candidate, Effort


@dataclass(frozen=True, slots=True)
class MemoPage:
    review: ReviewPage
    memo: Memo


def get(shop: Workshop, review_id: UUID) -> MemoPage:
    page = reviews.get(shop, review_id)
    with shop.sessions.reading() as db:
        efforts = {
            seen.finding_id: Candidate.model_validate_json(seen.body).effort
            for seen in findings.of_review(db, review_id)
        }
    focused = transcripts.of_review(shop, review_id)
    memo = memo_of(
        [row.result for row in focused if row.result is not None],
        [seen_of(finding, efforts.get(finding.id)) for finding in page.findings],
        shop.focuses,
        [(one.probe, one.state, one.reason) for one in page.evidence],
    )
    return MemoPage(review=page, memo=memo)


def seen_of(finding: FindingRow, effort: Effort | None) -> Seen:
    place = finding.places[0]
    return Seen(
        title=finding.title,
        kind=str(finding.kind),
        severity=finding.severity,
        effort=effort,
        opinion=finding.opinion,
        verification=finding.verification_state,
        lifecycle=finding.lifecycle,
        fingerprint=finding.fingerprint,
        file=place.file,
        line=place.line,
    )


def markdown(shop: Workshop, review_id: UUID) -> str:
    page = get(shop, review_id)
    return writing.write(page.review, page.memo)


def focuses(shop: Workshop) -> tuple[Focus, ...]:
    """Those that a review can have, in the order in which they go."""
    return tuple(shop.focuses.values())
