"""Runs revisions on a connection that `orchestrator.store.migrate` hands in, in its transaction.

By hand (see alembic.ini) the database is named with `-x url=...`.
"""

from typing import Any

from alembic import context
from sqlalchemy import Connection, Enum

from orchestrator.store.session import make_engine
from orchestrator.store.tables import metadata


def plain_type(kind: str, type_: Any, autogen: Any) -> Any:
    """Our own column types as what they are in the database: a revision must outlive our models."""
    if kind != "type":
        return False
    module = type(type_).__module__
    if module.startswith("orchestrator."):
        return f"sa.{type_.impl_instance!r}".replace("none_as_null=True", "")
    if isinstance(type_, Enum):
        return f"sa.String(length={type_.length})"
    return False


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        render_item=plain_type,
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    with make_engine(context.get_x_argument(as_dictionary=True)["url"]).begin() as opened:
        run(opened)
