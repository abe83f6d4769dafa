"""Logs and transcripts do not stay for ever: the oldest go, by age and by size. What was found stays, with its proofs.

Each repo's newest review keeps everything, whatever its age.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from uuid import UUID

import structlog
from sqlalchemy.orm import Session

from orchestrator.services.workshop import Workshop
from orchestrator.store import logs, transcripts

log = structlog.get_logger(__name__)

AT_ONCE = 50  # reviews in one transaction, so that nobody waits for it
GONE = "[This log is no longer kept: LAMPLIGHTER_KEEP_LOG_DAYS and LAMPLIGHTER_KEEP_LOG_BYTES.]\n"


def forget(shop: Workshop) -> int:
    """Returns how many reviews lost their logs."""
    settings, now = shop.settings, shop.clock()
    before = now - timedelta(days=settings.keep_log_days) if settings.keep_log_days else None
    with shop.sessions.reading() as db:
        doomed = list(to_forget(db, before, settings.keep_log_bytes))
    for at in range(0, len(doomed), AT_ONCE):
        with shop.sessions.begin() as db:
            for review_id in doomed[at : at + AT_ONCE]:
                logs.replace(db, review_id, GONE)
                transcripts.forget(db, review_id)
    if doomed:
        log.info("logs of old reviews are forgotten", reviews=len(doomed))
    return len(doomed)


def to_forget(db: Session, before: datetime | None, most_bytes: int) -> Iterator[UUID]:
    """Those that ended before that time, then the oldest ones beyond the bytes."""
    kept = logs.kept_bytes(db)
    for review_id, finished_at, size in logs.sizes(db, but=GONE):
        if (before is not None and finished_at < before) or (most_bytes and kept > most_bytes):
            kept -= size
            yield review_id
