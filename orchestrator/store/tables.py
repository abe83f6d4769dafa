"""All tables in one import, for migrations and for making an empty database."""

from orchestrator.store import findings, logs, machines, measurements, repos, reviews, schedules, steps, transcripts
from orchestrator.store.base import Base

ROOMS = (findings, logs, machines, measurements, repos, reviews, schedules, steps, transcripts)
metadata = Base.metadata
