"""Lists look at the few findings that count, however many were ever fixed."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from orchestrator.store import findings
from orchestrator.store.session import Sessions
from tests.factories import NOON


@pytest.mark.parametrize(
    ("ask", "index"),
    [
        (lambda db: findings.counts_of_repos(db, NOON), "ix_findings_unfixed"),
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
