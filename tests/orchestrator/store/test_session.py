import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from orchestrator.store.repos import Repo
from orchestrator.store.reviews import Review, ReviewState
from orchestrator.store.session import Sessions, make_engine, open_sessions
from tests.factories import NOON, make_finding, make_repo, make_review, make_schedule, make_sighting, make_step
from tests.support.postgres import PostgresServer

ROOT = Path(__file__).parents[3]


def test_a_reading_transaction_cannot_write(each_sessions: Sessions) -> None:
    with pytest.raises(DBAPIError, match=r"read-?only"), each_sessions.reading() as db:
        make_repo(db)
    with each_sessions.begin() as db:
        make_repo(db)  # nor does the connection stay that way


def test_a_reading_transaction_sees_one_state_while_others_write(each_sessions: Sessions) -> None:
    with each_sessions.begin() as db:
        make_repo(db)
    with each_sessions.reading() as db:
        before = len(db.scalars(select(Repo.id)).all())
        with each_sessions.begin() as other:
            make_repo(other)
        assert len(db.scalars(select(Repo.id)).all()) == before


def test_a_block_that_raises_leaves_nothing(each_sessions: Sessions) -> None:
    with pytest.raises(RuntimeError), each_sessions.begin() as db:
        make_repo(db)
        raise RuntimeError
    with each_sessions.reading() as db:
        assert db.scalars(select(Repo.id)).all() == []


def test_writers_wait_for_each_other_and_none_fails(each_sessions: Sessions) -> None:
    """Each reads and then writes: without BEGIN IMMEDIATE, SQLite would refuse the second at once."""
    with each_sessions.begin() as db:
        review_id = make_review(db).id
    problems: list[BaseException] = []

    def count_up() -> None:
        try:
            for _ in range(10):
                with each_sessions.begin() as db:
                    row = db.scalars(select(Review).where(Review.id == review_id).with_for_update()).one()
                    time.sleep(0.001)
                    row.fence += 1
        except BaseException as error:
            problems.append(error)

    writers = [threading.Thread(target=count_up) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert problems == []
    with each_sessions.reading() as db:
        assert db.get_one(Review, review_id).fence == 40


def test_a_reader_does_not_wait_for_a_writer(each_sessions: Sessions) -> None:
    with each_sessions.begin() as db:
        make_repo(db)
        started = time.monotonic()
        with each_sessions.reading() as reader:
            assert reader.scalars(select(Repo.id)).all() == []
        assert time.monotonic() - started < 5


def test_sqlite_is_set_up_for_several_processes(sessions: Sessions) -> None:
    with sessions.begin() as db:
        assert db.scalar(text("PRAGMA journal_mode")) == "wal"
        assert db.scalar(text("PRAGMA foreign_keys")) == 1
        assert db.scalar(text("PRAGMA busy_timeout")) == 30_000


def test_a_new_file_that_another_process_is_setting_up_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "new.db"
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")  # where SQLite itself would turn the next one away at once
    let_go = threading.Timer(0.3, other.rollback)
    let_go.start()
    started = time.monotonic()
    with open_sessions(f"sqlite:///{file}").reading() as db:
        assert db.scalar(text("PRAGMA journal_mode")) == "wal"
    assert time.monotonic() - started >= 0.25
    let_go.join()
    other.close()


def test_a_row_cannot_refer_to_one_that_is_not_there(each_sessions: Sessions) -> None:
    with pytest.raises(IntegrityError), each_sessions.begin() as db:
        repo = make_repo(db)
        review = make_review(db, repo)
        make_step(db, review, review_id=repo.id)


@pytest.mark.postgres
def test_a_database_server_that_was_restarted_is_found_again(
    postgres_server: PostgresServer, postgres_sessions: Sessions
) -> None:
    with postgres_sessions.begin() as db:
        make_repo(db)
    postgres_server.stop()
    try:
        with pytest.raises(DBAPIError), postgres_sessions.reading() as db:
            db.scalars(select(Repo.id)).all()
    finally:
        postgres_server.start()
    with postgres_sessions.begin() as db:
        make_repo(db)
    with postgres_sessions.reading() as db:
        assert len(db.scalars(select(Repo.id)).all()) == 2


WRITES_AND_WAITS = """
import sys, time
from orchestrator.store.session import open_sessions
from tests.factories import make_repo
with open_sessions(sys.argv[1]).begin() as db:
    make_repo(db)
    print("written", flush=True)
    time.sleep(60)
"""


def test_a_writer_killed_in_mid_transaction_leaves_nothing_behind_and_nobody_waiting(
    each_sessions: Sessions,
) -> None:
    url = each_sessions.engine.url.render_as_string(hide_password=False)
    writer = subprocess.Popen([sys.executable, "-c", WRITES_AND_WAITS, url], stdout=subprocess.PIPE, cwd=ROOT)
    assert writer.stdout is not None and writer.stdout.readline() == b"written\n"
    writer.kill()
    writer.wait()
    with each_sessions.begin() as db:
        assert db.scalars(select(Repo.id)).all() == []
        make_repo(db)


# What the indexes hold ------------------------------------------------------------------------


def test_one_review_waits_per_repo_and_ref(each_sessions: Sessions) -> None:
    with each_sessions.begin() as db:
        repo = make_repo(db)
        make_review(db, repo)
        make_review(db, repo, ref="other")
        make_review(db, repo, state=ReviewState.RUNNING)
        make_review(db, repo, state=ReviewState.DONE)
        # Back in the queue after its worker died: it was started once, so it is no second waiting one.
        make_review(db, repo, state=ReviewState.QUEUED, started_at=NOON)
    with pytest.raises(IntegrityError), each_sessions.begin() as db:
        make_review(db, db.get_one(Repo, repo.id))


@pytest.mark.parametrize("state", [ReviewState.RUNNING, ReviewState.CANCELLING])
def test_a_machine_runs_one_review(each_sessions: Sessions, state: ReviewState) -> None:
    with each_sessions.begin() as db:
        make_review(db, state=ReviewState.RUNNING, machine="one")
        make_review(db, state=ReviewState.RUNNING, machine="two")
        make_review(db, state=ReviewState.WAITING_FOR_NODE, machine="one")
        make_review(db, state=ReviewState.DONE, machine="one")
    with pytest.raises(IntegrityError), each_sessions.begin() as db:
        make_review(db, state=state, machine="one")


def test_a_slot_of_a_schedule_makes_one_review(each_sessions: Sessions) -> None:
    with each_sessions.begin() as db:
        schedule = make_schedule(db)
        make_review(db, schedule_id=schedule.id, slot=NOON)
        make_review(db)
        make_review(db)
    with pytest.raises(IntegrityError), each_sessions.begin() as db:
        make_review(db, schedule_id=schedule.id, slot=NOON)


def test_a_finding_is_one_row_per_repo_and_said_once_per_review(each_sessions: Sessions) -> None:
    with each_sessions.begin() as db:
        review = make_review(db)
        finding = make_finding(db, review, fingerprint="f" * 16)
        make_finding(db, make_review(db), fingerprint="f" * 16)
        make_sighting(db, review, finding)
    with pytest.raises(IntegrityError), each_sessions.begin() as db:
        make_finding(db, db.get_one(Review, review.id), fingerprint="f" * 16)
    with pytest.raises(IntegrityError), each_sessions.begin() as db:
        make_sighting(db, db.get_one(Review, review.id), db.get_one(type(finding), finding.id))


# URLs -----------------------------------------------------------------------------------------


def test_a_plain_postgresql_url_means_the_driver_that_is_shipped() -> None:
    engine = make_engine("postgresql://user:secret@127.0.0.1:1/x")
    assert engine.driver == "psycopg" and engine.url.password == "secret"


@pytest.mark.parametrize("url", ["mysql://x/y", "sqlite://", "sqlite:///:memory:"])
def test_a_database_that_cannot_serve_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="database"):
        open_sessions(url)


def test_the_folder_of_a_sqlite_file_is_made(tmp_path: Path) -> None:
    opened = open_sessions(f"sqlite:///{tmp_path}/new/folder/x.sqlite3")
    with opened.reading() as db:
        assert db.scalar(text("SELECT 1")) == 1
    opened.close()


@pytest.mark.postgres
def test_a_server_that_fell_silent_is_noticed_soon_unless_the_address_says_otherwise(postgres_url: str) -> None:
    for address, expected in ((postgres_url, "10000"), (f"{postgres_url}&tcp_user_timeout=90000", "90000")):
        engine = make_engine(address)
        with engine.connect() as connection:
            known = connection.connection.dbapi_connection.info.get_parameters()  # type: ignore[union-attr]
        engine.dispose()
        assert known["tcp_user_timeout"] == expected and known["keepalives_idle"] == "10"
