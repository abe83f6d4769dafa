"""`lamplighter backup`, `restore` and `upgrade` as one types them."""

import sqlite3
from pathlib import Path

from orchestrator.settings import Settings
from tests.orchestrator.cli.conftest import Command
from tests.orchestrator.services.test_backups import at_revision


def test_what_is_backed_up_is_restored(lamplighter: Command, tmp_path: Path) -> None:
    lamplighter("migrate")
    place = tmp_path / "data" / "lamplighter.sqlite3"
    with sqlite3.connect(place) as db:
        db.execute("INSERT INTO machines (id, version) VALUES ('kept', '1')")
    first, second = (lamplighter("backup", "--to", str(tmp_path / "safe"), "--keep", "1") for _ in range(2))
    assert first.status == second.status == 0
    assert "removed" in second.err and not Path(first.out.strip()).exists()
    place.unlink()
    said = lamplighter("restore", second.out.strip())
    assert said.status == 0 and said.err.startswith("Restored 1 rows of ")
    with sqlite3.connect(place) as db:
        assert db.execute("SELECT id FROM machines").fetchall() == [("kept",)]
    assert lamplighter("restore", second.out.strip()).status == 3  # not empty any more
    assert lamplighter("restore", str(tmp_path / "nothing")).status == 2


def test_an_upgrade_saves_the_database_first_and_once(lamplighter: Command, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    at_revision(Settings(data=data), "0002")
    said = lamplighter("upgrade")
    assert said.status == 0 and "Saved before: " in said.err
    assert lamplighter("upgrade").err == "The database is up to date.\n"
    saved = list((data / "backups").iterdir())
    assert [file.name.endswith("-before-upgrade.lamplighter-backup") for file in saved] == [True]
    with sqlite3.connect(data / "lamplighter.sqlite3") as db:
        db.execute("UPDATE alembic_version SET version_num = '9999'")
    newer = lamplighter("upgrade")
    assert newer.status == 3 and "a newer version has migrated it" in newer.err


def test_starting_anything_on_an_older_database_saves_it_too(lamplighter: Command, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    at_revision(Settings(data=data), "0001")
    assert lamplighter("repos").status == 0
    assert len(list((data / "backups").iterdir())) == 1
