"""Worker machines, as they last reported."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Mapped, mapped_column

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
