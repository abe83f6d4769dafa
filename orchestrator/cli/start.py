"""What every command begins with: settings from options and environment, a database at the right revision."""

import os
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer

from orchestrator import logs, wiring
from orchestrator.services import backups
from orchestrator.services.errors import OutsideError
from orchestrator.services.workshop import Workshop
from orchestrator.settings import Settings, load
from orchestrator.store import migrate
from orchestrator.store.session import make_engine

log = structlog.get_logger(__name__)

Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Folder of database, mirrors and sandboxes. Default: LAMPLIGHTER_DATA, else ~/.local/share/lamplighter.",
        show_default=False,
    ),
]


def settings_of(data: Path | None, **given: Any) -> Settings:
    """Settings with the options that were really given on top. Raises `SettingsError`."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if data is not None:
        chosen["data"] = data.expanduser().absolute()
    settings = load(**chosen)
    try:
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise OutsideError(
            f"The data folder {settings.data} cannot be made: {error.strerror}. Name another one with --data.",
            retry=False,
        ) from None
    return settings


def why_not(folder: Path) -> str:
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return "its file system is mounted read-only"
    return f"it belongs to user {folder.stat().st_uid} and this is user {os.geteuid()}"


def opened(settings: Settings, process: str) -> Workshop:
    """For commands in the foreground: a workshop on a database that is up to date."""
    quiet = settings.log_level == "info"  # what people wait for is on stderr already
    logs.configure(settings.model_copy(update={"log_level": "warning"}) if quiet else settings, process)
    bring_up_to_date(settings)
    return wiring.service(settings)


def bring_up_to_date(settings: Settings) -> None:
    """SQLite is ours alone and is migrated. A server's database is the operator's to migrate.

    Raises `OutsideError` where the database would lie in a folder that cannot be written.
    """
    if not settings.database_url and not os.access(settings.data, os.W_OK | os.X_OK):
        raise OutsideError(
            f"The data folder {settings.data} cannot be written: {why_not(settings.data)}. "
            "Name another one with --data.",
            retry=False,
        )
    if settings.database.startswith("sqlite"):
        backed_up_and_migrated(settings, None)
        return
    engine = make_engine(settings.database)
    try:
        migrate.require_current(engine)
    finally:
        engine.dispose()


def backed_up_and_migrated(settings: Settings, to: Path | None) -> Path | None:
    """The backup that was made before; None where there was nothing to save or nothing to migrate."""
    saved = None
    if migrate.is_behind(settings.database):
        saved = backups.make(settings, to, version=wiring.our_version(), why="before-upgrade")
        log.info("saved before the upgrade", file=str(saved))
    migrate.upgrade(settings.database)
    return saved
