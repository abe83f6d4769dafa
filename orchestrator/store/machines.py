"""Worker machines, as they last reported."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Mapped, Session, mapped_column

from orchestrator.store.base import AnyJson, Base, Name


class Machine(Base):
    __tablename__ = "machines"

    id: Mapped[str] = mapped_column(Name, primary_key=True)
    worker_pid: Mapped[int | None]
    started_at: Mapped[datetime | None]
    heartbeat: Mapped[datetime | None]
    sandbox: Mapped[Any | None] = mapped_column(AnyJson)  # sandbox.contract.Description
    version: Mapped[str] = mapped_column(default="")
    current_review: Mapped[UUID | None]  # no foreign key: it is a report, and may be stale


def report(db: Session, machine: str, now: datetime, **what: Any) -> None:
    """This machine lives, and `what` (columns) is new about it."""
    row = db.get(Machine, machine) or Machine(id=machine)
    row.heartbeat = now
    for name, value in what.items():
        setattr(row, name, value)
    db.add(row)


def heard_of_since(db: Session, when: datetime) -> Sequence[Machine]:
    """Machines with a worker that reported since then."""
    return db.scalars(select(Machine).where(Machine.heartbeat >= when, Machine.worker_pid.is_not(None))).all()


def silent_since(db: Session, when: datetime) -> Sequence[Machine]:
    """Machines that claim to have a worker and have not reported since then."""
    return db.scalars(select(Machine).where(Machine.heartbeat < when, Machine.worker_pid.is_not(None))).all()


def listed(db: Session) -> Sequence[Machine]:
    return db.scalars(select(Machine).order_by(Machine.id)).all()
