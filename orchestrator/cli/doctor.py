"""`lamplighter doctor`: what on this machine would keep the service from working, each with what to do."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from orchestrator import logs, wiring
from orchestrator.cli import adopting, links
from orchestrator.cli.console import Format, err, out, plain_lines, print_json
from orchestrator.cli.links import Checked
from orchestrator.cli.start import Data, settings_of
from orchestrator.sandbox import package_index, select
from orchestrator.sandbox.contract import SandboxError
from orchestrator.services import host_lock, working
from orchestrator.services.errors import OutsideError
from orchestrator.settings import Settings

OLDEST_GIT = (2, 30)


def add_to(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    data: Data = None,
    only: Annotated[
        str, typer.Option("--only", help="Only these checks, comma-separated.", show_default="all", metavar="NAMES")
    ] = "",
    format: Annotated[Format, typer.Option("--format", help="text for people, json for programs.")] = Format.TEXT,
    minutes: Annotated[float, typer.Option(help="How long the check `quiet` measures.", min=0.01, max=600)] = 5.0,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="First write what installations need on this machine into config.toml.")
    ] = False,
) -> int:
    """Check all that reviews need, here and on the way to other machines. Exit status 3 if something is wrong."""
    names = chosen(only)
    settings = settings_of(data)
    if adopt:
        for line in adopting.adopt(settings):
            err().print(line, markup=False)
        settings = settings_of(data)
    logs.configure(settings.model_copy(update={"log_level": "error"}), "doctor")
    found = []
    for name in names:
        for one in check_quiet(settings, minutes) if name == "quiet" else CHECKS[name](settings):
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


def check_measuring(settings: Settings) -> Iterator[Checked]:
    from orchestrator.cli import quietness

    yield from quietness.check_settings(settings)


def check_quiet(settings: Settings, minutes: float = 5.0) -> Iterator[Checked]:
    """While a review runs here it would disturb that one, and be disturbed."""
    from orchestrator.cli import quietness  # loads scipy, which only this check needs

    try:
        with host_lock.held(settings.host_lock, "lamplighter doctor", give_up=lambda: True) as ours:
            if not ours:
                holder = host_lock.holder_of(settings.host_lock)
                yield Checked("quiet", False, f"a review runs ({holder}); ask again when it has ended")
                return
            yield from quietness.check_quiet(
                settings, minutes=minutes, say=lambda text: err().print(f"quiet: {text}", markup=False)
            )
    except OutsideError as error:
        yield Checked("quiet", False, str(error))


# In this order: what a check needs was looked at before it. The last is for a container's health check only.
CHECKS: dict[str, Callable[[Settings], Iterator[Checked]]] = {
    "python": check_python,
    "git": check_git,
    "disk": check_disk,
    "database": links.check_database,
    "broker": links.check_broker,
    "web": links.check_web,
    "sandbox": check_sandbox,
    "index": check_index,
    "machine": check_machine,
    "measuring": check_measuring,
    "node": links.check_node,
    "quiet": check_quiet,
    "engine": links.check_engine,
    "alive": links.check_alive,
}
ASKED_FOR = ("quiet", "engine", "alive")  # by --only


def chosen(only: str) -> list[str]:
    if not only:
        return [name for name in CHECKS if name not in ASKED_FOR]
    names = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: there are {', '.join(CHECKS)}.", param_hint="--only")
    return names
