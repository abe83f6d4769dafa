"""Opens sessions on SQLite or PostgreSQL so that both behave alike.

Two kinds of transaction: `begin()` writes, `reading()` sees one unchanging state and cannot write.
On SQLite a transaction that first reads and then writes fails at once when another wrote in
between, whatever the timeout; so writers take the lock at their start (BEGIN IMMEDIATE) and
everybody else waits up to BUSY_TIMEOUT_S for it.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.orm import Session, sessionmaker

BUSY_TIMEOUT_S = 30
LOOK_AGAIN_S = 0.05
AS_NUMBERS = {"as_numbers": True}  # execution options of a statement with very many numbers in its result
# A server behind a cable that was pulled out says nothing: without these a statement would wait for a quarter of an
# hour, and much of that after the cable is back. Names and units are libpq's; the database's address may say others.
NOTICES_SILENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # milliseconds
}


class Sessions:
    """Where a process gets its database sessions. Safe to share between threads."""

    def __init__(self, engine: Engine):
        self.engine = engine
        options: dict[str, Any] = {"expire_on_commit": False}
        self._writing = sessionmaker(engine, **options)
        reader = engine.execution_options(reading=True)
        if engine.dialect.name == "postgresql":
            reader = reader.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._reading = sessionmaker(reader, **options)

    @contextmanager
    def begin(self) -> Iterator[Session]:
        """A writing transaction: committed at the end of the block, rolled back when it raises."""
        with self._writing.begin() as db:
            yield db

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A transaction that sees one state of the database throughout and cannot write."""
        with self._reading() as db:
            yield db

    def close(self) -> None:
        self.engine.dispose()


def open_sessions(url: str) -> Sessions:
    """Sessions on the database at the SQLAlchemy URL. Nothing is opened before the first use."""
    return Sessions(make_engine(url))


def make_engine(url: str) -> Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql":
        # A bare postgresql:// means the driver that we ship.
        patience = {name: value for name, value in NOTICES_SILENCE.items() if name not in parsed.query}
        server = create_engine(parsed.set(drivername="postgresql+psycopg"), pool_pre_ping=True, connect_args=patience)
        event.listen(server, "before_cursor_execute", as_numbers_where_asked)
        return server
    if parsed.get_backend_name() != "sqlite":
        raise ValueError(f"The database is {parsed.get_backend_name()!r}; sqlite and postgresql are known.")
    if not parsed.database or parsed.database == ":memory:":
        raise ValueError("A SQLite database must be a file, because several processes share it.")
    Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(parsed, connect_args={"timeout": BUSY_TIMEOUT_S})
    event.listen(engine, "connect", set_up_sqlite)
    event.listen(engine, "begin", begin_sqlite)
    return engine


def as_numbers_where_asked(_connection: Connection, cursor: Any, *told: Any) -> None:
    """Have psycopg ask for binary results, and not for every number as a text."""
    _statement, _parameters, context, _many = told
    if context is not None and context.execution_options.keys() >= AS_NUMBERS.keys():
        cursor.format = type(cursor.format).BINARY


def set_up_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver must not begin transactions by itself: begin_sqlite does
    cursor = connection.cursor()
    keep_a_log_ahead(cursor)  # readers and the writer do not wait for each other
    cursor.execute("PRAGMA synchronous = NORMAL")  # with WAL: a power cut may lose the last commits, never the file
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def keep_a_log_ahead(cursor: Any) -> None:
    """Of two processes that do so to a new file at once SQLite turns one away, without the patience asked for."""
    until = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(LOOK_AGAIN_S)


def begin_sqlite(connection: Connection) -> None:
    reading = connection.get_execution_options().get("reading", False)
    connection.exec_driver_sql(f"PRAGMA query_only = {'ON' if reading else 'OFF'}")
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
