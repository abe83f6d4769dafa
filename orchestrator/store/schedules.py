"""When repos come round by themselves."""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, Index, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from orchestrator.store.base import AnyJson, Base, Key, Name, choice
from orchestrator.store.repos import Repo
from orchestrator.store.reviews import Review


class ScheduleKind(StrEnum):
    NIGHTLY = "nightly"  # every day at a local time
    LOOP = "loop"  # again after a pause


class Schedule(Base):
    __tablename__ = "schedules"
    __table_args__ = (Index("ix_schedules_due", "enabled", "next_at"), Index("ix_schedules_repo", "repo_id"))

    id: Mapped[Key]
    repo_id: Mapped[UUID] = mapped_column(ForeignKey("repos.id", ondelete="CASCADE"))
    ref: Mapped[str] = mapped_column(Name)
    kind: Mapped[ScheduleKind] = mapped_column(choice(ScheduleKind))
    at: Mapped[str] = mapped_column(default="")  # nightly: HH:MM in `zone`
    zone: Mapped[str] = mapped_column(default="UTC")  # IANA name
    pause_minutes: Mapped[int] = mapped_column(default=0)  # loop: between the end of one review and the next
    enabled: Mapped[bool] = mapped_column(default=True)
    skip_unchanged: Mapped[bool] = mapped_column(default=True)
    focuses: Mapped[Any] = mapped_column(AnyJson, nullable=False, default=list)
    profile: Mapped[str] = mapped_column(default="", server_default="")  # empty: as the repo is
    flavour: Mapped[str] = mapped_column(default="", server_default="")
    budget_minutes: Mapped[int | None]  # empty: the operator's default
    next_at: Mapped[datetime | None]  # next slot; empty while a loop's review is under way, or when disabled
    last_slot: Mapped[datetime | None]
    last_note: Mapped[str] = mapped_column(default="")  # why the last slot made no review of its own
    created_at: Mapped[datetime]


def get(db: Session, schedule_id: UUID) -> Schedule | None:
    return db.get(Schedule, schedule_id)


def due(db: Session, now: datetime) -> Sequence[Schedule]:
    """Enabled schedules whose slot has come, earliest first."""
    return db.scalars(
        select(Schedule).where(Schedule.enabled, Schedule.next_at <= now).order_by(Schedule.next_at, Schedule.id)
    ).all()


def listed(db: Session, repo_id: UUID | None = None) -> Sequence[tuple[Schedule, str]]:
    """Schedules with the names of their repos, the next one first and those without a next time last."""
    query = select(Schedule, Repo.name).join(Repo, Repo.id == Schedule.repo_id)
    if repo_id is not None:
        query = query.where(Schedule.repo_id == repo_id)
    found = [(row[0], row[1]) for row in db.execute(query)]
    never = datetime.max.replace(tzinfo=UTC)
    return sorted(found, key=lambda pair: (pair[0].next_at or never, pair[1], str(pair[0].id)))


def next_by_repo(db: Session) -> dict[UUID, datetime]:
    """The next slot of each repo that has one."""
    found = db.execute(
        select(Schedule.repo_id, func.min(Schedule.next_at))
        .where(Schedule.enabled, Schedule.next_at.is_not(None))
        .group_by(Schedule.repo_id)
    )
    return {row[0]: row[1] for row in found if row[1] is not None}


def has_review_under_way(db: Session, schedule_id: UUID) -> bool:
    under_way = select(Review.id).where(Review.schedule_id == schedule_id, Review.finished_at.is_(None)).limit(1)
    return db.scalar(under_way) is not None
