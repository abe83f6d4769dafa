"""Brings a database to the tables that this version of the code knows.

All revisions run in one transaction that holds a lock from its start, so two starters cannot
migrate at once and a failed migration leaves the database as it was.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text

from orchestrator.store.session import make_engine

FOLDER = Path(__file__).parent.parent / "_migrations"  # in a checkout a link to migrations/, in the wheel a copy
LOCK = 0x1A3B_11E7  # any number; the same for all starters on one PostgreSQL database


class SchemaError(RuntimeError):
    """The database's tables are not those that this code knows."""


def upgrade(url: str) -> None:
    """Create or migrate the tables. Raises `SchemaError` when the database is newer than this code."""
    engine = make_engine(url)
    try:
        with locked(engine) as connection:
            refuse_newer(connection)
            config = configuration()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            refuse_dangling(connection)
    finally:
        engine.dispose()


def is_behind(url: str) -> bool:
    """Whether the database has tables, and of an older version. Raises `SchemaError` when of a newer one."""
    engine = make_engine(url)
    try:
        with engine.connect() as connection:
            refuse_newer(connection)
            return revision_of(connection) not in (None, scripts().get_current_head())
    finally:
        engine.dispose()


def require_current(engine: Engine) -> None:
    """Raise `SchemaError` unless the database is exactly at the newest revision of this code."""
    with engine.connect() as connection:
        refuse_newer(connection)
        found, newest = revision_of(connection), scripts().get_current_head()
    if found != newest:
        raise SchemaError(
            f"The database is at revision {found or 'none (it is empty)'}, this version of Lamplighter needs {newest}. "
            "Run `lamplighter migrate`."
        )


@contextmanager
def locked(engine: Engine) -> Iterator[Connection]:
    """A transaction that nobody else of us can hold at the same time."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            # Changing a table means copying it, and dropping the original would cascade. The switch does
            # nothing inside a transaction, so it goes through the driver before one begins.
            raw = connection.connection.dbapi_connection
            assert raw is not None
            raw.cursor().execute("PRAGMA foreign_keys = OFF")
        with connection.begin():  # SQLite: BEGIN IMMEDIATE, which is the lock
            if engine.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
            yield connection


def refuse_newer(connection: Connection) -> None:
    found = revision_of(connection)
    known = {revision.revision for revision in scripts().walk_revisions()}
    if found is not None and found not in known:
        raise SchemaError(
            f"The database is at revision {found}, which this version of Lamplighter does not know (its newest is "
            f"{scripts().get_current_head()}): a newer version has migrated it. Update Lamplighter, or restore a "
            "backup of the database from before."
        )


def refuse_dangling(connection: Connection) -> None:
    """With foreign keys off nothing checked them while SQLite's tables were copied; so check at the end."""
    if connection.dialect.name == "sqlite":
        dangling = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
        if dangling:
            raise SchemaError(f"After the migration rows refer to rows that are not there: {dangling[:5]}. Undone.")


def revision_of(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(configuration())


def configuration() -> Config:
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
