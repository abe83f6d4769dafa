"""The processes of the service one by one: web, worker, beat, migrate, engine-proxy. `up` starts the first three.

What only one of them needs is imported there, so that the other commands start in half the time.
"""

import socket
from pathlib import Path
from typing import Annotated

import typer

from orchestrator import logs, wiring
from orchestrator.cli.console import err
from orchestrator.cli.start import Data, bring_up_to_date, settings_of
from orchestrator.services import accounts
from orchestrator.services.errors import OutsideError
from orchestrator.settings import Settings
from orchestrator.store import migrate as migrations

LAST_REQUESTS_S = 3  # what is still being answered is cut after this when the server ends


def add_to(app: typer.Typer) -> None:
    app.command()(web)
    app.command()(worker)
    app.command()(beat)
    app.command()(migrate)
    app.command("engine-proxy")(engine_proxy)


def web(
    data: Data = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.", show_default="8750")] = None,
) -> None:
    """Serve the pages and the API."""
    from orchestrator.web.app import make_app
    from orchestrator.web.serving import Server, spare_what_is_loaded

    settings = settings_of(data, host=host, port=port)
    logs.configure(settings, "web")
    bring_up_to_date(settings)
    check_port(settings)
    shop = wiring.service(settings)
    application = make_app(shop, settings)
    if accounts.needed(shop) and not accounts.exist(shop):
        err().print(first_account(settings, application.state.setup_token), markup=False)
    spare_what_is_loaded()
    Server(
        application,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=settings.log_level == "debug",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=LAST_REQUESTS_S,
    ).run()


def first_account(settings: Settings, token: str) -> str:
    return (
        "There is no account yet, and others can reach this address: nothing is served but the page that makes one. "
        f"Open /setup there (port {settings.port}) and enter the token below, or run "
        f"`lamplighter accounts add NAME --admin`.\n\n    {token}\n"
    )


def worker(data: Data = None) -> None:
    """Do the reviews of this machine, one at a time."""
    from orchestrator.jobs.app import run_worker

    settings = settings_of(data)
    logs.configure(settings, "worker")
    bring_up_to_date(settings)
    run_worker(settings)


def beat(data: Data = None) -> None:
    """Queue what is scheduled, each minute."""
    from orchestrator.jobs.app import run_beat

    settings = settings_of(data)
    logs.configure(settings, "beat")
    bring_up_to_date(settings)
    run_beat(settings)


def migrate(data: Data = None) -> None:
    """Bring the database to this version."""
    settings = settings_of(data)
    logs.configure(settings, "migrate")
    migrations.upgrade(settings.database)
    err().print("The database is up to date.")


def engine_proxy(
    listen: Annotated[Path, typer.Option(help="Socket to make for the worker (LAMPLIGHTER_DOCKER_URL=unix://...).")],
    engine: Annotated[Path, typer.Option(help="The container engine's own socket.")] = Path("/var/run/docker.sock"),
    data: Data = None,
) -> None:
    """Offer a worker a socket of the container engine on which it can make sandboxes and nothing else."""
    from orchestrator.sandbox.engine_proxy import server

    settings = settings_of(data)
    logs.configure(settings, "engine-proxy")
    server.run(settings, listen, str(engine))


def check_port(settings: Settings) -> None:
    """Raises `OutsideError` when somebody else listens there."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((settings.host, settings.port))
        except OSError as error:
            raise OutsideError(
                f"Cannot listen on {settings.host} port {settings.port}: {error.strerror}. "
                "Something else may be using it; choose another one with --port.",
                retry=False,
            ) from None
