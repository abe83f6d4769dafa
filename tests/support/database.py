"""Migrated databases for tests: a SQLite file, a real PostgreSQL, or both in turn.

`sessions` is SQLite and quick; `each_sessions` runs a test once on each; `postgres_sessions` is PostgreSQL.
Migrated once per test session, then copied.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.store.migrate import upgrade
from orchestrator.store.session import Sessions, open_sessions

BOTH = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("migrated") / "lamplighter.sqlite3"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(migrated_sqlite: Path, tmp_path: Path) -> str:
    copy = tmp_path / "lamplighter.sqlite3"
    shutil.copyfile(migrated_sqlite, copy)
    return f"sqlite:///{copy}"


@pytest.fixture
def sessions(sqlite_url: str) -> Iterator[Sessions]:
    opened = open_sessions(sqlite_url)
    yield opened
    opened.close()


@pytest.fixture
def postgres_sessions(postgres_url: str) -> Iterator[Sessions]:
    upgrade(postgres_url)
    opened = open_sessions(postgres_url)
    yield opened
    opened.close()


@pytest.fixture(params=BOTH)
def each_sessions(request: pytest.FixtureRequest) -> Sessions:
    name = "sessions" if request.param == "sqlite" else "postgres_sessions"
    opened: Sessions = request.getfixturevalue(name)
    return opened


@pytest.fixture(params=BOTH)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without any tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.sqlite3'}"
    url: str = request.getfixturevalue("postgres_url")
    return url
