"""All tables in one import, for migrations and for making an empty database."""

from orchestrator.store import (
    comparisons,
    findings,
    logs,
    machines,
    measurements,
    repos,
    reviews,
    schedules,
    steps,
    transcripts,
)
from orchestrator.store.base import Base

ROOMS = (comparisons, findings, logs, machines, measurements, repos, reviews, schedules, steps, transcripts)
metadata = Base.metadata
