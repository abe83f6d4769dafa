"""Worker machines, as they last reported."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import inspect, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from orchestrator.store.base import AnyJson, Base, Name

# A worker reports every ten seconds (jobs/app.py). One that is silent for so long is dead, and does not only wait for a
# database that restarts or is busy.
SILENT_AFTER = timedelta(minutes=2)


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


def heard_of_since(db: Session, when: datetime) -> Sequence[str]:
    """Ids of machines with a worker that reported since then; of a database of any version, or of none yet."""
    if not inspect(db.connection()).has_table(Machine.__tablename__):
        return ()
    return db.scalars(select(Machine.id).where(Machine.heartbeat >= when, Machine.worker_pid.is_not(None))).all()


def silent_since(db: Session, when: datetime) -> Sequence[Machine]:
    """Machines that claim to have a worker and have not reported since then."""
    return db.scalars(select(Machine).where(Machine.heartbeat < when, Machine.worker_pid.is_not(None))).all()


def listed(db: Session) -> Sequence[Machine]:
    return db.scalars(select(Machine).order_by(Machine.id)).all()
