"""Reviews: the row is the job. Reading and queueing here; claims and fenced writes in claims.py."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, Index, UniqueConstraint, Update, and_, case, func, or_, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, Session, aliased, mapped_column

from orchestrator.store.base import AnyJson, Base, Key, Name, choice
from orchestrator.store.repos import Repo


class ReviewState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    WAITING_FOR_NODE = "waiting_for_node"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    DONE = "done"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in (ReviewState.CANCELLED, ReviewState.DONE, ReviewState.FAILED)


UNFINISHED = tuple(state for state in ReviewState if not state.ended)

# Somebody who waits for a review goes before the night's round.
PRIORITY_ASKED = 10
PRIORITY_SCHEDULED = 0


class Review(Base):
    __tablename__ = "reviews"
    __table_args__ = (
        UniqueConstraint("schedule_id", "slot"),
        # Two people may press the button together: one review waits per repo and ref. A review that
        # was started before and went back to the queue is not one of them (started_at stays set).
        Index(
            "uq_reviews_waiting",
            "repo_id",
            "ref",
            unique=True,
            sqlite_where=text("state = 'queued' AND started_at IS NULL"),
            postgresql_where=text("state = 'queued' AND started_at IS NULL"),
        ),
        # Two reviews never overlap on a machine. One being cancelled still has it.
        Index(
            "uq_reviews_running_on_machine",
            "machine",
            unique=True,
            sqlite_where=text("state IN ('running', 'cancelling')"),
            postgresql_where=text("state IN ('running', 'cancelling')"),
        ),
        Index("ix_reviews_created", "created_at", "id"),
        Index("ix_reviews_repo_created", "repo_id", "created_at", "id"),
        Index("ix_reviews_state_created", "state", "created_at"),
        Index("ix_reviews_slot", "slot"),
    )

    id: Mapped[Key]
    repo_id: Mapped[UUID] = mapped_column(ForeignKey("repos.id"))
    # Branch, tag or commit as asked for; the default branch's name when none was.
    ref: Mapped[str] = mapped_column(Name)
    commit: Mapped[str] = mapped_column(default="")  # full object id; what the ref named when it was last looked up
    commit_date: Mapped[str] = mapped_column(default="")  # ISO 8601 with offset
    state: Mapped[ReviewState] = mapped_column(choice(ReviewState), default=ReviewState.QUEUED)

    focuses: Mapped[Any] = mapped_column(AnyJson, nullable=False, default=list)
    # For whom agents judge, and what they take the repo for. Empty: as the repo is; later, what they were told.
    profile: Mapped[str] = mapped_column(default="", server_default="")
    flavour: Mapped[str] = mapped_column(default="", server_default="")
    budget_minutes: Mapped[int]
    budget_tokens: Mapped[int | None]
    agents: Mapped[bool] = mapped_column(default=True)
    force: Mapped[bool] = mapped_column(default=False)  # also when the commit was reviewed before
    requested_by: Mapped[str]  # web, api, cli or schedule
    priority: Mapped[int] = mapped_column(default=PRIORITY_ASKED)  # higher goes first
    schedule_id: Mapped[UUID | None] = mapped_column(ForeignKey("schedules.id", ondelete="SET NULL"))
    slot: Mapped[datetime | None]  # the planned time of a scheduled review

    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]  # first claim; never cleared
    finished_at: Mapped[datetime | None]

    not_before: Mapped[datetime | None]
    attempt: Mapped[int] = mapped_column(default=0)  # counted at the claim, so that a job that kills its worker ends
    max_attempts: Mapped[int] = mapped_column(default=3)
    lease_owner: Mapped[str | None]
    lease_until: Mapped[datetime | None]
    fence: Mapped[int] = mapped_column(default=0)  # rises with each claim; every write of the runner carries it
    heartbeat: Mapped[datetime | None]
    cancel_requested: Mapped[bool] = mapped_column(default=False)

    machine: Mapped[str | None] = mapped_column(Name)
    sandbox: Mapped[Any | None] = mapped_column(AnyJson)  # sandbox.contract.Description
    model: Mapped[str] = mapped_column(default="")
    node: Mapped[str] = mapped_column(default="")
    tokens: Mapped[Any | None] = mapped_column(AnyJson)  # prompt, cached, completion, by_focus
    error: Mapped[str] = mapped_column(default="")  # why it failed
    outcome_note: Mapped[str] = mapped_column(default="")  # what a reader must know, for example "evidence only"


def get(db: Session, review_id: UUID) -> Review | None:
    return db.get(Review, review_id)


def waiting_for(db: Session, repo_id: UUID, ref: str) -> Review | None:
    """The review of that repo and ref that waits and was never started, locked so that no worker claims it now."""
    return db.scalar(
        select(Review)
        .where(
            Review.repo_id == repo_id,
            Review.ref == ref,
            Review.state == ReviewState.QUEUED,
            Review.started_at.is_(None),
        )
        .with_for_update()
    )


DONE_LOOKED_AT = 20  # of the reviews of one commit
MOST_WAITING = 1000  # a machine that does thirty a day would take a month for them


def queue_is_full(db: Session) -> bool:
    """Whether so many reviews wait that another one would only make all of them later."""
    waiting = (ReviewState.QUEUED, ReviewState.WAITING_FOR_NODE)
    number = db.scalar(select(func.count()).select_from(Review).where(Review.state.in_(waiting))) or 0
    return number >= MOST_WAITING


def add_or_find_waiting(db: Session, review: Review) -> Review:
    """Add the review, or return the one of its repo and ref that waits already."""
    waiting = waiting_for(db, review.repo_id, review.ref)
    if waiting is not None:
        return waiting
    try:
        with db.begin_nested():
            db.add(review)
        return review
    except IntegrityError:  # somebody else was faster by an instant
        waiting = waiting_for(db, review.repo_id, review.ref)
        if waiting is None:
            raise
        return waiting


def page(
    db: Session, *, repo_id: UUID | None, states: Sequence[ReviewState], offset: int, limit: int
) -> tuple[Sequence[Review], int]:
    """Reviews, newest first, and how many there are in all."""
    conditions = []
    if repo_id is not None:
        conditions.append(Review.repo_id == repo_id)
    if states:
        conditions.append(Review.state.in_(states))
    total = db.scalar(select(func.count()).select_from(Review).where(*conditions)) or 0
    rows = db.scalars(
        select(Review)
        .where(*conditions)
        .order_by(Review.created_at.desc(), Review.id.desc())
        .offset(offset)
        .limit(limit)
    ).all()
    return rows, total


def with_repo(db: Session, review_id: UUID) -> tuple[Review, Repo] | None:
    found = db.execute(
        select(Review, Repo).join(Repo, Repo.id == Review.repo_id).where(Review.id == review_id)
    ).one_or_none()
    return (found[0], found[1]) if found else None


def newest_by_repo(db: Session) -> Sequence[Review]:
    """The newest review of each repo."""
    other = aliased(Review)
    newest = (
        select(other.id)
        .where(other.repo_id == Repo.id)
        .order_by(other.created_at.desc(), other.id.desc())
        .limit(1)
        .correlate(Repo)
        .scalar_subquery()
    )  # one look into an index a repo; ranking all reviews reads them all
    return db.scalars(select(Review).select_from(Repo).join(Review, Review.id == newest)).all()


def counts_by_repo(db: Session) -> dict[UUID, int]:
    return {row[0]: row[1] for row in db.execute(select(Review.repo_id, func.count()).group_by(Review.repo_id))}


def unfinished(db: Session) -> Sequence[Review]:
    """What runs and what waits, in the order in which it goes."""
    under_way = case((Review.state.in_((ReviewState.RUNNING, ReviewState.CANCELLING)), 0), else_=1)
    return db.scalars(
        select(Review)
        .where(Review.state.in_(UNFINISHED))
        .order_by(under_way, Review.priority.desc(), Review.created_at, Review.id)
    ).all()


def ahead_of(db: Session, review: Review) -> int:
    """How many reviews go before a waiting one."""
    before = or_(
        Review.state.in_((ReviewState.RUNNING, ReviewState.CANCELLING)),
        Review.priority > review.priority,
        and_(Review.priority == review.priority, Review.created_at < review.created_at),
        and_(Review.priority == review.priority, Review.created_at == review.created_at, Review.id < review.id),
    )
    query = select(func.count()).select_from(Review)
    return db.scalar(query.where(Review.state.in_(UNFINISHED), before, Review.id != review.id)) or 0


def scheduled_since(db: Session, since: datetime, *, limit: int) -> Sequence[Review]:
    """Reviews whose planned time was since then, in the order of those times; the newest when there are too many."""
    newest = select(Review).where(Review.slot >= since).order_by(Review.slot.desc(), Review.id).limit(limit)
    return list(reversed(db.scalars(newest).all()))


def cancel_waiting(db: Session, review_id: UUID, now: datetime) -> bool:
    """Cancel a review that nobody works on. The raised fence stops whoever claims it in this instant."""
    return _changed(
        db,
        update(Review)
        .where(Review.id == review_id, Review.state.in_((ReviewState.QUEUED, ReviewState.WAITING_FOR_NODE)))
        .values(state=ReviewState.CANCELLED, cancel_requested=True, finished_at=now, fence=Review.fence + 1),
    )


def cancel_running(db: Session, review_id: UUID) -> bool:
    """Tell the worker of a running review to stop."""
    return _changed(
        db,
        update(Review)
        .where(Review.id == review_id, Review.state == ReviewState.RUNNING)
        .values(state=ReviewState.CANCELLING, cancel_requested=True),
    )


def done_at(db: Session, repo_id: UUID, commit: str) -> Sequence[UUID]:
    """Reviews of that commit that came to their end, the newest first; the last few of many."""
    same = (Review.repo_id == repo_id, Review.commit == commit, Review.state == ReviewState.DONE)
    return db.scalars(select(Review.id).where(*same).order_by(Review.created_at.desc()).limit(DONE_LOOKED_AT)).all()


def _changed(db: Session, statement: Update) -> bool:
    changed = db.execute(statement.returning(Review.id).execution_options(synchronize_session=False))
    return changed.first() is not None
