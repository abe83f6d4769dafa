"""Fixtures by noun for the service's tests."""

from tests.support.database import (  # noqa: F401
    each_sessions,
    empty_url,
    migrated_sqlite,
    postgres_sessions,
    sessions,
    sqlite_url,
)
from tests.support.postgres import postgres_server, postgres_url  # noqa: F401
