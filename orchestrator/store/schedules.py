"""When repos come round by themselves."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, Index, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from orchestrator.store.base import AnyJson, Base, Key, Name, choice


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
