"""A review as a file: JSON (our contract, version 1), Markdown for people, SARIF 2.1.0 for code scanners."""

from collections.abc import Callable, Mapping
from uuid import UUID

from orchestrator.services import reviews, rows
from orchestrator.services.errors import BadInput
from orchestrator.services.exports import contract, markdown, sarif
from orchestrator.services.exports.whole import WholeReview
from orchestrator.services.workshop import Workshop
from orchestrator.store import findings
from review_agents.records import Verification

WRITERS: Mapping[str, Callable[[WholeReview], str]] = {
    "json": contract.write,
    "markdown": markdown.write,
    "sarif": sarif.write,
}


def export(shop: Workshop, review_id: UUID, format: str) -> str:
    """The text of the file. A review that has not ended is exported as far as it has come, and says so."""
    writer = WRITERS.get(format)
    if writer is None:
        raise BadInput("format", f"{format[:40]!a} is no export format; there are {', '.join(WRITERS)}.")
    return writer(whole(shop, review_id))


def whole(shop: Workshop, review_id: UUID) -> WholeReview:
    page = reviews.get(shop, review_id)
    with shop.sessions.reading() as db:
        seen = findings.of_review(db, review_id, runs=True)
    return WholeReview(
        page=page,
        findings=tuple(sorted(map(rows.finding_row, seen), key=rows.importance)),
        verifications={one.finding_id: Verification.model_validate_json(one.verification) for one in seen},
    )
