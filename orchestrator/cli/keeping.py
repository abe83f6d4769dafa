"""`backup`, `restore` and `upgrade`: that nothing is lost."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator import logs, wiring
from orchestrator.cli.console import err, out
from orchestrator.cli.start import Data, backed_up_and_migrated, settings_of
from orchestrator.services import backups


def add_to(app: typer.Typer) -> None:
    app.command()(backup)
    app.command()(restore)
    app.command()(upgrade)


def backup(
    to: Annotated[
        Path | None,
        typer.Option(
            help="Folder to put it in, or a file name ending in .lamplighter-backup.",
            show_default="backups in the data folder",
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(min=1, help="Remove older backups in that folder, all but this many.", show_default=False),
    ] = None,
    data: Data = None,
) -> None:
    """Save the database and the settings in one file, while everything goes on. Prints the file's name."""
    settings = settings_of(data)
    logs.configure(settings, "backup")
    made = backups.make(settings, to, version=wiring.our_version())
    out().print(str(made), markup=False, soft_wrap=True)
    for old in backups.forget_old(made.parent, keep=keep, but=made) if keep else ():
        err().print(f"removed {old.name}", markup=False)


def restore(
    file: Annotated[Path, typer.Argument(help="What `lamplighter backup` made.", show_default=False)],
    replace: Annotated[
        bool, typer.Option("--replace", help="Throw away what the database holds now, and the settings files.")
    ] = False,
    data: Data = None,
) -> None:
    """Bring a backup back, into SQLite or PostgreSQL, whichever it came from. End web, worker and beat first."""
    settings = settings_of(data)
    logs.configure(settings, "restore")
    found = backups.restore(settings, file, replace=replace)
    err().print(f"Restored {found.rows} rows of {found.made_at}, made by version {found.version}.", markup=False)


def upgrade(
    to: Annotated[
        Path | None, typer.Option(help="Folder for the backup.", show_default="backups in the data folder")
    ] = None,
    data: Data = None,
) -> None:
    """Back the database up, then bring it to this version. Does nothing where it is at this version already."""
    settings = settings_of(data)
    logs.configure(settings, "upgrade")
    saved = backed_up_and_migrated(settings, to)
    if saved is not None:
        err().print(f"Saved before: {saved}", markup=False, soft_wrap=True)
    err().print("The database is up to date.")
