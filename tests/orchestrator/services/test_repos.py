from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from orchestrator.services import repos
from orchestrator.services.errors import UnknownRepo
from orchestrator.services.workshop import Workshop
from orchestrator.store.reviews import ReviewState
from orchestrator.store.session import Sessions
from review_agents.records import Change, FindingState, Lifecycle, Severity, Verdict
from tests.factories import (
    NOON,
    make_candidate,
    make_finding,
    make_measured,
    make_measurement,
    make_repo,
    make_review,
    make_schedule,
    make_shop,
    make_sighting,
)


@pytest.fixture
def shop(each_sessions: Sessions, tmp_path: Path) -> Workshop:
    return make_shop(each_sessions, tmp_path)


def test_repos_are_listed_by_name_with_their_last_review_and_what_is_open(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        zebra, ant = make_repo(db, name="zebra"), make_repo(db, name="Ant")
        old = make_review(db, ant, state=ReviewState.DONE, created_at=NOON - timedelta(days=1))
        last = make_review(db, ant, state=ReviewState.DONE)
        known = make_finding(db, old, make_candidate(severity=Severity.HIGH, shape="known"))
        make_sighting(db, last, known)
        make_sighting(db, last)
        make_finding(db, last, state=FindingState.FIXED)
        make_finding(db, last, state=FindingState.CLAIMED)
        make_finding(db, last, ignored_reason="for good")
        make_finding(db, last, ignored_reason="over", ignored_until=NOON - timedelta(seconds=1))
        make_finding(db, last, repo_ignores="says the repo")
        make_schedule(db, ant)
        make_schedule(db, ant, next_at=NOON + timedelta(hours=1))
        make_schedule(db, ant, enabled=False, next_at=NOON)
    first, second = repos.listed(shop)
    assert (first.name, second.name) == ("Ant", "zebra")
    assert (first.reviews, first.last and first.last.id) == (2, last.id)
    assert first.counts.by_severity == {Severity.HIGH: 1, Severity.MEDIUM: 2}
    assert (first.counts.new, first.counts.unproved) == (1, 1)
    assert first.next_at == NOON + timedelta(hours=1)
    assert (second.id, second.reviews, second.last, second.counts.confirmed) == (zebra.id, 0, None, 0)
    assert [one.name for one in repos.names(shop)] == ["Ant", "zebra"]


def test_the_page_of_a_repo_has_reviews_findings_and_schedules(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        repo = make_repo(db)
        old = make_review(db, repo, state=ReviewState.DONE, created_at=NOON - timedelta(days=1))
        last = make_review(db, repo, state=ReviewState.DONE)
        low = make_finding(db, old, make_candidate(severity=Severity.LOW, shape="low"))
        ignored = make_finding(db, old, make_candidate(severity=Severity.CRITICAL, shape="i"), ignored_reason="r")
        claimed = make_finding(db, old, state=FindingState.CLAIMED)
        high = make_finding(db, old, make_candidate(severity=Severity.HIGH, shape="high"))
        make_finding(db, old, state=FindingState.FIXED)
        make_schedule(db, repo)
        make_review(db)
    page = repos.get(shop, repo.id)
    assert [row.id for row in page.reviews] == [last.id, old.id]
    assert page.row.reviews == 2 and page.row.last == page.reviews[0]
    assert [one.id for one in page.findings] == [high.id, low.id, claimed.id, ignored.id]
    assert page.findings[0].first_seen == NOON - timedelta(days=1)
    assert page.findings[3].ignored_by == "operator: r"
    assert page.schedules[0].next_local == "2026-12-01 02:00 CET"
    assert page.row.next_at == page.schedules[0].next_at


def test_a_series_is_one_name_on_one_machine_oldest_first(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        repo = make_repo(db)
        for day in range(3):
            review = make_review(db, repo, state=ReviewState.DONE, created_at=NOON + timedelta(days=day))
            change = Change(ratio=1.0 + day, low=1.0, high=3.0, verdict=Verdict.INCONCLUSIVE)
            make_measured(db, review, make_measurement(float(day + 1), change=change))
            if day == 2:
                make_measured(db, review, make_measurement(name="import"), machine_key="other", contaminated=2)
                make_measured(db, review, make_measurement(name="void"), median=None, spread=None)
    found = repos.get(shop, repo.id).series
    assert [(one.name, one.machine_key) for one in found] == [
        ("import", "other"),
        ("tests", "machine/fake/image/3.11.2"),
        ("void", "machine/fake/image/3.11.2"),
    ]
    assert [point.median for point in found[1].points] == [1.0, 2.0, 3.0]
    assert found[1].latest.at == NOON + timedelta(days=2)
    assert found[1].change and found[1].change.ratio == 3.0
    assert found[0].latest.contaminated and found[2].latest.median is None


def test_very_long_histories_show_their_newest_part(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repos, "SHOWN_POINTS", 5)
    with shop.sessions.begin() as db:
        repo = make_repo(db)
        for day in range(8):
            review = make_review(db, repo, state=ReviewState.DONE, created_at=NOON + timedelta(days=day))
            make_measured(db, review, make_measurement(float(day + 1)))
    (series,) = repos.get(shop, repo.id).series
    assert [point.median for point in series.points] == [4.0, 5.0, 6.0, 7.0, 8.0]
    monkeypatch.setattr(repos, "SHOWN_MEASUREMENTS", 2)
    (series,) = repos.get(shop, repo.id).series
    assert [point.median for point in series.points] == [7.0, 8.0]


def test_counts_new_are_those_of_the_last_review(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        repo = make_repo(db)
        old = make_review(db, repo, state=ReviewState.DONE, created_at=NOON - timedelta(days=1))
        seen = make_sighting(db, old)
        last = make_review(db, repo, state=ReviewState.DONE)
        make_sighting(
            db, last, db.get_one(type(make_finding(db, old)), seen.finding_id), lifecycle=Lifecycle.PERSISTING
        )
    assert repos.listed(shop)[0].counts.new == 0


def test_a_repo_that_is_not_there_is_said_so(shop: Workshop) -> None:
    with pytest.raises(UnknownRepo):
        repos.get(shop, uuid4())
