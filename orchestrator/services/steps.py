"""One step of a review, and what it printed."""

from uuid import UUID

from sqlalchemy.orm import Session

from orchestrator.services import rows
from orchestrator.services.errors import UnknownStep
from orchestrator.services.views import StepPage
from orchestrator.services.workshop import Workshop
from orchestrator.store import logs
from orchestrator.store import steps as table
from orchestrator.store.steps import Step


def get(shop: Workshop, step_id: UUID) -> StepPage:
    with shop.sessions.reading() as db:
        step = known(db, step_id)
    row = rows.step_row(step)
    return StepPage(
        step_id=row.id,
        review_id=step.review_id,
        name=row.name,
        state=row.state,
        attempt=row.attempt,
        seconds=row.seconds,
        summary=row.summary,
        reason=row.reason,
    )


def log(shop: Workshop, step_id: UUID) -> str:
    """What the step printed: of very long logs both ends, the gap in words."""
    with shop.sessions.reading() as db:
        known(db, step_id)
        return logs.text_of(db, step_id)


def known(db: Session, step_id: UUID) -> Step:
    step = table.get(db, step_id)
    if step is None:
        raise UnknownStep(step_id)
    return step
