"""Backups on both databases and from one to the other: the same rows, one state, nothing believed that is damaged."""

import io
import json
import tarfile
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from orchestrator.services import backups
from orchestrator.services.errors import BadInput, NotNow
from orchestrator.settings import Settings
from orchestrator.store import backup, machines
from orchestrator.store.backup import BackupError
from orchestrator.store.logs import LogChunk
from orchestrator.store.migrate import SchemaError, configuration, locked, upgrade
from orchestrator.store.repos import Repo
from orchestrator.store.session import Sessions, make_engine, open_sessions
from tests.factories import NOON, make_chunk, make_repo, make_review, make_step
from tests.orchestrator.web.streets import build

NASTY = 'O\'Brien \\ "x" \n ␀ ünï 🏮 ; DROP TABLE repos;--'
Database = Callable[[str], Settings]


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """Settings on a new, empty database of the kind."""

    def made(kind: str) -> Settings:
        data = tmp_path / f"data{len(list(tmp_path.iterdir()))}"
        data.mkdir()
        url = request.getfixturevalue("postgres_server").make_schema() if kind == "postgresql" else ""
        return Settings(data=data, database_url=url)

    return made


def filled(settings: Settings) -> Sessions:
    upgrade(settings.database)
    sessions = open_sessions(settings.database)
    with sessions.begin() as db:
        build(db)
        repo = make_repo(db, name=NASTY, url=f"https://example.org/{NASTY}")
        step = make_step(db, make_review(db, repo))
        for seq in range(3):
            make_chunk(db, step, NASTY, seq=seq)
    return sessions


def digests(settings: Settings, place: Path) -> dict[str, tuple[int, str]]:
    place.mkdir()
    return {one.name: (one.rows, one.sha256) for one in backup.write(settings.database, place)[1]}


PG = pytest.mark.postgres
WAYS = [
    pytest.param("sqlite", "sqlite"),
    pytest.param("sqlite", "postgresql", marks=PG),
    pytest.param("postgresql", "sqlite", marks=PG),
    pytest.param("postgresql", "postgresql", marks=PG),
]


@pytest.mark.parametrize(("kind", "to"), WAYS)
def test_every_row_comes_back_in_either_database(database: Database, tmp_path: Path, kind: str, to: str) -> None:
    first, second = database(kind), database(to)
    filled(first).close()
    (first.data / "focuses").mkdir()
    (first.data / "focuses" / "own.toml").write_text("title = 'x'\n")
    (first.data / "focuses" / "own.j2").write_text("Look at x.\n")
    (first.data / "machine").write_text("a" * 32)
    file = backups.make(first, None, version="1.2")
    assert file.parent == first.data / "backups" and file.stat().st_mode & 0o777 == 0o600
    found = backups.restore(second, file, replace=False)
    assert (found.version, found.database) == ("1.2", kind)
    before, after = digests(first, tmp_path / "a"), digests(second, tmp_path / "b")
    assert before == after and sum(rows for rows, _ in after.values()) == found.rows > 100
    assert (second.data / "focuses" / "own.toml").read_text() == "title = 'x'\n"
    assert (second.data / "focuses" / "own.j2").read_text() == "Look at x.\n"
    assert (second.data / "machine").read_text() == "a" * 32
    sessions = open_sessions(second.database)
    with sessions.begin() as db:  # keys that the database counts go on behind the restored ones
        step = make_step(db, make_review(db))
        last = db.execute(text("SELECT max(id) FROM log_chunks")).scalar()
        assert last and make_chunk(db, step, "next", seq=1).id > last
    sessions.close()


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=PG)])
def test_a_backup_is_one_state_although_others_write_meanwhile(database: Database, kind: str) -> None:
    """Each writer's transaction adds a repo, then a review of it: without its repo it could not be restored."""
    first, second = database(kind), database(kind)
    sessions = filled(first)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            with sessions.begin() as db:
                make_review(db, make_repo(db))
            stop.wait(0.01)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        files = [backups.make(first, None, version="1") for _ in range(2)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sessions.close()
    counts = [backups.restore(second, file, replace=True).rows for file in files]
    assert counts == sorted(counts)
    again = open_sessions(second.database)
    with again.reading() as db:
        alone = "SELECT count(*) FROM reviews WHERE repo_id NOT IN (SELECT id FROM repos)"
        assert db.execute(text(alone)).scalar() == 0
    again.close()


def at_revision(settings: Settings, revision: str) -> None:
    engine = make_engine(settings.database)
    with locked(engine) as connection:
        config = configuration()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=PG)])
def test_a_backup_of_an_older_version_is_migrated_as_it_comes_back(database: Database, kind: str) -> None:
    old, new = database(kind), database(kind)
    at_revision(old, "0001")
    engine = make_engine(old.database)
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO machines (id, version) VALUES ('m', '0.1')"),
        )
    engine.dispose()
    found = backups.restore(new, backups.make(old, None, version="0.1"), replace=False)
    assert (found.revision, found.rows) == ("0001", 1)
    sessions = open_sessions(new.database)
    with sessions.reading() as db:
        assert [one.id for one in machines.listed(db)] == ["m"]
        assert db.execute(text("SELECT count(*) FROM accounts")).scalar() == 0  # of a later revision
    sessions.close()


def rewritten(file: Path, change: Callable[[dict[str, bytes]], Any]) -> Path:
    """The same archive with other members."""
    with tarfile.open(file) as tar:
        members = {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]
    change(members)
    made = file.with_name(f"changed{backups.ENDING}")
    with tarfile.open(made, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return made


def with_manifest(**values: Any) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        members["manifest.json"] = json.dumps({**json.loads(members["manifest.json"]), **values}).encode()

    return change


def test_a_backup_of_a_newer_version_is_refused_in_clear_words(database: Database, tmp_path: Path) -> None:
    first, second = database("sqlite"), database("sqlite")
    filled(first).close()
    filled(second).close()
    before = digests(second, tmp_path / "a")
    newer = rewritten(backups.make(first, None, version="9"), with_manifest(revision="9999"))
    with pytest.raises(SchemaError, match=r"by a newer Lamplighter.*9999.*Update Lamplighter.*Nothing was changed"):
        backups.restore(second, newer, replace=True)
    assert digests(second, tmp_path / "b") == before


def escape(members: dict[str, bytes]) -> None:
    members["../../escaped"] = b"x"


def named_escape(members: dict[str, bytes]) -> None:
    with_manifest(files={"../../escaped": "0" * 64})(members)
    members["files/../../escaped"] = b"x"


def one_byte(members: dict[str, bytes]) -> None:
    name = "database/repos.jsonl"
    members[name] = members[name].replace(b"main", b"mann", 1)


DAMAGE: dict[str, Callable[[dict[str, bytes]], Any]] = {
    "another byte": one_byte,
    "a table less": lambda members: members.pop("database/repos.jsonl"),
    "a file more": lambda members: members.update({"database/zz.jsonl": b"{}"}),
    "a path that leads out": escape,
    "a path that leads out, in the manifest": named_escape,
    "another form": with_manifest(lamplighter_backup=2),
    "a manifest without tables": with_manifest(tables=None),
    "no manifest": lambda members: members.pop("manifest.json"),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_backup_changes_nothing(database: Database, tmp_path: Path, how: str) -> None:
    settings = database("sqlite")
    filled(settings).close()
    before = digests(settings, tmp_path / "a")
    damaged = rewritten(backups.make(settings, None, version="1"), DAMAGE[how])
    with pytest.raises(BackupError):
        backups.restore(settings, damaged, replace=True)
    assert digests(settings, tmp_path / "b") == before
    assert not [path for path in tmp_path.rglob("*escaped*")]


def test_a_cut_off_file_and_one_of_something_else_are_refused(database: Database, tmp_path: Path) -> None:
    settings = database("sqlite")
    filled(settings).close()
    whole = backups.make(settings, None, version="1").read_bytes()
    for content in (whole[: len(whole) // 2], whole[: len(whole) * 9 // 10], b"", b"PK\3\4", bytes(1000)):
        file = tmp_path / "x.lamplighter-backup"
        file.write_bytes(content)
        with pytest.raises(BackupError, match="damaged"):
            backups.restore(settings, file, replace=True)
    with pytest.raises(BadInput, match="no file"):
        backups.restore(settings, tmp_path / "nothing", replace=True)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=PG)])
def test_a_database_that_cannot_say_whether_a_worker_runs_is_not_thrown_away(
    database: Database, tmp_path: Path, kind: str
) -> None:
    settings = database(kind)
    filled(settings).close()
    file = backups.make(settings, None, version="1")
    engine = make_engine(settings.database)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE machines RENAME COLUMN heartbeat TO pulse"))
    with pytest.raises(DBAPIError, match="heartbeat"):
        backups.restore(settings, file, replace=True)
    with engine.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM repos")).scalar()
    engine.dispose()


def test_what_cannot_be_read_is_not_called_damaged(database: Database, tmp_path: Path) -> None:
    settings = database("sqlite")
    filled(settings).close()
    with pytest.raises(BackupError, match="could not be unpacked") as told:
        backups.restore(settings, tmp_path, replace=True)
    assert "irectory" in str(told.value) and "damaged" not in str(told.value)


def test_what_is_there_is_thrown_away_only_when_asked_and_never_under_a_worker(
    database: Database, tmp_path: Path
) -> None:
    settings = database("sqlite")
    sessions = filled(settings)
    file = backups.make(settings, None, version="1")
    with pytest.raises(BackupError, match=r"not empty.*--replace"):
        backups.restore(settings, file, replace=False)
    with sessions.begin() as db:
        db.query(LogChunk).delete()
        machines.report(db, "working", datetime.now(UTC), worker_pid=1)
    with pytest.raises(NotNow, match="A worker runs on working"):
        backups.restore(settings, file, replace=True)
    with sessions.begin() as db:
        machines.report(db, "working", NOON, worker_pid=1)
    backups.restore(settings, file, replace=True)
    with sessions.reading() as db:
        assert db.query(LogChunk).count() > 0 and db.query(Repo).filter_by(name=NASTY).count() == 1
    sessions.close()


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=PG)])
def test_tables_of_somebody_else_in_the_same_database_are_left_alone(
    database: Database, tmp_path: Path, kind: str
) -> None:
    settings = database(kind)
    upgrade(settings.database)
    engine = make_engine(settings.database)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE theirs (id INTEGER PRIMARY KEY, secret TEXT)"))
        connection.execute(text("INSERT INTO theirs VALUES (1, 'kept')"))
    assert "theirs" not in digests(settings, tmp_path / "a")
    backups.restore(settings, backups.make(settings, None, version="1"), replace=True)
    with engine.begin() as connection:
        assert connection.execute(text("SELECT secret FROM theirs")).scalar() == "kept"
    engine.dispose()


def test_only_our_own_old_backups_are_removed(database: Database) -> None:
    settings = database("sqlite")
    upgrade(settings.database)
    made = [backups.make(settings, None, version="1") for _ in range(4)]
    folder = made[0].parent
    others = [folder / "holiday.lamplighter-backup", folder / "notes.txt"]
    for other in others:
        other.write_text("mine")
    gone = backups.forget_old(folder, keep=2, but=made[-1])
    assert gone == made[:2]
    assert {file.name for file in folder.iterdir()} == {file.name for file in (*made[2:], *others)}
    with pytest.raises(BadInput, match="there already"):
        backups.make(settings, others[0], version="1")
