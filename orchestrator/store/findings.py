"""Findings (what is wrong with a repo, with an identity that outlives reviews) and their sightings."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, Index, UniqueConstraint, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from orchestrator.store.base import AnyJson, Base, Key, Name, choice
from review_agents.records import FindingState, Kind, Lifecycle, Severity, Source, VerificationState


class FindingRow(Base):
    __tablename__ = "findings"
    __table_args__ = (
        UniqueConstraint("repo_id", "fingerprint"),
        Index("ix_findings_repo_state", "repo_id", "state"),
    )

    id: Mapped[Key]
    repo_id: Mapped[UUID] = mapped_column(ForeignKey("repos.id"))
    # review_agents.identity.fingerprint of its first sighting; never changes.
    fingerprint: Mapped[str] = mapped_column(Name)
    kind: Mapped[Kind] = mapped_column(choice(Kind))
    rule: Mapped[str]
    path: Mapped[str]
    symbol: Mapped[str]
    shape: Mapped[str]
    first_review_id: Mapped[UUID] = mapped_column(ForeignKey("reviews.id"))
    last_review_id: Mapped[UUID] = mapped_column(ForeignKey("reviews.id"))
    state: Mapped[FindingState] = mapped_column(choice(FindingState))
    title: Mapped[str]  # as last seen; for display only, no part of the identity
    severity: Mapped[Severity] = mapped_column(choice(Severity))  # as last seen
    step: Mapped[str] = mapped_column(Name)  # which saw it last, for example probe:readme
    repo_ignores: Mapped[str] = mapped_column(default="")  # the repo's own reason to ignore it, as last seen
    # The operator's ignore. In force while there is a reason and `until` is empty or still to come.
    ignored_reason: Mapped[str] = mapped_column(default="")
    ignored_until: Mapped[datetime | None]

    def ignored(self, now: datetime) -> bool:
        return bool(self.ignored_reason) and (self.ignored_until is None or self.ignored_until > now)


class Sighting(Base):
    """A finding as one review saw it; also the review that proved it fixed."""

    __tablename__ = "sightings"
    __table_args__ = (
        UniqueConstraint("review_id", "finding_id"),
        Index("ix_sightings_finding", "finding_id"),
    )

    id: Mapped[Key]
    review_id: Mapped[UUID] = mapped_column(ForeignKey("reviews.id", ondelete="CASCADE"))
    finding_id: Mapped[UUID] = mapped_column(ForeignKey("findings.id"))
    lifecycle: Mapped[Lifecycle] = mapped_column(choice(Lifecycle))
    seen_late: Mapped[bool] = mapped_column(default=False)
    severity: Mapped[Severity] = mapped_column(choice(Severity))
    source: Mapped[Source] = mapped_column(choice(Source))
    focus: Mapped[str] = mapped_column(default="")
    ignored_by: Mapped[str] = mapped_column(default="")  # "", "operator: REASON" or "repo: REASON"
    verification_state: Mapped[VerificationState] = mapped_column(choice(VerificationState))
    verification_reason: Mapped[str] = mapped_column(default="")
    body: Mapped[Any] = mapped_column(AnyJson, nullable=False, deferred=True)  # records.Candidate
    # records.Verification with its runs; apart from state and reason because output can be large.
    verification: Mapped[Any] = mapped_column(AnyJson, nullable=False, deferred=True)


def get(db: Session, finding_id: UUID) -> FindingRow | None:
    return db.get(FindingRow, finding_id)


def of_repo(db: Session, repo_id: UUID, *states: FindingState) -> Sequence[FindingRow]:
    """The repo's findings, in those states where any are named."""
    query = select(FindingRow).where(FindingRow.repo_id == repo_id)
    if states:
        query = query.where(FindingRow.state.in_(states))
    return db.scalars(query.order_by(FindingRow.path, FindingRow.fingerprint)).all()
