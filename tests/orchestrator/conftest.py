"""Fixtures by noun for the service's tests."""

from tests.support.database import (  # noqa: F401
    each_sessions,
    empty_url,
    migrated_sqlite,
    postgres_sessions,
    sessions,
    sqlite_url,
)
from tests.support.model_servers import our_node, random_model, real_node, taught_llama  # noqa: F401
from tests.support.postgres import postgres_server, postgres_url  # noqa: F401
