"""A whole service of real processes on which things are killed, cut off, filled up and set back, for the fault cases.

    with stage(folder, sandbox="bubblewrap") as one:
        review_id = one.submit(one.new_repo())

Redis, PostgreSQL and (for sandbox="docker") an engine are its own, as are the worker's and the node's network
namespaces: the worker reaches database and queue by one cable and the node by another, and each can be pulled out.
The data folder is a small disk. Nothing is shared with whatever else runs on this machine.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
import redis
from sqlalchemy import func, select

from orchestrator import wiring
from orchestrator.services import reviews
from orchestrator.services.views import ReviewPage
from orchestrator.services.workshop import Workshop
from orchestrator.settings import PREFIX, Settings
from orchestrator.store import migrate
from orchestrator.store.findings import Sighting
from orchestrator.store.logs import Log
from orchestrator.store.measurements import MeasurementRow
from orchestrator.store.reviews import Review
from orchestrator.store.steps import Step, StepState
from tests.support import tiny
from tests.support.boxes import bubblewrap, git
from tests.support.docker_engine import Engine, docker_engine, wait_until_it_answers
from tests.support.host_settings import written
from tests.support.measured_repo import FILES as MEASURED
from tests.support.measured_repo import PLAIN, commit
from tests.support.postgres import PostgresServer, binaries, free_port, may_run
from tests.support.redis import RedisServer
from tests.support.stage_process import CONTROL
from tests.support.standin_images import ensure_sandbox_image
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
LEASE_S = 4.0  # so that twenty seconds are five leases: as minutes are at the usual lease of one
DISK_BYTES = 420 << 20
FLOOR_BYTES = 32 << 20
NET = os.getpid() % 250  # so that two of these do not meet
HOST, WORKER = f"10.215.{NET}.1", f"10.215.{NET}.2"  # the cable between this machine and the worker
WORKER_TO_NODE, NODE = f"10.216.{NET}.1", f"10.216.{NET}.2"  # the cable between the worker and the node
OTHER_CLOCK = Path(__file__).with_name("other_clock.c")
NAMES = ("worker", "beat", "web", "node")


@dataclass
class Stage:
    folder: Path
    settings: Settings
    shop: Workshop
    redis: "Queue"
    postgres: "Database"
    network: "Network"
    node_port: int
    engine: Engine | None
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    faked_clock: bool = False  # for worker and beat that are started from now on
    set_back: bool = False  # whether those that run have one

    # Processes ---------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """One of NAMES, or `other worker`: a worker of another machine."""
        if name == "node":
            command = [*self.network.inside("node"), sys.executable, "-m", "tests.support.scripted_node"]
            command += ["0.0.0.0", str(self.node_port)]
        else:
            kind = name.split()[-1]
            command = [*(self.network.inside("worker") if kind == "worker" else ())]
            command += [sys.executable, "-m", "tests.support.stage_process", kind]
        with (self.folder / f"{name.replace(' ', '-')}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, cwd=ROOT, env=self.environment(name), stdout=log, stderr=log, start_new_session=True
            )

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        process = self.processes.pop(name)
        process.send_signal(number)
        process.wait(20)

    def heal(self) -> None:
        """Everything runs, answers, and is as it should be."""
        self.network.mend()
        (self.settings.data / "filler").unlink(missing_ok=True)
        for path in self.control.iterdir():
            path.unlink()
        if not self.redis.alive():
            self.redis.start()
        if not self.postgres.alive():
            self.postgres.start()
        if self.engine is not None and not self.engine.alive():
            start_engine(self.engine)
        for name in NAMES:
            if name not in self.processes or self.processes[name].poll() is not None:
                self.start(name)
        wait_for(self.answers, 40, "the service is not up")

    def answers(self) -> bool:
        with suppress(httpx.HTTPError):
            ready = httpx.get(f"{self.url}/health/ready", timeout=5).status_code == 200
            return ready and self.worker_is_up()
        return False

    def worker_is_up(self) -> bool:
        """Whether the worker that we started has reported itself."""
        from orchestrator.store import machines

        with self.shop.sessions.reading() as db:
            pids = {row.worker_pid for row in machines.listed(db) if row.id == self.settings.machine}
        return self.processes["worker"].pid in pids

    def end(self) -> None:
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.processes.clear()

    def environment(self, name: str) -> dict[str, str]:
        alone = {key: value for key, value in os.environ.items() if not key.startswith(PREFIX)}
        given = {f"{PREFIX}{key.upper()}": written(value) for key, value in self.given(name).items()}
        if self.faked_clock and name.split()[-1] in ("worker", "beat"):
            given |= {"LD_PRELOAD": str(self.folder / "other_clock.so"), "OTHER_CLOCK": str(self.folder / "clock")}
        return {**alone, **given}

    def given(self, name: str) -> dict[str, Any]:
        found = self.settings.model_dump(include=self.settings.model_fields_set)
        if name == "other worker":
            other = self.folder / "other"
            (other / CONTROL).mkdir(parents=True, exist_ok=True)
            found |= {"data": other, "machine": f"{self.settings.machine}-other", "host_lock": other / "host.lock"}
        return found

    def set_clock(self, seconds: int) -> None:
        """For processes with a faked clock, at once."""
        changed = self.folder / "clock.new"
        changed.write_text(f"{seconds}\n")
        changed.rename(self.folder / "clock")

    # Reviews -----------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.settings.port}"

    def new_repo(self, *, measured: bool = False) -> Path:
        """One commit; `measured`: of two, which are installed and timed beside each other."""
        folder = self.folder / "repos" / uuid4().hex[:12]
        if measured:
            commit(folder, "First", {**MEASURED, **tiny.FILES, "tortoise/__init__.py": PLAIN})
            commit(folder, "Say what walking is", {"tortoise/__init__.py": f'"""Walks."""\n\n{PLAIN}'})
            return folder
        folder.mkdir(parents=True)
        for name, text in tiny.FILES.items():
            (folder / name).write_text(text)
        git(folder, "init", "-q", "-b", "main")
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", "tiny")
        return folder

    def submit(self, repo: Path) -> UUID:
        """By the API of the web process."""
        asked = {"target": str(repo), "focuses": ["correctness"]}
        answer = httpx.post(f"{self.url}/api/reviews", json=asked, timeout=20)
        assert answer.status_code == 201, answer.text
        return UUID(answer.json()["id"])

    def page(self, review_id: UUID) -> ReviewPage:
        return reviews.get(self.shop, review_id)

    # Holding up --------------------------------------------------------------------------

    @property
    def control(self) -> Path:
        return self.settings.data / CONTROL

    def hold(self, step: str, when: str) -> None:
        (self.control / "go").unlink(missing_ok=True)
        (self.control / "held").unlink(missing_ok=True)
        (self.control / "hold").write_text(f"{step} {when}")

    def held(self) -> bool:
        return (self.control / "held").exists()

    def release(self) -> None:
        (self.control / "go").write_text("")

    # What is there -----------------------------------------------------------------------

    def census(self) -> dict[UUID, tuple[Any, ...]]:
        """Of each ended review: its state and how many rows it has of each kind."""
        with self.shop.sessions.reading() as db:
            ended = db.execute(select(Review.id, Review.state).where(Review.finished_at.is_not(None))).all()
            counted: list[dict[UUID, int]] = []
            for table in (Step, Sighting, MeasurementRow):
                found = db.execute(select(table.review_id, func.count()).group_by(table.review_id))
                counted.append({row[0]: row[1] for row in found})
            logs = db.execute(
                select(Step.review_id, func.count()).join(Log, Log.step_id == Step.id).group_by(Step.review_id)
            )
            counted.append({row[0]: row[1] for row in logs})
            done = select(Step.review_id, func.count()).where(Step.state == StepState.DONE).group_by(Step.review_id)
            counted.append({row[0]: row[1] for row in db.execute(done)})
        return {review_id: (state, *(count.get(review_id, 0) for count in counted)) for review_id, state in ended}

    def left_over(self) -> list[str]:
        """Boxes, volumes, cgroups and folders of reviews that are over, wherever they are."""
        found = []
        for data in (self.settings.data, self.folder / "other"):
            if not (data / "instance").exists():
                continue
            instance = (data / "instance").read_text().strip()
            volumes = (path.name for path in (data / "sandbox" / "volumes").glob("*"))
            found += [name for name in volumes if not name.startswith("trial-")]  # of a worker that was killed: later
            found += [str(path) for path in (data / "mirrors").glob("view-*")]
            said = subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True).stdout
            found += [line[:160] for line in said.splitlines() if f"lamplighter.{instance}." in line]
            for parent in Path("/sys/fs/cgroup").glob(f"*/lamplighter.{instance}"):
                with suppress(FileNotFoundError):  # it went with its last box
                    found += [str(path) for path in parent.iterdir() if path.is_dir() and "trial-" not in path.name]
            if self.engine is not None:
                ours = ("--filter", f"label=lamplighter.instance={instance}")
                for words in (("ps", "--all", "--format", "{{.Names}}"), ("volume", "ls", "--format", "{{.Name}}")):
                    found += self.engine.command(*words, *ours).split()
        return found

    def fill_disk(self) -> None:
        """To the last byte."""
        with (self.settings.data / "filler").open("wb", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                with suppress(OSError):
                    while file.write(b"\0" * size) == size:
                        pass


# What it stands on -------------------------------------------------------------------------


class Queue(RedisServer):
    """Redis where the worker's cable ends, too."""

    def url(self, database: int = 0) -> str:
        return f"redis://{HOST}:{self.port}/{database}"

    def start(self) -> None:
        command = [self._binary, "--port", str(self.port), "--bind", "127.0.0.1", HOST, "--protected-mode", "no"]
        command += ["--dir", str(self._folder), "--save", "", "--appendonly", "yes"]
        command += ["--maxmemory-policy", "noeviction"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)

        def up() -> bool:
            with suppress(redis.ConnectionError):
                return bool(self.client().ping())
            return False

        wait_for(up, 20, "redis-server did not start")

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def is_read(self, but: Collection[bytes] = ()) -> bool:
        """No message waits, and none is in somebody's hands, but for those: of workers that were killed."""
        queue = self.client()
        return self.in_hands() <= set(but) and not any(queue.type(key) == b"list" for key in queue.keys("*"))

    def in_hands(self) -> set[bytes]:
        """Messages that somebody took and has not answered for."""
        return set(self.client().hkeys("unacked"))

    def lose_everything(self) -> None:
        """Killed, its files gone."""
        self.stop()
        shutil.rmtree(self._folder)
        self._folder.mkdir()


class Database(PostgresServer):
    """PostgreSQL where the worker's cable ends, too."""

    def __init__(self, where: Path, folder: Path, port: int):
        super().__init__(where, folder, port)
        with (folder / "data" / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 10.215.0.0/16 trust\n")

    def start(self) -> None:
        options = f"-p {self.port} -h 127.0.0.1,{HOST} -k {self.folder} -F"  # -F: no fsync; no power is cut here
        for attempt in range(20):
            try:
                self.call("pg_ctl", "start", "-w", "-l", str(self.folder / "server.log"), "-o", options)
                return
            except RuntimeError:  # the last of the killed processes still holds the shared memory
                if attempt == 19:
                    raise
                time.sleep(0.3)

    def alive(self) -> bool:
        with suppress(psycopg.OperationalError):
            where = {"host": "127.0.0.1", "port": self.port, "user": "lamplighter", "dbname": "postgres"}
            psycopg.connect(**where, connect_timeout=3).close()  # type: ignore[arg-type]
            return True
        return False

    def kill(self) -> None:
        """kill -9 of the whole server."""
        main = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        family = [main, *children_of(main)]
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family), 10, "the server does not die")


class Network:
    """Two network namespaces and their cables."""

    def __init__(self) -> None:
        number = os.getpid() % 100_000
        self.names = {name: f"lamplighter-{name}-{number}" for name in ("worker", "node")}
        self.cables = {"worker": f"lf{number}a", "node": f"lf{number}c"}  # one end of each
        self.ends = {"worker": f"lf{number}b", "node": f"lf{number}d"}

    def inside(self, name: str) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self.names[name]}", "--"]

    def make(self) -> None:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            pytest.skip("network namespaces need root and ip (apt-get install iproute2)")
        worker, node = self.names["worker"], self.names["node"]
        try:
            for name in (worker, node):
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
            ip("link", "add", self.cables["worker"], "type", "veth", "peer", "name", self.ends["worker"])
            ip("link", "set", self.ends["worker"], "netns", worker)
            ip("link", "add", self.cables["node"], "type", "veth", "peer", "name", self.ends["node"])
            ip("link", "set", self.cables["node"], "netns", worker)
            ip("link", "set", self.ends["node"], "netns", node)
        except subprocess.CalledProcessError as error:
            self.remove()
            if "Operation not permitted" not in error.stderr:
                raise RuntimeError(f"{' '.join(error.cmd)}: {error.stderr.strip()}") from None
            pytest.skip(f"no network namespaces can be made here: {error.stderr.strip()}")
        ip("address", "add", f"{HOST}/24", "dev", self.cables["worker"])
        ip("-n", worker, "address", "add", f"{WORKER}/24", "dev", self.ends["worker"])
        ip("-n", worker, "address", "add", f"{WORKER_TO_NODE}/24", "dev", self.cables["node"])
        ip("-n", node, "address", "add", f"{NODE}/24", "dev", self.ends["node"])
        self.mend()

    def cut(self, name: str) -> None:
        """Pull out the cable at the far end: what is sent is lost, and nobody is told."""
        ip("-n", self.names[name], "link", "set", self.ends[name], "down")

    def mend(self) -> None:
        worker = self.names["worker"]
        ip("link", "set", self.cables["worker"], "up")
        ip("-n", worker, "link", "set", self.ends["worker"], "up")
        ip("-n", worker, "link", "set", self.cables["node"], "up")
        ip("-n", self.names["node"], "link", "set", self.ends["node"], "up")

    def remove(self) -> None:
        subprocess.run(["ip", "link", "delete", self.cables["worker"]], capture_output=True)
        for name in self.names.values():
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def start_engine(engine: Engine) -> None:
    """A killed engine again, as it was started.

    Its containerd died with it. Without an init system nobody buries that, and the engine would wait for it to answer.
    """
    (engine.log.parent / "exec" / "containerd" / "containerd.pid").unlink(missing_ok=True)
    engine.process = subprocess.Popen(
        engine.process.args, cwd=engine.log.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_until_it_answers(engine, "version")


@contextmanager
def small_disk(place: Path) -> Iterator[None]:
    place.mkdir(parents=True)
    size = f"size={DISK_BYTES},mode=755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "lamplighter-test", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], capture_output=True)


@contextmanager
def stage(folder: Path, *, sandbox: str) -> Iterator[Stage]:
    """The whole service, up. Skips where something that it stands on is lacking."""
    where, redis_binary = binaries(), shutil.which("redis-server")
    if where is None or not may_run() or redis_binary is None:
        pytest.skip("the fault cases need PostgreSQL and Redis (apt-get install postgresql redis-server)")
    with ExitStack() as stack:
        network = Network()
        network.make()
        stack.callback(network.remove)
        engine = stack.enter_context(docker_engine(made(folder / "engine"))) if sandbox == "docker" else None
        if engine is not None:
            stack.callback(end_engine, engine)
        image = {"docker_url": engine.url, "sandbox_image": ensure_sandbox_image(engine)} if engine else {}
        data = folder / "data"
        stack.enter_context(small_disk(data))
        queue = Queue(redis_binary, made(folder / "redis"), free_port())
        queue.start()
        stack.callback(queue.stop)
        database = Database(where, made(folder / "postgres"), free_port())
        database.start()
        stack.callback(stop_quietly, database)
        node_port = free_port()
        settings = Settings(
            data=data,
            host_lock=folder / "host.lock",
            machine=f"stage-{os.getpid()}",
            database_url=database.make_schema().replace("127.0.0.1", HOST),
            broker_url=queue.url(),
            sandbox=sandbox,  # type: ignore[arg-type]
            lease_s=LEASE_S,
            free_disk_bytes=FLOOR_BYTES,
            allowed_roots=(str(folder / "repos"),),
            port=free_port(),
            measure_patience_s=0.0,
            compare_with="parent",
            compare_minutes=1,
            model_url=f"http://{NODE}:{node_port}/v1",
            model_name="scripted",
            max_attempts=3,
            **image,
        )
        if engine is None:
            bubblewrap(settings)
        migrate.upgrade(settings.database)
        one = Stage(folder, settings, wiring.service(settings), queue, database, network, node_port, engine)
        one.control.mkdir()
        stack.callback(one.end)
        one.set_clock(0)
        build = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(folder / "other_clock.so"), str(OTHER_CLOCK)]
        subprocess.run(build, check=True)
        one.heal()
        yield one
        one.shop.sessions.close()


def made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def end_engine(engine: Engine) -> None:
    if engine.alive():
        engine.process.terminate()
        engine.process.wait(30)


def stop_quietly(database: Database) -> None:
    with suppress(RuntimeError):
        database.stop("immediate")
