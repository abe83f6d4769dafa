"""All tables in one import, for migrations and for making an empty database."""

from orchestrator.store import (
    accounts,
    comparisons,
    findings,
    logs,
    machines,
    measurements,
    outputs,
    repos,
    reviews,
    schedules,
    steps,
    transcripts,
)
from orchestrator.store.base import Base

ROOMS = (
    accounts,
    comparisons,
    findings,
    logs,
    machines,
    measurements,
    outputs,
    repos,
    reviews,
    schedules,
    steps,
    transcripts,
)
metadata = Base.metadata
