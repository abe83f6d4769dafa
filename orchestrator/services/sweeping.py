"""Putting right what a killed worker, a lost message or a restarted broker left behind. Looks at the table only."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog
from sqlalchemy import ColumnElement, and_, or_, select
from sqlalchemy.orm import Session

from orchestrator.sandbox.contract import SandboxError
from orchestrator.services import scheduling
from orchestrator.services.workshop import Workshop
from orchestrator.store import claims, logs, machines, outputs, steps
from orchestrator.store.reviews import Review, ReviewState

log = structlog.get_logger(__name__)

CHUNKS_STAY = timedelta(hours=1)  # after the review's end, for readers who lag
MACHINE_GONE = timedelta(minutes=5)  # without a report


def sweep(shop: Workshop) -> None:
    """For any process, each minute: reviews of lost workers go on, and waiting ones are announced again."""
    now = shop.clock()
    with shop.sessions.begin() as db:
        give_up(db, shop.witness.lost(db, now), now)
        claims.shorten_waits(db, now)
        logs.forget_chunks(db, now - CHUNKS_STAY)
        for machine in machines.silent_since(db, now - MACHINE_GONE):
            machine.worker_pid = None
            machine.current_review = None
    with shop.sessions.reading() as db:
        waiting = claims.next_due(db, now)
    if waiting is not None:
        shop.nudge(waiting)  # one message is enough: a worker goes on until nothing is due


def sweep_machine(shop: Workshop) -> None:
    """For this machine's worker, at its start and before each review, while it holds the host lock.

    As nobody else can be working here, whatever the table says runs on this machine is dead, lease or not.
    """
    with shop.sessions.begin() as db:
        give_up(db, claims.held_on(db, shop.machine), shop.clock())
    for name in shop.git.sweep():
        log.info("swept", what=name)
    if shop.sandbox is None:
        return
    with shop.sessions.reading() as db:
        living = [str(review_id) for review_id in db.scalars(select(Review.id).where(may_go_on()))]
    try:
        for name in shop.sandbox.sweep(living):
            log.info("swept", what=name)
    except SandboxError as error:
        log.warning("the sandbox could not be swept", error=str(error))


def give_up(db: Session, lost: Sequence[Review], now: datetime) -> None:
    """Take reviews from runners that are dead."""
    for review in lost:
        state = claims.give_up(db, review, now, where=step_at_work(db, review))
        log.warning("a review lost its worker", review=str(review.id), machine=review.machine, becomes=str(state))
        if state.ended:
            steps.skip_unfinished(db, review.id, now, reason="the worker was lost")
            outputs.forget(db, review.id)
            scheduling.after(db, review, now, state=state)


def step_at_work(db: Session, review: Review) -> str:
    """Its name; empty between two steps."""
    running = (step.name for step in steps.of_review(db, review.id) if step.state is steps.StepState.RUNNING)
    return next(running, "")


def may_go_on() -> ColumnElement[bool]:
    """Reviews that were begun and are not over: their volumes are worth keeping."""
    begun = Review.started_at.is_not(None)
    waiting = Review.state.in_((ReviewState.QUEUED, ReviewState.WAITING_FOR_NODE))
    return or_(Review.state.in_(claims.ON_A_MACHINE), and_(begun, waiting))
