import shutil
import sqlite3
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, text

from orchestrator.store import migrate
from orchestrator.store.session import make_engine
from orchestrator.store.tables import metadata

ROOT = Path(__file__).parents[3]


def test_from_empty_to_newest_gives_the_tables_of_the_models(empty_url: str) -> None:
    migrate.upgrade(empty_url)
    engine = make_engine(empty_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
        assert indexes_with_conditions(connection) == {"uq_reviews_waiting", "uq_reviews_running_on_machine"}
    migrate.require_current(engine)
    engine.dispose()


def indexes_with_conditions(connection) -> set[str]:  # type: ignore[no-untyped-def]
    """Partial indexes, which alembic's comparison does not look into."""
    found = set()
    for index in inspect(connection).get_indexes("reviews"):
        options = index.get("dialect_options", {})
        if any(name.endswith("_where") for name in options) and index["unique"]:
            found.add(str(index["name"]))
    return found


def test_upgrading_again_changes_nothing(empty_url: str) -> None:
    migrate.upgrade(empty_url)
    migrate.upgrade(empty_url)


def test_two_starters_at_once_migrate_once(empty_url: str) -> None:
    problems: list[BaseException] = []

    def start() -> None:
        try:
            ready.wait()
            migrate.upgrade(empty_url)
        except BaseException as error:
            problems.append(error)

    ready = threading.Barrier(4)
    starters = [threading.Thread(target=start) for _ in range(4)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join()
    assert problems == []


def test_a_database_that_a_newer_version_migrated_is_refused_with_what_to_do(empty_url: str) -> None:
    migrate.upgrade(empty_url)
    engine = make_engine(empty_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'from_the_future'"))
    with pytest.raises(migrate.SchemaError, match=r"from_the_future.*newer version has migrated it.*Update"):
        migrate.upgrade(empty_url)
    with pytest.raises(migrate.SchemaError, match="from_the_future"):
        migrate.require_current(engine)
    engine.dispose()


def test_an_empty_database_is_not_current_and_the_message_names_the_command(empty_url: str) -> None:
    engine = make_engine(empty_url)
    with pytest.raises(migrate.SchemaError, match="lamplighter migrate"):
        migrate.require_current(engine)
    engine.dispose()


def test_a_migration_that_fails_leaves_the_database_as_it_was(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_connection: object) -> None:
        raise migrate.SchemaError("planted")

    monkeypatch.setattr(migrate, "refuse_dangling", fail)
    with pytest.raises(migrate.SchemaError, match="planted"):
        migrate.upgrade(empty_url)
    engine = make_engine(empty_url)
    assert inspect(engine).get_table_names() == []
    engine.dispose()


def test_rows_that_refer_to_nothing_after_a_migration_undo_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'dangling.sqlite3'}"
    migrate.upgrade(url)
    raw = sqlite3.connect(tmp_path / "dangling.sqlite3")
    raw.execute("INSERT INTO logs (step_id, compressed, bytes) VALUES ('00', x'00', 0)")
    raw.commit()
    raw.close()
    with pytest.raises(migrate.SchemaError, match="not there"):
        migrate.upgrade(url)


@pytest.mark.slow
def test_the_wheel_carries_the_migrations_and_the_drafter(tmp_path: Path) -> None:
    source = tmp_path / "source"  # a copy, because building writes beside the sources
    for folder in ("orchestrator", "migrations", "review_agents", "inference_node"):
        shutil.copytree(ROOT / folder, source / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, source], check=True
    )
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = wheel.namelist()
    assert "orchestrator/_migrations/env.py" in names
    assert [name for name in names if name.startswith("orchestrator/_migrations/versions/0001_")]
    assert not [name for name in names if name.startswith("migrations/")]
    assert "inference_node/drafters/smollm2-135m-instruct/model.safetensors" in names
