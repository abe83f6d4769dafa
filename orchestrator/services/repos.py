"""Repos as pages show them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from sqlalchemy.orm import Session

from orchestrator.services import rows
from orchestrator.services.errors import UnknownRepo
from orchestrator.services.views import (
    FindingCounts,
    OpenFinding,
    Point,
    RepoName,
    RepoPage,
    RepoRow,
    ReviewRow,
    Series,
)
from orchestrator.services.workshop import Workshop
from orchestrator.store import findings, measurements, reviews, schedules
from orchestrator.store import repos as table
from orchestrator.store.measurements import Measured
from orchestrator.store.repos import Repo
from review_agents.records import FindingState

SHOWN_REVIEWS = 30
SHOWN_POINTS = 120  # of each series: those of the newest so many reviews
SHOWN_MEASUREMENTS = 3000  # of all series together; the page of measurements has more


def names(shop: Workshop) -> tuple[RepoName, ...]:
    """All repos by name, for lists to choose from."""
    with shop.sessions.reading() as db:
        return tuple(RepoName(repo.id, repo.name, repo.url) for repo in table.listed(db))


def listed(shop: Workshop) -> tuple[RepoRow, ...]:
    """All repos by name."""
    with shop.sessions.reading() as db:
        found = table.listed(db)
        last = {row.repo_id: row for row in rows.review_rows(db, reviews.newest_by_repo(db))}
        number = reviews.counts_by_repo(db)
        counts = rows.repo_counts(db, shop.clock())
        planned = schedules.next_by_repo(db)
    return tuple(
        repo_row(repo, number.get(repo.id, 0), last.get(repo.id), counts, planned.get(repo.id)) for repo in found
    )


def get(shop: Workshop, repo_id: UUID) -> RepoPage:
    now = shop.clock()
    with shop.sessions.reading() as db:
        repo = table.get(db, repo_id)
        if repo is None:
            raise UnknownRepo(repo_id)
        newest, number = reviews.page(db, repo_id=repo_id, states=(), offset=0, limit=SHOWN_REVIEWS)
        review_rows = rows.review_rows(db, newest)
        planned = [rows.schedule_row(*one) for one in schedules.listed(db, repo_id)]
        return RepoPage(
            row=repo_row(
                repo,
                number,
                review_rows[0] if review_rows else None,
                rows.repo_counts(db, now, repo_id),
                min((one.next_at for one in planned if one.next_at and one.enabled), default=None),
            ),
            default_ref=repo.default_ref,
            created_at=repo.created_at,
            reviews=review_rows,
            findings=open_findings(db, repo_id, now),
            series=series_of(measurements.history(db, repo_id, reviews=SHOWN_POINTS, most=SHOWN_MEASUREMENTS)),
            schedules=tuple(planned),
        )


def repo_row(
    repo: Repo,
    number: int,
    last: ReviewRow | None,
    counts: Mapping[UUID, FindingCounts],
    next_at: datetime | None,
) -> RepoRow:
    return RepoRow(
        id=repo.id,
        name=repo.name,
        url=repo.url,
        kind=repo.kind,
        reviews=number,
        last=last,
        counts=replace(counts.get(repo.id, FindingCounts()), new=last.counts.new if last else 0),
        next_at=next_at,
    )


def open_findings(db: Session, repo_id: UUID, now: datetime) -> tuple[OpenFinding, ...]:
    return tuple(
        sorted(
            (rows.open_finding(one, now) for one in findings.unfixed(db, repo_id)),
            key=lambda one: (
                bool(one.ignored_by),
                one.state is FindingState.CLAIMED,
                one.severity.rank,
                one.path,
                one.title,
                str(one.id),
            ),
        )
    )


def series_of(measured: Sequence[Measured]) -> tuple[Series, ...]:
    """Measurements (oldest first) as one line per name, unit and machine key."""
    lines: dict[tuple[str, str, str], list[Measured]] = {}
    for one in measured:
        lines.setdefault((one.name, one.unit, one.machine_key), []).append(one)
    return tuple(
        Series(
            name=name,
            unit=unit,
            machine_key=key,
            points=tuple(map(point, line)),
            note=line[-1].note,
            change=rows.change_of(line[-1].verdict),
        )
        for (name, unit, key), line in sorted(lines.items())
    )


def point(one: Measured) -> Point:
    return Point(
        at=one.at,
        commit=one.commit,
        review_id=one.review_id,
        median=one.median,
        spread=one.spread,
        contaminated=one.contaminated > 0,
    )
