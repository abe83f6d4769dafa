"""Real workers on real queues, each on a data folder, host lock and machine of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from orchestrator import wiring
from orchestrator.services import reviews, submitting
from orchestrator.services.submitting import Submission
from orchestrator.services.views import ReviewPage
from orchestrator.services.workshop import Workshop
from orchestrator.settings import Settings
from orchestrator.store import migrate
from tests.support import tiny
from tests.support.boxes import bubblewrap, git
from tests.support.docker_engine import Engine, docker_engine
from tests.support.redis import RedisServer, redis_server  # noqa: F401
from tests.support.standin_images import ensure_sandbox_image
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[3]


@dataclass
class Service:
    """A data folder with workers on it."""

    settings: Settings
    shop: Workshop
    repo: Path
    engine: Engine | None = None  # where the boxes are Docker's
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "LAMPLIGHTER_HOST_LOCK": str(self.settings.host_lock),
            "LAMPLIGHTER_COMPARE_WITH": "none",
            "LAMPLIGHTER_MACHINE": self.settings.machine,
            "LAMPLIGHTER_BROKER_URL": self.settings.broker_url,
            "LAMPLIGHTER_LEASE_S": str(self.settings.lease_s),
            "LAMPLIGHTER_SANDBOX": self.settings.sandbox,
            "LAMPLIGHTER_SANDBOX_IMAGE": self.settings.sandbox_image,
            "LAMPLIGHTER_DOCKER_URL": self.settings.docker_url,
        }

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A tiny worker; `arguments` hold it up in a step."""
        return self.spawn("tests.support.tiny_worker", str(self.settings.data), *arguments)

    def spawn(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments], cwd=ROOT, env=self.environment(), stdout=log, stderr=log
            )
        self.processes.append(process)
        return process

    @property
    def log(self) -> Path:
        """What all its processes said."""
        return self.settings.data.with_name("log")

    def submit(self, **given: Any) -> UUID:
        return submitting.submit(self.shop, Submission(str(self.repo), from_cli=True, agents=False, **given))

    def page(self, review_id: UUID) -> ReviewPage:
        return reviews.get(self.shop, review_id)

    def ended(self, review_id: UUID, patience_s: float = 60.0) -> ReviewPage:
        wait_for(lambda: self.page(review_id).row.state.ended, patience_s)
        return self.page(review_id)

    def held_up(self) -> None:
        """Until the worker waits in its step."""
        wait_for((self.settings.data / "held").exists, 60.0)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()

    def boxes(self) -> list[str]:
        """What is left of this instance's boxes: processes, containers and volumes."""
        instance = (self.settings.data / "instance").read_text().strip()
        if self.engine is not None:
            ours = ("--filter", f"label=lamplighter.instance={instance}")
            lists = (("ps", "--all", "--format", "{{.Names}}"), ("volume", "ls", "--format", "{{.Name}}"))
            return [name for words in lists for name in self.engine.command(*words, *ours).split()]
        found = subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True).stdout
        running = [line for line in found.splitlines() if f"lamplighter.{instance}." in line]
        return running + [path.name for path in (self.settings.data / "sandbox" / "volumes").glob("*")]


@pytest.fixture(params=["filesystem", pytest.param("redis", marks=pytest.mark.redis)])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    """On either queue."""
    broker = ""
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        server.client().flushdb()
        broker = server.url()
    yield from running(tmp_path, broker)


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Service]:
    """On the queue of files."""
    yield from running(tmp_path, "")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with docker_engine(tmp_path_factory.mktemp("engine")) as engine:  # a short path: its sockets lie there
        yield engine


@pytest.fixture
def with_docker(engine: Engine, tmp_path: Path) -> Iterator[Service]:
    """On the queue of files, with boxes on an engine."""
    yield from running(tmp_path, "", engine)


def running(folder: Path, broker: str, engine: Engine | None = None) -> Iterator[Service]:
    boxes = (
        {"sandbox": "docker", "docker_url": engine.url, "sandbox_image": ensure_sandbox_image(engine)} if engine else {}
    )
    settings = Settings(
        data=folder / "data", host_lock=folder / "host.lock", machine=folder.name[-40:], broker_url=broker, **boxes
    )
    if engine is None:
        bubblewrap(settings)  # skips, loudly, where it does not work
    migrate.upgrade(settings.database)
    service = Service(settings, wiring.service(settings), tiny_repo(folder / "repo"), engine)
    yield service
    for process in service.processes:
        if process.poll() is None:
            service.kill(process)
    print(service.log.read_text() if service.log.exists() else "")
    service.shop.sessions.close()


def tiny_repo(folder: Path) -> Path:
    folder.mkdir()
    for name, text in tiny.FILES.items():
        (folder / name).write_text(text)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "tiny")
    return folder
