"""Whether the service can do anything at all: its database answers."""

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from orchestrator.services.errors import OutsideError
from orchestrator.services.workshop import Workshop


def check_database(shop: Workshop) -> None:
    """Ask the database for something that needs its tables. Raises `OutsideError` when it does not answer."""
    try:
        with shop.sessions.reading() as db:
            db.execute(text("SELECT count(*) FROM machines"))
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise OutsideError(
            f"The database does not answer: {reason}. Look at LAMPLIGHTER_DATABASE_URL, and run `lamplighter migrate`.",
            retry=True,
        ) from error
