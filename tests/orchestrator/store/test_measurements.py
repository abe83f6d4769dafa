"""Measurements as points of histories, on both databases."""

from datetime import timedelta
from uuid import uuid4

from sqlalchemy import event, update

from orchestrator.store import measurements
from orchestrator.store.reviews import ReviewState
from orchestrator.store.session import Sessions
from review_agents.records import Session
from tests.factories import NOON, make_measured, make_measurement, make_repo, make_review


def test_the_nights_of_one_benchmark_are_found_by_its_name(sessions: Sessions) -> None:
    asked: list[tuple[str, object]] = []
    event.listen(sessions.engine, "before_cursor_execute", lambda *given: asked.append((given[2], given[3])))
    with sessions.reading() as db:
        measurements.nights(db, uuid4(), newest=10, name="a")
        statement, values = asked[-1]
        plan = db.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()  # type: ignore[arg-type]
    assert any("ix_measurements_name (repo_id=? AND name=?)" in str(row) for row in plan), plan


def test_nights_count_their_sessions_and_come_oldest_first(each_sessions: Sessions) -> None:
    void = Session(value=9.0, void=True, reason="busy")
    with each_sessions.begin() as db:
        repo = make_repo(db)
        made = []
        for day in range(3):
            review = make_review(db, repo, state=ReviewState.DONE, created_at=NOON + timedelta(days=day))
            good = (Session(value=1.0),) * (4 + day)
            around = {"surroundings": {"kernel": "6.1"}, "machine_key": "key"} if day == 0 else {}
            made.append(make_measured(db, review, make_measurement(name="a", sessions=(*good, void)), **around).id)
            make_measured(db, review, make_measurement(name="b", sessions=(void, void)))
        make_measured(db, make_review(db), make_measurement(name="a"))  # of another repo
    with each_sessions.reading() as db:
        found = measurements.nights(db, repo.id, newest=100)
        assert [(one.name, one.good, one.void) for one in found if one.name == "a"] == [
            ("a", 4, 1), ("a", 5, 1), ("a", 6, 1),
        ]  # fmt: skip
        assert [(one.good, one.void, one.median) for one in found if one.name == "b"] == [(0, 2, None)] * 3
        newest = measurements.nights(db, repo.id, newest=2, name="a")
        assert newest[0].id is not None
        assert [one.id for one in newest] == made[1:]
        (older,) = measurements.nights(db, repo.id, newest=2, name="a", before=(newest[0].at, newest[0].id))
        assert older.id == made[0]
        assert [len(one) for one in measurements.sessions_of(db, made[:1]).values()] == [5]
        assert {one.id for one in measurements.nights(db, repo.id, newest=9, ids=False)} == {None}
        assert measurements.surroundings(db, repo.id, {NOON, NOON + timedelta(days=2)}) == {
            ("a", "key", NOON): {"kernel": "6.1"}
        }
        assert measurements.surroundings(db, repo.id, {NOON}, "b") == {}


def test_sessions_of_a_row_by_an_older_version_are_counted_when_it_is_read(each_sessions: Sessions) -> None:
    with each_sessions.begin() as db:
        review = make_review(db)
        row = make_measured(db, review, make_measurement(sessions=(Session(value=1.0),) * 5))
        assert row.good == 5
        db.execute(update(measurements.MeasurementRow).values(good=None))
    with each_sessions.reading() as db:
        assert [one.good for one in measurements.nights(db, review.repo_id, newest=9)] == [5]
