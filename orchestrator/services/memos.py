"""The verdict page of a review, made from what is stored whenever it is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from orchestrator.services import reviews, transcripts
from orchestrator.services.exports import memo as writing
from orchestrator.services.views import Checks, FindingRow, ReviewPage
from orchestrator.services.workshop import Workshop
from orchestrator.store import findings
from review_agents.focus import Focus
from review_agents.memo import Memo, Seen, memo_of
from review_agents.records import Candidate, Effort, ProbeState

NAMED = 3  # checks that could not run for one reason


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
        [(names(one.probes), ProbeState.COULD_NOT_RUN, one.reason) for one in page.checks.unable],
        unproved=unproved(page.checks),
    )
    return MemoPage(review=page, memo=memo)


def unproved(checks: Checks) -> str:
    return checks.nothing_found if checks.barred else f"Nothing was proved wrong by {checks.extent}"


def names(probes: Sequence[str]) -> str:
    """Few enough that the reason still stands on their line."""
    more = len(probes) - NAMED
    return ", ".join(probes) if more <= 0 else f"{', '.join(probes[:NAMED])} and {more} more"


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
