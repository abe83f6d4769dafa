"""`lamplighter accounts`: who may log in, managed by whoever can read the database."""

import sys
from typing import Annotated

import typer

from orchestrator.cli.console import err, out
from orchestrator.cli.start import Data, opened, settings_of
from orchestrator.services import accounts
from orchestrator.services.errors import BadInput
from orchestrator.services.workshop import Workshop

rooms = typer.Typer(help="Who may log in to the pages and the API.", no_args_is_help=True, rich_markup_mode=None)
Name = Annotated[str, typer.Argument(help="Name of the account.", show_default=False)]
Stdin = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from standard input instead of asking for it.")
]


def add_to(app: typer.Typer) -> None:
    app.add_typer(rooms, name="accounts")


def shop_of(data: Data) -> Workshop:
    return opened(settings_of(data), "accounts")


@rooms.command("list")
def list_them(data: Data = None) -> None:
    """Show all accounts."""
    found = accounts.listed(shop_of(data))
    if not found:
        err().print("There is no account. Only this machine can use the service, and it asks nobody.", markup=False)
    for one in found:
        out().print(f"{one.name:<20} {'admin ' if one.admin else 'member'} {one.created_at:%Y-%m-%d}", markup=False)


@rooms.command()
def add(
    name: Name,
    admin: Annotated[bool, typer.Option("--admin", help="May make and remove accounts.")] = False,
    password_stdin: Stdin = False,
    data: Data = None,
) -> None:
    """Make an account. With the first one, everybody must log in."""
    shop = shop_of(data)
    first = not accounts.exist(shop)
    made = accounts.create(shop, name, read_password(password_stdin), admin=admin or first)
    err().print(f"{made.name} may log in now{' and is the admin' if made.admin else ''}.", markup=False)


@rooms.command()
def password(name: Name, password_stdin: Stdin = False, data: Data = None) -> None:
    """Set a new password. It ends all logins of the account."""
    shop = shop_of(data)
    found = accounts.by_name(shop, name)
    accounts.set_password(shop, found.name, read_password(password_stdin))
    err().print(f"The password of {found.name} is changed.", markup=False)


@rooms.command()
def remove(name: Name, data: Data = None) -> None:
    """Remove an account with its logins and tokens."""
    accounts.remove(shop_of(data), name)
    err().print(f"{name} is removed.", markup=False)


@rooms.command()
def token(
    name: Name,
    purpose: Annotated[str, typer.Option("--for", help="What the token is for.")] = "made on the command line",
    data: Data = None,
) -> None:
    """Make a token for the API and print it."""
    shop = shop_of(data)
    out().print(accounts.make_token(shop, accounts.by_name(shop, name).id, purpose), markup=False, soft_wrap=True)


def read_password(from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if not sys.stdin.isatty():
        raise BadInput("password", "There is no terminal to ask for the password; use --password-stdin.")
    given: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return given
