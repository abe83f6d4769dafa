"""`lamplighter doctor`: what on this machine would keep the service from working, each with what to do."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import typer
from sqlalchemy.exc import SQLAlchemyError

from orchestrator import logs, wiring
from orchestrator.cli import adopting
from orchestrator.cli.console import Format, err, out, plain_lines, print_json
from orchestrator.cli.start import Data, settings_of
from orchestrator.sandbox import package_index, select
from orchestrator.sandbox.contract import SandboxError
from orchestrator.services import host_lock, working
from orchestrator.services.errors import OutsideError
from orchestrator.settings import Settings
from orchestrator.store import migrate
from orchestrator.store.session import make_engine

OLDEST_GIT = (2, 30)


@dataclass(frozen=True, slots=True)
class Checked:
    """One look. `ok` is None where it is only worth knowing."""

    thing: str
    ok: bool | None
    said: str


def add_to(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    data: Data = None,
    format: Annotated[Format, typer.Option("--format", help="text for people, json for programs.")] = Format.TEXT,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="First write what installations need on this machine into config.toml.")
    ] = False,
) -> int:
    """Check everything that reviews need on this machine. Exit status 3 if something is wrong."""
    settings = settings_of(data)
    if adopt:
        for line in adopting.adopt(settings):
            err().print(line, markup=False)
        settings = settings_of(data)
    logs.configure(settings.model_copy(update={"log_level": "error"}), "doctor")
    found = []
    for check in CHECKS:
        for one in check(settings):
            found.append(one)
            if format is Format.TEXT:
                mark = {True: "ok  ", False: "BAD ", None: "    "}[one.ok]
                out().print(f"{mark} {one.thing}: {plain_lines(one.said)}", markup=False)
    if format is Format.JSON:
        print_json([{"thing": one.thing, "ok": one.ok, "said": one.said} for one in found])
    return 3 if any(one.ok is False for one in found) else 0


def check_python(settings: Settings) -> Iterator[Checked]:
    yield Checked("lamplighter", None, f"{wiring.our_version()} on Python {sys.version.split()[0]}")
    yield Checked("data", None, str(settings.data))


def check_git(settings: Settings) -> Iterator[Checked]:
    try:
        said = subprocess.run(["git", "--version"], capture_output=True, text=True, timeout=10).stdout.strip()
        version = tuple(int(part) for part in said.split()[2].split(".")[:2])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        yield Checked("git", False, "it is missing. Install it with the system's package manager.")
        return
    old = version < OLDEST_GIT
    yield Checked("git", not old, f"{said}, older than 2.30. Install a newer one." if old else said)


def check_disk(settings: Settings) -> Iterator[Checked]:
    free = shutil.disk_usage(settings.data).free
    enough = free >= settings.free_disk_bytes
    words = f"{free >> 20} MiB free below {settings.data}"
    yield Checked(
        "disk", enough, words if enough else f"{words}; no review starts below {settings.free_disk_bytes >> 20} MiB"
    )


def check_database(settings: Settings) -> Iterator[Checked]:
    kind = "SQLite" if settings.database.startswith("sqlite") else "PostgreSQL"
    engine = make_engine(settings.database)
    try:
        migrate.require_current(engine)
    except migrate.SchemaError as error:
        yield Checked("database", None if kind == "SQLite" else False, f"{kind}: {error}")
    except SQLAlchemyError as error:
        said = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        yield Checked("database", False, f"{kind} does not answer: {said}")
    else:
        yield Checked("database", True, f"{kind}, up to date")
    finally:
        engine.dispose()


def check_broker(settings: Settings) -> Iterator[Checked]:
    if settings.broker.startswith("filesystem:"):
        yield Checked("broker", True, "files in the data folder")
        return
    from celery import Celery

    app = Celery("doctor", set_as_current=False)
    app.conf.update(wiring.celery_settings(settings))
    try:
        with app.connection_for_write(connect_timeout=3) as connection:
            connection.ensure_connection(max_retries=0, timeout=3)
    except Exception as error:  # whatever a broker's client can raise
        yield Checked("broker", False, f"it does not answer: {error}. Look at LAMPLIGHTER_BROKER_URL.")
    else:
        yield Checked("broker", True, "it answers")


def check_sandbox(settings: Settings) -> Iterator[Checked]:
    choice = select.consider(settings, None)
    yield Checked("sandbox", choice.sandbox is not None, choice.words)
    if choice.sandbox is not None:
        try:
            missing = choice.sandbox.describe().missing_limits
        except SandboxError as error:
            yield Checked("sandbox", False, str(error))
            return
        for limit in missing:
            yield Checked("sandbox", None, f"cannot limit: {limit}")


def check_index(settings: Settings) -> Iterator[Checked]:
    way = package_index.try_way(settings)
    if way.open:
        yield Checked("package index", True, f"{way.index} can be reached from install steps")
        return
    yield Checked("package index", False, adopting.explain(settings, way))


def check_machine(settings: Settings) -> Iterator[Checked]:
    machine = wiring.machine_id(settings)
    try:
        free = host_lock.is_free(settings.host_lock)
        alive = working.worker_alive(settings, machine)
    except OutsideError as error:
        yield Checked("host lock", False, str(error))
        return
    holder = "nobody reviews now" if free else f"reviewing now: {host_lock.holder_of(settings.host_lock)}"
    yield Checked("host lock", True, f"{settings.host_lock}; {holder}")
    yield Checked("worker", None, f"machine {machine}: {'a worker runs' if alive else 'no worker runs'}")


def check_node(settings: Settings) -> Iterator[Checked]:
    node = wiring.node(settings)
    if node is None:
        yield Checked("node", None, "none is configured: reviews are evidence only (LAMPLIGHTER_MODEL_URL)")
        return
    health = node.health()
    words = f"{settings.model_url}: " + (f"models {', '.join(health.models)}" if health.reachable else health.problem)
    yield Checked("node", health.reachable, words)


CHECKS: tuple[Callable[[Settings], Iterator[Checked]], ...] = (
    check_python, check_git, check_disk, check_database, check_broker, check_sandbox, check_index, check_machine,
    check_node,
)  # fmt: skip
