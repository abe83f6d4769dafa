from datetime import datetime, timedelta, timezone
from pathlib import Path
from uuid import uuid4

import pytest

from orchestrator.services import findings
from orchestrator.services.errors import BadInput, UnknownFinding
from orchestrator.services.workshop import Workshop
from orchestrator.store import repos
from orchestrator.store.findings import FindingRow
from orchestrator.store.reviews import ReviewState
from orchestrator.store.session import Sessions
from review_agents.records import FindingState, Lifecycle, Ran, VerificationState
from tests.factories import (
    NOON,
    make_candidate,
    make_finding,
    make_repo,
    make_review,
    make_shop,
    make_sighting,
    make_verification,
)


@pytest.fixture
def shop(each_sessions: Sessions, tmp_path: Path) -> Workshop:
    return make_shop(each_sessions, tmp_path)


@pytest.fixture
def finding(shop: Workshop) -> FindingRow:
    """Seen in two reviews."""
    with shop.sessions.begin() as db:
        repo = make_repo(db, name="tool")
        old = make_review(db, repo, state=ReviewState.DONE, created_at=NOON - timedelta(days=1), commit="1" * 40)
        new = make_review(db, repo, state=ReviewState.DONE, commit="2" * 40)
        seen = make_sighting(db, old, candidate=make_candidate(title="old words"))
        found = db.get_one(FindingRow, seen.finding_id)
        make_sighting(
            db,
            new,
            found,
            candidate=make_candidate(title="new words"),
            verification=make_verification(VerificationState.FLAKY, reason="once in two"),
        )
        make_sighting(db, new)
    return found


def test_a_finding_is_shown_as_last_seen_with_its_history(shop: Workshop, finding: FindingRow) -> None:
    page = findings.get(shop, finding.id)
    assert (page.finding.title, page.finding.verification_reason) == ("new words", "once in two")
    assert (page.repo_name, page.commit, page.state) == ("tool", "2" * 40, FindingState.OPEN)
    assert [ran.head for ran in page.runs] == ["3\n", "3\n"]
    assert [row.lifecycle for row in page.history] == [Lifecycle.PERSISTING, Lifecycle.NEW]
    assert [row.commit[0] for row in page.history] == ["2", "1"]
    assert not page.ignored


def test_each_review_has_its_own_runs_of_a_finding(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        old, new = (make_review(db, state=ReviewState.DONE) for _ in range(2))
        before = make_verification(runs=(Ran(exit=1, head="then\n"),) * 2)
        seen = make_sighting(db, old, verification=before)
        now = make_verification(runs=(Ran(exit=0, head="now\n"),), controls=(Ran(exit=3, head="control\n"),))
        make_sighting(db, new, db.get_one(FindingRow, seen.finding_id), verification=now)
        stranger = make_review(db, state=ReviewState.DONE)
    then = findings.runs(shop, old.id, seen.finding_id)
    assert ([ran.head for ran in then.runs], then.controls) == (["then\n", "then\n"], ())
    later = findings.runs(shop, new.id, seen.finding_id)
    assert [ran.head for ran in (*later.runs, *later.controls)] == ["now\n", "control\n"]
    with pytest.raises(UnknownFinding):
        findings.runs(shop, stranger.id, seen.finding_id)


def test_an_ignore_lasts_until_its_end_or_until_it_is_taken_back(shop: Workshop, finding: FindingRow) -> None:
    findings.ignore(shop, finding.id, "  waits for 2.0  ", NOON + timedelta(days=1))
    page = findings.get(shop, finding.id)
    assert (page.ignored, page.ignored_reason) == (True, "waits for 2.0")
    shop.clock.forward(days=1)
    assert not findings.get(shop, finding.id).ignored
    findings.ignore(shop, finding.id, "for good")
    assert findings.get(shop, finding.id).ignored
    findings.unignore(shop, finding.id)
    findings.unignore(shop, finding.id)
    assert not findings.get(shop, finding.id).ignored


def test_all_that_is_ignored_is_listed_with_what_comes_back_first_at_the_top(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        review = make_review(db, state=ReviewState.DONE)
        for_good, spring, autumn, over, by_repo, fixed, _ = (make_finding(db, review) for _ in range(7))
        for finding, days in ((for_good, None), (spring, 90), (autumn, 300), (over, -1), (fixed, None)):
            finding.ignored_reason = "we know"
            finding.ignored_until = None if days is None else NOON + timedelta(days=days)
        by_repo.repo_ignores, fixed.state = "generated", FindingState.FIXED
        wanted = {spring.id, autumn.id, for_good.id, by_repo.id}
        first = [spring.id, autumn.id]
        repo_name = repos.names(db, {review.repo_id})[review.repo_id]
    found = findings.ignored(shop)
    assert {one.finding.id for one in found} == wanted and [one.finding.id for one in found][:2] == first
    assert {one.finding.ignored_by for one in found} == {"operator: we know", "repo: generated"}
    assert {one.repo_name for one in found} == {repo_name}


@pytest.mark.parametrize(
    ("field", "reason", "until"),
    [
        ("reason", "", None),
        ("reason", "   ", None),
        ("reason", "x" * 2001, None),
        ("until", "r", NOON),
        ("until", "r", datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))),
        ("until", "r", datetime.min.replace(tzinfo=timezone(timedelta(hours=12)))),
        ("until", "r", datetime(2027, 1, 1)),
    ],
)
def test_an_ignore_needs_a_reason_and_an_end_to_come(
    shop: Workshop, finding: FindingRow, field: str, reason: str, until: datetime | None
) -> None:
    with pytest.raises(BadInput) as refused:
        findings.ignore(shop, finding.id, reason, until)
    assert refused.value.field == field
    assert not findings.get(shop, finding.id).ignored


def test_a_finding_that_is_not_there_is_said_so(shop: Workshop) -> None:
    for ask in (findings.get, findings.unignore):
        with pytest.raises(UnknownFinding):
            ask(shop, uuid4())
    with pytest.raises(UnknownFinding):
        findings.ignore(shop, uuid4(), "r")
