"""What the steps said: chunks while it runs, one compressed blob a step afterwards.

A reader follows by the chunk's id, which only rises within a review (one runner writes it).
Chunks stay for a while after they were packed, so that a reader who lags misses nothing;
the sweep calls `forget_chunks`.
"""

import zlib
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import ForeignKey, Index, LargeBinary, UniqueConstraint, delete, func, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from orchestrator.store.base import Base, Counter
from orchestrator.store.reviews import Review
from orchestrator.store.steps import Step

HALF_BYTES = 4 << 20  # kept of each end of a step's log


class LogChunk(Base):
    __tablename__ = "log_chunks"
    __table_args__ = (
        UniqueConstraint("step_id", "attempt", "seq"),
        Index("ix_log_chunks_review", "review_id", "id"),
    )

    id: Mapped[Counter]
    review_id: Mapped[UUID] = mapped_column(ForeignKey("reviews.id", ondelete="CASCADE"))
    step_id: Mapped[UUID] = mapped_column(ForeignKey("steps.id", ondelete="CASCADE"))
    attempt: Mapped[int]
    seq: Mapped[int]
    at: Mapped[datetime]
    text: Mapped[str]


class Log(Base):
    __tablename__ = "logs"

    step_id: Mapped[UUID] = mapped_column(ForeignKey("steps.id", ondelete="CASCADE"), primary_key=True)
    compressed: Mapped[bytes] = mapped_column(LargeBinary, deferred=True)  # zlib over UTF-8
    bytes: Mapped[int]  # of the text before it was cut and compressed


def after(db: Session, review_id: UUID, chunk_id: int, *, limit: int = 500) -> Sequence[LogChunk]:
    """The review's chunks that came after that one, oldest first."""
    return db.scalars(
        select(LogChunk)
        .where(LogChunk.review_id == review_id, LogChunk.id > chunk_id)
        .order_by(LogChunk.id)
        .limit(limit)
    ).all()


def last(db: Session, review_id: UUID, *, limit: int) -> Sequence[LogChunk]:
    """The review's newest chunks, oldest first."""
    newest = select(LogChunk).where(LogChunk.review_id == review_id).order_by(LogChunk.id.desc()).limit(limit)
    return list(reversed(db.scalars(newest).all()))


def text_of(db: Session, step_id: UUID) -> str:
    """The step's whole log: packed, or as far as it has come."""
    packed = db.get(Log, step_id)
    if packed is not None:
        return zlib.decompress(packed.compressed).decode("utf-8")
    return cut(joined(db, step_id))


def pack(db: Session, step_id: UUID) -> None:
    """Put the step's chunks into one blob. Calling it again replaces the blob."""
    whole = joined(db, step_id)
    kept = cut(whole).encode("utf-8", "replace")
    db.merge(Log(step_id=step_id, compressed=zlib.compress(kept), bytes=len(whole.encode("utf-8", "replace"))))


def forget_chunks(db: Session, finished_before: datetime) -> None:
    """Delete the chunks of packed steps whose review ended before that time."""
    old = select(Review.id).where(Review.finished_at < finished_before)
    db.execute(
        delete(LogChunk).where(LogChunk.review_id.in_(old), LogChunk.step_id.in_(select(Log.step_id))),
        execution_options={"synchronize_session": False},
    )


def kept_bytes(db: Session) -> int:
    """What all packed logs take."""
    return int(db.scalar(select(func.sum(func.length(Log.compressed)))) or 0)


def sizes(db: Session, *, but: str) -> Sequence[tuple[UUID, datetime, int]]:
    """Ended reviews with packed logs, oldest first, without each repo's newest and those whose logs say only `but`."""
    newest = (
        select(Review.repo_id, func.max(Review.finished_at).label("at"))
        .where(Review.finished_at.is_not(None))
        .group_by(Review.repo_id)
        .subquery()
    )
    found = db.execute(
        select(Review.id, Review.finished_at, func.sum(func.length(Log.compressed)))
        .join(Step, Step.review_id == Review.id)
        .join(Log, Log.step_id == Step.id)
        .join(newest, newest.c.repo_id == Review.repo_id)
        .where(Review.finished_at < newest.c.at, Log.compressed != compressed(but))
        .group_by(Review.id, Review.finished_at)
        .order_by(Review.finished_at, Review.id)
    )
    return [(row[0], row[1], int(row[2])) for row in found]


def replace(db: Session, review_id: UUID, text: str) -> None:
    """All logs of the review say that instead; `bytes` still tells how long they were."""
    its_steps = select(Step.id).where(Step.review_id == review_id)
    quiet = {"synchronize_session": False}
    db.execute(delete(LogChunk).where(LogChunk.review_id == review_id), execution_options=quiet)
    new = update(Log).where(Log.step_id.in_(its_steps)).values(compressed=compressed(text))
    db.execute(new, execution_options=quiet)


def compressed(text: str) -> bytes:
    return zlib.compress(text.encode("utf-8", "replace"))


def joined(db: Session, step_id: UUID) -> str:
    """All chunks of all attempts, each attempt after the first announced."""
    parts: list[str] = []
    attempt = None
    for chunk in db.scalars(
        select(LogChunk).where(LogChunk.step_id == step_id).order_by(LogChunk.attempt, LogChunk.seq)
    ):
        if attempt is not None and chunk.attempt != attempt:
            parts.append(f"\n[... attempt {chunk.attempt} ...]\n")
        attempt = chunk.attempt
        parts.append(chunk.text)
    return "".join(parts)


def cut(text: str) -> str:
    """The first and last HALF_BYTES, the gap in words."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= 2 * HALF_BYTES:
        return text
    head = raw[:HALF_BYTES].decode("utf-8", "ignore")
    tail = raw[-HALF_BYTES:].decode("utf-8", "ignore")
    return f"{head}\n[... {len(raw) - 2 * HALF_BYTES} bytes not kept ...]\n{tail}"


def append(db: Session, review_id: UUID, step_id: UUID, attempt: int, seq: int, at: datetime, text: str) -> None:
    """One chunk. Belongs into a transaction that began with claims.hold."""
    db.add(LogChunk(review_id=review_id, step_id=step_id, attempt=attempt, seq=seq, at=at, text=text))


def take_out(db: Session, step_id: UUID, attempt: int, first: int, last: int, text: str) -> None:
    """Let the chunk `first` say what was in it and those up to `last`, which go."""
    chunks = (LogChunk.step_id == step_id, LogChunk.attempt == attempt)
    quiet = {"synchronize_session": False}
    db.execute(delete(LogChunk).where(*chunks, LogChunk.seq > first, LogChunk.seq <= last), execution_options=quiet)
    db.execute(update(LogChunk).where(*chunks, LogChunk.seq == first).values(text=text), execution_options=quiet)
