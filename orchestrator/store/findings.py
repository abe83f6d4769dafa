"""Findings (what is wrong with a repo, with an identity that outlives reviews) and their sightings."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    ForeignKey,
    Index,
    Text,
    UniqueConstraint,
    and_,
    cast,
    func,
    literal,
    literal_column,
    or_,
    select,
    union_all,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, Session, mapped_column

from orchestrator.store.base import AnyJson, Base, Key, Name, choice
from orchestrator.store.reviews import Review
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
        return in_force(self.ignored_reason, self.ignored_until, now)


# In the course of years nearly all are fixed, and few are ignored, so there are indexes of those alone. A database uses
# them for a query that says the very same, and a parameter says nothing: so the values are written out.
UNFIXED = FindingRow.state != literal_column(f"'{FindingState.FIXED}'")
SAID = or_(FindingRow.ignored_reason != literal_column("''"), FindingRow.repo_ignores != literal_column("''"))
Index(
    "ix_findings_unfixed",
    FindingRow.repo_id,
    FindingRow.state,
    FindingRow.severity,
    sqlite_where=UNFIXED,
    postgresql_where=UNFIXED,
)
Index("ix_findings_ignored", FindingRow.repo_id, sqlite_where=SAID, postgresql_where=SAID)
# Of those that nobody ever spoke against, an index alone tells how many there are: rows of findings lie all over the
# table, and counting twenty thousand open ones in 200,000 read nearly each of its pages.
UNSAID = and_(
    UNFIXED, FindingRow.ignored_reason == literal_column("''"), FindingRow.repo_ignores == literal_column("''")
)
Index(
    "ix_findings_counted",
    FindingRow.repo_id,
    FindingRow.state,
    FindingRow.severity,
    sqlite_where=UNSAID,
    postgresql_where=UNSAID,
)


class Sighting(Base):
    """A finding as one review saw it; also the review that proved it fixed."""

    __tablename__ = "sightings"
    __table_args__ = (
        UniqueConstraint("review_id", "finding_id"),
        Index("ix_sightings_finding", "finding_id"),
        # All that the counts in lists need, so that they never read the rows with their bodies.
        Index("ix_sightings_counts", "review_id", "lifecycle", "seen_late", "verification_state", "severity"),
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


def in_force(reason: str, until: datetime | None, now: datetime) -> bool:
    """Whether the operator's ignore counts now."""
    return bool(reason) and (until is None or until > now)


def get(db: Session, finding_id: UUID) -> FindingRow | None:
    return db.get(FindingRow, finding_id)


def add_or_find(db: Session, finding: FindingRow) -> FindingRow:
    """Add the finding, or return the one with its fingerprint that a review on another machine filed meanwhile."""
    same = select(FindingRow).where(
        FindingRow.repo_id == finding.repo_id, FindingRow.fingerprint == finding.fingerprint
    )
    known = db.scalar(same)
    if known is not None:
        return known
    try:
        with db.begin_nested():
            db.add(finding)
        return finding
    except IntegrityError:
        return db.scalars(same).one()


@dataclass(frozen=True, slots=True)
class Open:
    """A finding in a list, without its bodies."""

    id: UUID
    kind: Kind
    rule: str
    title: str
    path: str
    symbol: str
    severity: Severity
    state: FindingState
    first_review_id: UUID
    first_seen: datetime
    last_review_id: UUID
    ignored_reason: str
    ignored_until: datetime | None
    repo_ignores: str


def unfixed(db: Session, repo_id: UUID) -> Sequence[Open]:
    """What is open or claimed in the repo."""
    return [found for found, _ in _unfixed(db, FindingRow.repo_id == repo_id)]


def ignored(db: Session, now: datetime) -> Sequence[tuple[Open, UUID]]:
    """What is open or claimed and does not count now, with its repo."""
    by_operator = and_(
        FindingRow.ignored_reason != "", or_(FindingRow.ignored_until.is_(None), FindingRow.ignored_until > now)
    )
    return _unfixed(db, and_(SAID, or_(by_operator, FindingRow.repo_ignores != "")))


def _unfixed(db: Session, which: ColumnElement[bool]) -> list[tuple[Open, UUID]]:
    found = db.execute(
        select(
            *(getattr(FindingRow, one.name) for one in fields(Open) if one.name != "first_seen"),
            Review.created_at.label("first_seen"),
            FindingRow.repo_id,
        )
        .join(Review, Review.id == FindingRow.first_review_id)
        .where(which, UNFIXED)
    )
    return [
        (Open(**{name: value for name, value in row._mapping.items() if name != "repo_id"}), row.repo_id)
        for row in found
    ]


@dataclass(frozen=True, slots=True)
class Seen:
    """A sighting with what identifies its finding. Bodies come as JSON texts: many of them are parsed at once."""

    finding_id: UUID
    fingerprint: str
    severity: Severity
    verification_state: VerificationState
    verification_reason: str
    lifecycle: Lifecycle
    seen_late: bool
    source: Source
    focus: str
    ignored_by: str
    body: str  # of a records.Candidate
    verification: str  # of a records.Verification; empty unless it was asked for


def of_review(db: Session, review_id: UUID, *, runs: bool = False) -> Sequence[Seen]:
    """What the review said; `runs` also loads the verifications with their outputs."""
    return seen(db, Sighting.review_id == review_id, runs=runs)


def last_seen(db: Session, finding: FindingRow) -> Seen:
    """The finding's newest sighting, with everything in it."""
    newest = (Sighting.review_id == finding.last_review_id, Sighting.finding_id == finding.id)
    return seen(db, *newest, runs=True)[0]


def seen_by(db: Session, finding_id: UUID, review_id: UUID) -> Seen | None:
    """What that review said about the finding, with everything in it."""
    found = seen(db, Sighting.review_id == review_id, Sighting.finding_id == finding_id, runs=True)
    return found[0] if found else None


def seen(db: Session, *conditions: ColumnElement[bool], runs: bool) -> Sequence[Seen]:
    computed = {
        "fingerprint": FindingRow.fingerprint,
        "body": cast(Sighting.body, Text),
        "verification": cast(Sighting.verification, Text) if runs else literal(""),
    }
    names = [one.name for one in fields(Seen)]
    found = db.execute(
        select(*(computed[name] if name in computed else getattr(Sighting, name) for name in names))
        .join(FindingRow, FindingRow.id == Sighting.finding_id)
        .where(*conditions)
    )
    return [Seen(*row) for row in found]  # by position: a review may have hundreds


def history(db: Session, finding_id: UUID) -> Sequence[tuple[Sighting, Review]]:
    """All sightings with their reviews, newest first."""
    found = db.execute(
        select(Sighting, Review)
        .join(Review, Review.id == Sighting.review_id)
        .where(Sighting.finding_id == finding_id)
        .order_by(Review.created_at.desc(), Review.id)
    )
    return [(row[0], row[1]) for row in found]


@dataclass(frozen=True, slots=True)
class Count:
    """How many sightings of a review are alike."""

    review_id: UUID
    lifecycle: Lifecycle
    seen_late: bool
    verification: VerificationState
    severity: Severity
    number: int


def counts_of_reviews(db: Session, review_ids: Sequence[UUID]) -> Sequence[Count]:
    alike = (
        Sighting.review_id,
        Sighting.lifecycle,
        Sighting.seen_late,
        Sighting.verification_state,
        Sighting.severity,
    )
    found = db.execute(select(*alike, func.count()).where(Sighting.review_id.in_(review_ids)).group_by(*alike))
    return [Count(*row) for row in found]


@dataclass(frozen=True, slots=True)
class OpenCount:
    repo_id: UUID
    state: FindingState
    severity: Severity
    number: int


def counts_of_repos(db: Session, now: datetime, repo_id: UUID | None = None) -> Sequence[OpenCount]:
    """What is open or claimed in that repo or each, without what the operator or the repo ignores."""
    alike = select(FindingRow.repo_id, FindingRow.state, FindingRow.severity)
    if repo_id is not None:
        alike = alike.where(FindingRow.repo_id == repo_id)
    ignored_once = (SAID, UNFIXED, FindingRow.repo_ignores == "", FindingRow.ignored_until <= now)
    each = union_all(alike.where(UNSAID), alike.where(*ignored_once)).subquery()
    query = select(each.c.repo_id, each.c.state, each.c.severity, func.count())
    found = db.execute(query.group_by(each.c.repo_id, each.c.state, each.c.severity))
    return [OpenCount(*row) for row in found]


def last_words(
    db: Session, finding_ids: Collection[UUID], *, since: datetime | None = None, until: datetime
) -> dict[UUID, Lifecycle]:
    """What was last said about each of the findings by a review asked for in that time."""
    if not finding_ids:
        return {}
    found = db.execute(
        select(Sighting.finding_id, Sighting.lifecycle)
        .join(Review, Review.id == Sighting.review_id)
        .where(
            Sighting.finding_id.in_(finding_ids),
            Review.created_at <= until,
            *([] if since is None else [Review.created_at > since]),
        )
        .order_by(Review.created_at, Review.id)
    )
    return {row[0]: row[1] for row in found}
