import threading
from datetime import timedelta
from typing import Any

from sqlalchemy import func, select

from orchestrator.services import filing
from orchestrator.store.findings import FindingRow, Sighting
from orchestrator.store.reviews import Review, ReviewState
from orchestrator.store.session import Sessions
from review_agents.lifecycle import Filed, merge
from review_agents.records import FindingState, Lifecycle, Place
from review_agents.sameness import Claim, Known
from tests.factories import NOON, make_candidate, make_repo, make_review, make_verification


def claim(**changed: Any) -> Claim:
    return Claim(candidate=make_candidate(**changed), verification=make_verification(), step="probe:readme")


def merged(claims: list[Claim], known: tuple[Known, ...] = (), **changed: Any) -> tuple[Filed, ...]:
    given = {"rechecks": {}, "looks": (), "commit": "c", "files": (), "reviewed_before": False, **changed}
    return merge(claims, known, **given)


def test_what_was_filed_is_known_to_the_next_review(each_sessions: Sessions) -> None:
    with each_sessions.begin() as db:
        repo = make_repo(db)
        first = make_review(db, repo, state=ReviewState.DONE, created_at=NOON - timedelta(days=1))
        filing.file(db, first, merged([claim(), claim(shape="b")], repo_ignores=[{"rule": "x"}]))
    with each_sessions.begin() as db:
        second = make_review(db, repo, state=ReviewState.DONE)
        known = filing.known(db, repo.id, NOON)
        assert {one.candidate.shape for one in known} == {"", "b"}
        filing.file(db, second, merged([claim(title="other words")], known))
    with each_sessions.reading() as db:
        rows = {row.shape: row for row in db.scalars(select(FindingRow))}
        assert (rows[""].title, rows[""].first_review_id, rows[""].last_review_id) == (
            "other words",
            first.id,
            second.id,
        )
        assert rows["b"].last_review_id == first.id
        assert db.scalar(select(func.count()).select_from(Sighting)) == 3


def test_texts_that_no_database_takes_are_filed_and_known_again(each_sessions: Sessions) -> None:
    odd = claim(title="a\x00\ud800", shape="s\x00", places=(Place(file="\udcff.py", symbol="f\x00", quote="\x00" * 3),))
    with each_sessions.begin() as db:
        repo = make_repo(db)
        filing.file(db, make_review(db, repo, state=ReviewState.DONE), merged([odd]))
    with each_sessions.begin() as db:
        known = filing.known(db, repo.id, NOON)
        again = merged([odd], known)
        assert [one.lifecycle for one in again] == [Lifecycle.PERSISTING]
        filing.file(db, make_review(db, repo, state=ReviewState.DONE), again)


def test_two_machines_that_find_the_same_at_once_file_one_finding(each_sessions: Sessions) -> None:
    with each_sessions.begin() as db:
        repo = make_repo(db)
        ids = [make_review(db, repo, state=ReviewState.RUNNING, ref=name, machine=name).id for name in ("a", "b")]
    together = threading.Barrier(2)
    problems: list[BaseException] = []

    def finish(review_id: Any) -> None:
        try:
            filed = merged([claim(), claim(shape="b")])
            together.wait()
            with each_sessions.begin() as db:
                filing.file(db, db.get_one(Review, review_id), filed)
        except BaseException as error:
            problems.append(error)

    machines = [threading.Thread(target=finish, args=(review_id,)) for review_id in ids]
    for machine in machines:
        machine.start()
    for machine in machines:
        machine.join()
    assert problems == []
    with each_sessions.reading() as db:
        assert db.scalar(select(func.count()).select_from(FindingRow)) == 2
        assert db.scalar(select(func.count()).select_from(Sighting)) == 4
        assert {row.state for row in db.scalars(select(FindingRow))} == {FindingState.OPEN}
