"""Lists look at the few findings that count, however many were ever fixed."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from orchestrator.store import findings
from orchestrator.store.session import Sessions
from review_agents.records import FindingState
from tests.factories import NOON, make_finding, make_repo, make_review


@pytest.mark.parametrize(
    ("ask", "index"),
    [
        (lambda db: findings.counts_of_repos(db, NOON), "INDEX ix_findings_counted"),
        (lambda db: findings.ignored(db, NOON), "ix_findings_ignored"),
    ],
)
def test_a_list_of_what_counts_reads_an_index_of_that_alone(
    sessions: Sessions, ask: Callable[[Session], Any], index: str
) -> None:
    asked: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *more: Any) -> None:
        asked.append((statement, parameters))

    event.listen(sessions.engine, "before_cursor_execute", note)
    with sessions.reading() as db:
        ask(db)
        statement, parameters = asked[-1]
        plan = db.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
    assert any(index in row[-1] for row in plan), (plan, statement)


def test_an_ignore_that_has_lapsed_counts_again_and_one_of_the_repo_never_does(each_sessions: Sessions) -> None:
    with each_sessions.begin() as db:
        review = make_review(db, make_repo(db))
        for said in (
            {},
            {"ignored_reason": "known"},
            {"ignored_reason": "known", "ignored_until": NOON + timedelta(seconds=1)},
            {"ignored_reason": "known", "ignored_until": NOON},
            {"repo_ignores": "its own"},
            {"repo_ignores": "its own", "ignored_reason": "known", "ignored_until": NOON},
            {"state": FindingState.FIXED},
            {"state": FindingState.CLAIMED},
        ):
            make_finding(db, review, **said)
    with each_sessions.reading() as db:
        counts = findings.counts_of_repos(db, NOON, review.repo_id)
    assert {(one.state, one.number) for one in counts} == {(FindingState.OPEN, 2), (FindingState.CLAIMED, 1)}
