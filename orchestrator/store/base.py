"""What all tables share: ids, UTC times, texts and JSON that every database accepts, names of constraints."""

import math
import re
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Any
from uuid import UUID, uuid4

from sqlalchemy import JSON, BigInteger, DateTime, Enum, Integer, MetaData, Text, TypeDecorator, Uuid
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, mapped_column

NAME_CHARS = 250
# PostgreSQL takes no NUL in a text, and neither database a lone surrogate. Both come out of repos.
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class UtcDateTime(TypeDecorator[datetime]):
    """An aware time, kept and given back in UTC. Refuses naive ones: whose clock they follow nobody knows."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone; the store takes aware times only")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class AnyText(TypeDecorator[str]):
    """A text of any length from anywhere; what cannot be stored is replaced visibly."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else storable(value)


class Name(TypeDecorator[str]):
    """A text that is looked up or unique. Longer than NAME_CHARS, its end gives way to a digest of it.

    An index row of PostgreSQL holds 2,704 bytes, and a hostile repo chooses some names.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else short(storable(value))


class AnyJson(TypeDecorator[Any]):
    """JSON whose texts are storable and whose numbers are finite (NaN and infinity become null)."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return storable_json(value)


def storable(text: str) -> str:
    """The text with NUL as the symbol ␀ and lone surrogates as the replacement character."""
    return UNSTORABLE.sub(lambda found: "␀" if found[0] == "\0" else "�", text)


def short(text: str) -> str:
    if len(text) <= NAME_CHARS:
        return text
    digest = sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
    return f"{text[: NAME_CHARS - 17]}…{digest}"


def storable_json(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {storable(str(key)): storable_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable_json(item) for item in value]
    return value


def choice(values: type[StrEnum]) -> Enum:
    """A closed list kept as its text, so that adding a value needs no migration."""
    return Enum(values, native_enum=False, create_constraint=False, length=24, values_callable=texts_of)


def texts_of(values: type[StrEnum]) -> list[str]:
    return [str(value) for value in values]


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {datetime: UtcDateTime(), str: AnyText(), UUID: Uuid(), Any: AnyJson()}  # noqa: RUF012


Key = Annotated[UUID, mapped_column(Uuid(), primary_key=True, default=uuid4)]
# SQLite counts up by itself only in a column declared INTEGER.
Counter = Annotated[int, mapped_column(BigInteger().with_variant(Integer(), "sqlite"), primary_key=True)]
