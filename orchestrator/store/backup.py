"""The whole database as files that hold no database's dialect, and back again.

Written from one transaction that sees one state, so a service may go on working meanwhile. What is
written follows the tables that are there, not the models of this version: an older database is copied
before it is migrated. Loading makes the tables at the backup's own revision, fills them, then migrates;
all in one transaction, so that a failure leaves what was there before. SQLite and PostgreSQL read each
other's backups.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from alembic import command
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    DateTime,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    Text,
    Uuid,
    func,
    inspect,
    select,
    text,
)
from sqlalchemy.types import CHAR, TypeEngine

from orchestrator.store.base import UtcDateTime
from orchestrator.store.migrate import (
    SchemaError,
    configuration,
    locked,
    refuse_dangling,
    revision_of,
    scripts,
)
from orchestrator.store.session import Sessions, make_engine
from orchestrator.store.tables import metadata as ours_now

VERSIONS = "alembic_version"  # says which revision the tables are at; not a table of rows
FORMER: frozenset[str] = frozenset()  # tables that an earlier revision had and a later one dropped
ROWS_AT_ONCE = 500
TYPES: Mapping[str, TypeEngine[Any]] = {
    "uuid": Uuid(),
    "time": UtcDateTime(),
    "json": JSON(none_as_null=True),
    "bytes": LargeBinary(),
    "bool": Boolean(),
    "int": BigInteger(),
    "float": Float(),
    "text": Text(),
}


class BackupError(RuntimeError):
    """The backup cannot be made or cannot be used."""


@dataclass(frozen=True)
class Written:
    """One table's file."""

    name: str
    rows: int
    sha256: str


def write(url: str, folder: Path) -> tuple[str, list[Written]]:
    """One file per table in the folder; returns the revision and what was written."""
    sessions = Sessions(make_engine(url))
    try:
        with sessions.reading() as db:
            connection = db.connection()
            revision = revision_of(connection)
            if revision is None:
                raise BackupError("The database is empty, so there is nothing to back up.")
            found = [table for table in tables_of(connection) if table.name != VERSIONS]
            return revision, [write_table(connection, table, folder) for table in found]
    finally:
        sessions.close()


def write_table(connection: Connection, table: Table, folder: Path) -> Written:
    kinds = {column.name: kind_of(column) for column in table.columns}
    plain = plain_table(table.name, kinds)
    digest, rows = hashlib.sha256(), 0
    with (folder / file_name(table.name)).open("wb") as file:
        put(file, digest, json.dumps(kinds))
        keys = [plain.c[column.name] for column in table.primary_key.columns]
        for row in connection.execution_options(yield_per=ROWS_AT_ONCE).execute(select(plain).order_by(*keys)):
            put(file, digest, json.dumps([encoded(value) for value in row], ensure_ascii=False))
            rows += 1
    return Written(table.name, rows, digest.hexdigest())


def put(file: Any, digest: Any, line: str) -> None:
    data = line.encode("utf-8", "surrogatepass") + b"\n"
    digest.update(data)
    file.write(data)


def load(url: str, folder: Path, revision: str, names: list[str], *, replace: bool) -> None:
    """Fill the database from the files. Raises `BackupError`, `SchemaError`; then nothing has changed."""
    refuse_unknown(revision)
    engine = make_engine(url)
    try:
        with locked(engine) as connection:
            taken = rows_in(connection)
            if taken and not replace:
                raise BackupError(
                    f"The database is not empty ({taken} rows). Restore into an empty one, or say --replace to throw "
                    "away what is in it."
                )
            drop_all(connection)
            migrated(connection, revision)
            for table in tables_of(connection):
                if table.name in names:
                    fill(connection, table, folder)
            migrated(connection, "head")
            refuse_dangling(connection)
    finally:
        engine.dispose()


def refuse_unknown(revision: str) -> None:
    known = {one.revision for one in scripts().walk_revisions()}
    if revision not in known:
        raise SchemaError(
            f"The backup was made by a newer Lamplighter: its database is at revision {revision}, and this version "
            f"knows up to {scripts().get_current_head()}. Update Lamplighter, then restore. Nothing was changed."
        )


def fill(connection: Connection, table: Table, folder: Path) -> None:
    with (folder / file_name(table.name)).open("rb") as lines:
        kinds = json.loads(next(lines))
        unknown = kinds.keys() - {column.name for column in table.columns}
        if unknown or not set(kinds.values()) <= TYPES.keys():
            raise BackupError(f"The backup's table {table.name} has columns that are not known: {sorted(unknown)}.")
        plain = plain_table(table.name, kinds)
        for batch in batches(lines):
            rows = [dict(zip(kinds, map(decoded, kinds.values(), row), strict=True)) for row in batch]
            connection.execute(plain.insert(), rows)
    count_on(connection, table)


def count_on(connection: Connection, table: Table) -> None:
    """PostgreSQL counts keys by itself; it must go on behind those that were filled in."""
    if connection.dialect.name != "postgresql":
        return
    for column in table.primary_key.columns:
        if not isinstance(column.type, Integer):
            continue
        name = {"table": table.name, "column": column.name}
        sequence = connection.execute(text("SELECT pg_get_serial_sequence(:table, :column)"), name).scalar()
        if sequence:
            last = connection.execute(select(func.max(table.c[column.name]))).scalar()
            connection.execute(
                text("SELECT setval(:sequence, :last, :called)"),
                {"sequence": sequence, "last": last or 1, "called": last is not None},
            )


def migrated(connection: Connection, revision: str) -> None:
    config = configuration()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def drop_all(connection: Connection) -> None:
    for table in reversed(tables_of(connection)):
        table.drop(connection)


def rows_in(connection: Connection) -> int:
    found = [table for table in tables_of(connection) if table.name != VERSIONS]
    return sum(connection.execute(select(func.count()).select_from(table)).scalar() or 0 for table in found)


def tables_of(connection: Connection) -> list[Table]:
    """Ours as they are, each after those that it refers to. Others' tables may live in the same database."""
    metadata = MetaData()
    ours = ours_now.tables.keys() | FORMER | {VERSIONS}
    metadata.reflect(connection, only=sorted(ours.intersection(inspect(connection).get_table_names())))
    return metadata.sorted_tables


def plain_table(name: str, kinds: Mapping[str, str]) -> Table:
    return Table(name, MetaData(), *(Column(column, TYPES[kind]) for column, kind in kinds.items()))


def kind_of(column: Column[Any]) -> str:
    """What a column holds, whatever its database calls it. SQLite keeps ids as CHAR(32)."""
    kind = column.type
    if isinstance(kind, Uuid) or (isinstance(kind, CHAR) and kind.length == 32):
        return "uuid"
    for of, name in (
        (DateTime, "time"),
        (JSON, "json"),
        (LargeBinary, "bytes"),
        (Boolean, "bool"),
        (Integer, "int"),
        ((Float, Numeric), "float"),
        (String, "text"),
    ):
        if isinstance(kind, of):  # type: ignore[arg-type]
            return name
    raise BackupError(f"The column {column.table.name}.{column.name} has the type {kind!r}, which backups do not know.")


def encoded(value: Any) -> Any:
    if isinstance(value, UUID):
        return value.hex
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes | memoryview):
        return base64.b64encode(bytes(value)).decode()
    return value


def decoded(kind: str, value: Any) -> Any:
    if value is None:
        return None
    if kind == "uuid":
        return UUID(value)
    if kind == "time":
        return datetime.fromisoformat(value)
    if kind == "bytes":
        return base64.b64decode(value)
    return value


def batches(lines: Any) -> Iterator[list[list[Any]]]:
    batch = []
    for line in lines:
        batch.append(json.loads(line.decode("utf-8", "surrogatepass")))
        if len(batch) == ROWS_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


def file_name(table: str) -> str:
    return f"{table}.jsonl"
