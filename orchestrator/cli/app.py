"""All commands, and how they fail: one clear message and an exit status, never a traceback."""

import os
import sys

import typer
from sqlalchemy.exc import SQLAlchemyError

from orchestrator.cli import accounts, doctor, keeping, listing, measurements, processes, reviewing, up
from orchestrator.cli.console import err, plain_lines
from orchestrator.sandbox.contract import SandboxError
from orchestrator.services.errors import BadInput, ImpossibleRequest, OutsideError
from orchestrator.settings import SettingsError
from orchestrator.store.backup import BackupError
from orchestrator.store.migrate import SchemaError

DONE, WRONG_USE, OUTSIDE, INTERRUPTED = 0, 2, 3, 130
# Typer's errors derive from Click's, which some of its versions carry inside and others depend on.
WrongUse: type[Exception] = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

HELP = """Reviews your repositories every night with local models, and proves what it finds.

`lamplighter up` starts everything on this machine; `lamplighter review TARGET` does one review here and now.

Settings come from LAMPLIGHTER_ variables or from config.toml in the data folder.

Exit status: 0 done, 1 findings at or above --fail-on, 2 wrong use, 3 something outside failed,
so that nothing could be checked or done."""

app = typer.Typer(
    help=HELP, no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)
for room in (up, reviewing, listing, measurements, processes, accounts, keeping, doctor):
    room.add_to(app)


def run() -> int:
    """The exit status of the command in sys.argv."""
    try:
        status = app(standalone_mode=False)
    except typer.Abort:
        return complain("Stopped.", INTERRUPTED)
    except WrongUse as error:
        error.show()  # type: ignore[attr-defined]
        return WRONG_USE
    except BadInput as error:
        return complain(error.message, WRONG_USE)
    except (ImpossibleRequest, SettingsError) as error:
        return complain(str(error), WRONG_USE)
    except (OutsideError, SandboxError, SchemaError, BackupError) as error:
        return complain(str(error), OUTSIDE)
    except SQLAlchemyError as error:
        said = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        return complain(f"The database does not answer: {said}. Look at LAMPLIGHTER_DATABASE_URL.", OUTSIDE)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        return complain("Stopped.", INTERRUPTED)
    return status if isinstance(status, int) else DONE


def complain(message: str, status: int) -> int:
    err().print(f"lamplighter: {plain_lines(message)}", markup=False)
    return status
