"""Where sandbox attacks are tried: a sandbox, a host with things to steal and to break, and a service that must answer.

with ground("docker", folder) as one:
    for attack in sandbox_attacks.ALL:
        assert one.tried(attack) == ""  # how far it got, or that it was not tried

A box that does not open, or a backend that fails, is an error: it says nothing about the attack.
"""

import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import httpx

from orchestrator.sandbox.box import STEP_UID
from orchestrator.sandbox.contract import Box, BoxGone, BoxOrder, Limits, Role, Sandbox, SandboxError
from orchestrator.sandbox.docker import Docker
from orchestrator.settings import PREFIX, Settings
from review_agents.records import Environment, Network, Ran
from tests.support.boxes import bubblewrap, bundled
from tests.support.docker_engine import docker_engine
from tests.support.net import host_addresses
from tests.support.postgres import free_port
from tests.support.sandbox_attacks import BEGUN, Attack
from tests.support.standin_images import ensure_sandbox_image
from tests.support.waiting import wait_for

MIB = 1 << 20
LIMITS = Limits(
    memory_bytes=192 * MIB,
    pids=64,
    output_bytes=64 << 10,
    scratch_bytes=48 * MIB,
    volume_bytes=64 * MIB,
    free_bytes=MIB,
)
ENVIRONMENT = f"workers-own-{secrets.token_hex(8)}"
ENDING_S = 20.0  # that a command may outlast its time, or a killed process its box, on a busy machine
DEAD = ("Z", "X")  # the states of a process in /proc/PID/status
REVIEW = "attacked"
PREPARE = """
python3 -m venv --without-pip /venv/plain && python3 -m venv --without-pip /venv/test
cp /usr/bin/id /venv/plain/bin/suid; chmod 6755 /venv/plain/bin/suid
"""
ROOT = Path(__file__).parents[2]


@dataclass
class Ground:
    kind: str
    sandbox: Sandbox
    service: "Service"
    canary: subprocess.Popen[bytes]
    known: dict[str, object]
    attempts: int = 0
    shared: Box | None = None
    boxes: list[Box] = field(default_factory=list)

    def tried(self, attack: Attack) -> str:
        """How far the attack got, or that it was not tried; "" when it was and got nowhere."""
        box = self.box_for(attack)
        started = time.monotonic()
        told: list[str] = []
        try:
            said = self.run(attack, box, told.append).output
        except BoxGone as gone:  # it broke its own box, which is its own loss
            self.shared, said = None, f"{''.join(told)}\n{gone}"
        took = time.monotonic() - started
        got = [] if BEGUN in said.splitlines() else [f"was not tried: {said[-300:]}"]
        got += [line.removeprefix("THROUGH").strip() for line in said.splitlines() if line.startswith("THROUGH")]
        if took > attack.timeout_s + ENDING_S:
            got.append(f"held the worker for {took:.0f} s")
        return "; ".join([*got, *self.broken(attack)])

    def run(self, attack: Attack, box: Box, on_output: Callable[[str], None]) -> Ran:
        network = Network.EGRESS if attack.box == "egress" else Network.NONE
        try:
            return box.run(
                attack.script(self.known),
                environment=Environment.NONE,
                network=network,
                timeout_s=attack.timeout_s,
                on_output=on_output,
            )
        finally:
            if attack.box in ("own", "install"):
                box.destroy()

    def box_for(self, attack: Attack) -> Box:
        """One step box for all that ask for no other; what asks for a way through the proxy gets fresh bytes."""
        if attack.box == "step":
            self.shared = self.shared or self.open(Role.STEP)
            return self.shared
        if attack.box == "egress":
            return self.open(Role.INSTALL, egress=True)
        return self.open(Role.INSTALL if attack.box == "install" else Role.STEP)

    def open(self, role: Role, *, egress: bool = False) -> Box:
        self.attempts += 1
        box = self.sandbox.open(BoxOrder(REVIEW, f"try:{role}", self.attempts, role, egress=egress, limits=LIMITS))
        self.boxes.append(box)
        return box

    def broken(self, attack: Attack) -> list[str]:
        """What the attack did outside of its box."""
        found = []
        if self.canary.poll() is not None:
            found.append("killed a process of the host")
            self.canary = start_canary(str(self.known["canary"]))
            self.known["pid"] = self.canary.pid
        if attack.box != "step":
            over = [box for box in self.boxes if box is not self.shared]
            for box in over:
                box.destroy()
            self.boxes = [self.shared] if self.shared else []
            found += [f"process {pid} outlives its box" for pid in left_of(over)]
        elif self.shared is not None:
            try:
                if self.shared.run("echo alive", environment=Environment.NONE).output != "alive\n":
                    self.shared = None
                elif attack.leaves:
                    found += self.left_in_shared(attack.leaves)
            except SandboxError:
                self.shared = None
        return found + self.service.silences()

    def left_in_shared(self, words: str) -> list[str]:
        """Processes of an attack's own that are still there when the next command runs."""
        assert self.shared is not None
        said = self.shared.run(processes_with(words), environment=Environment.NONE).output
        assert said.splitlines()[-1:] == ["looked"], said
        return [f"left {line}" for line in said.splitlines()[:-1]]

    def allowed_host_is_reached(self) -> bool:
        """That the proxy works at all, or its refusals would say nothing."""
        probe = Attack("", "", python='if b"reached" in connect("localhost:@port@"): through("reached")', box="egress")
        return "reached" in self.tried(probe)


@dataclass
class Service:
    """A web process beside it all, asked twice a second."""

    process: subprocess.Popen[bytes]
    url: str
    missed: list[str] = field(default_factory=list)
    asked: int = 0  # and has answered, or not
    ended: threading.Event = field(default_factory=threading.Event)

    def is_ready(self) -> bool:
        assert self.process.poll() is None, "the web process ended"
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/health/ready", timeout=5).status_code == 200
        return False

    def watch(self) -> None:
        while not self.ended.wait(0.5):
            try:
                answer = httpx.get(f"{self.url}/health/ready", timeout=15)
                if answer.status_code != 200:
                    self.missed.append(f"the service answered {answer.status_code}")
            except httpx.HTTPError as error:
                self.missed.append(f"the service did not answer: {error}")
            self.asked += 1

    def silences(self) -> list[str]:
        found, self.missed = self.missed, []
        return found


def left_of(boxes: Sequence[Box]) -> list[str]:
    """Processes in those boxes' cgroups that do not go; a dead one that its parent has not collected is gone."""
    marks = [str(getattr(box, "container", "") or box.name) for box in boxes]
    give_up = time.monotonic() + ENDING_S
    while True:
        left = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                cgroups, status = (folder / "cgroup").read_text(), (folder / "status").read_text()
                state = status.partition("\nState:")[2].split()[0]
                if any(mark in cgroups for mark in marks) and state not in DEAD:
                    left.append(f"{folder.name} ({state}, {status.split()[1]}, {cgroups.split()[-1]})")
        if not left or time.monotonic() > give_up:
            return left
        time.sleep(0.1)


def processes_with(words: str) -> str:
    """A command that prints the processes whose command line has those words, and `looked`. Its own has them in two."""
    return f"""python3 - <<'LOOK'
import os
words = {words[:1]!r} + {words[1:]!r}
for pid in filter(str.isdigit, os.listdir("/proc")):
    try: said = open(f"/proc/{{pid}}/cmdline", "rb").read().replace(b"\\0", b" ").decode(errors="replace")
    except OSError: continue
    if words in said: print(pid, said)
print("looked")
LOOK
"""


def start_canary(name: str) -> subprocess.Popen[bytes]:
    """A process of the very user that steps run as, so that nothing but the sandbox's own walls protects it."""
    command = ["/bin/bash", "-c", 'exec -a "$0" sleep 3600', name]
    return subprocess.Popen(command, cwd="/", user=STEP_UID if os.geteuid() == 0 else None)


@contextmanager
def web_service(folder: Path) -> Iterator[Service]:
    port = free_port()
    alone = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    given = {f"{PREFIX}DATA": str(folder), f"{PREFIX}PORT": str(port), f"{PREFIX}HOST_LOCK": str(folder / "lock")}
    with (folder.parent / "web.log").open("wb") as log:
        command = [sys.executable, "-m", "orchestrator", "web"]
        process = subprocess.Popen(command, cwd=ROOT, env={**alone, **given}, stdout=log, stderr=log)
    service = Service(process, f"http://127.0.0.1:{port}")
    try:
        wait_for(service.is_ready, 60, "the web process did not start", every_s=0.2)
        threading.Thread(target=service.watch, daemon=True).start()
        yield service
    finally:
        service.ended.set()
        process.kill()
        process.wait()


@contextmanager
def listening() -> Iterator[int]:
    """The port of a server of the host that answers "reached", on every address of both protocols."""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client, suppress(OSError):
                    client.settimeout(5)
                    client.recv(65536)
                    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nreached")

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


def inner_names() -> list[str]:
    """Names that this machine resolves to addresses that are neither public nor its usual loopback."""
    lines = [line.partition("#")[0].split() for line in Path("/etc/hosts").read_text().splitlines()]
    return [name for line in lines if line and line[0] not in ("127.0.0.1", "::1") for name in line[1:]]


@contextmanager
def ground(kind: str, folder: Path) -> Iterator[Ground]:
    """Everything set up. Skips, loudly, where the sandbox does not work here."""
    folder.chmod(0o755)
    with ExitStack() as stack:
        stack.callback(os.environ.pop, "OF_THE_WORKER", None)
        os.environ["OF_THE_WORKER"] = ENVIRONMENT
        port = stack.enter_context(listening())
        known = things_to_steal(stack, folder) | {"port": port, "addresses": host_addresses()}
        given = {
            "data": folder / "data",
            "sandbox_memory_bytes": LIMITS.memory_bytes,
            "sandbox_pids": LIMITS.pids,
            "sandbox_scratch_bytes": LIMITS.scratch_bytes,
            "egress_hosts": (f"localhost:{port}", "inside.invalid:443", *(f"{name}:{port}" for name in inner_names())),
            "egress_allow_ranges": ("127.0.0.1/32", "::1/128"),
            "egress_bytes": 1_000_000,
        }
        sandbox: Sandbox
        if kind == "docker":
            (folder / "engine").mkdir()
            engine = stack.enter_context(docker_engine(folder / "engine"))
            image = ensure_sandbox_image(engine)
            sandbox = Docker(Settings(**given, docker_url=engine.url, sandbox_image=image))
        else:
            sandbox = bubblewrap(Settings(**given))
        stack.callback(sandbox.drop, REVIEW)
        prepared(sandbox, folder)
        (folder / "service").mkdir()
        service = stack.enter_context(web_service(folder / "service"))
        canary = start_canary(str(known["canary"]))
        one = Ground(kind, sandbox, service, canary, known | {"pid": canary.pid})
        stack.callback(lambda: one.canary.kill())
        yield one
        for box in one.boxes:
            box.destroy()


def things_to_steal(stack: ExitStack, folder: Path) -> dict[str, object]:
    """On the host, readable and writable for everybody: only the sandbox keeps a step from them."""
    name = f"canary-{secrets.token_hex(6)}"
    secret = folder / "secret.txt"
    secret.write_text(name)
    secret.chmod(0o666)
    held = stack.enter_context(socket.socket(socket.AF_UNIX))
    held.bind(str(folder / "open.sock"))
    (folder / "open.sock").chmod(0o777)
    held.listen()
    abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
    abstract.bind(f"\0{name}")
    abstract.listen()
    shared = Path("/dev/shm") / name
    shared.write_text(name)
    stack.callback(shared.unlink)
    return {
        "secret": secret, "data": folder / "data", "canary": name, "socket": folder / "open.sock", "abstract": name,
        "environment": ENVIRONMENT, "inside": inner_names(), "pids": LIMITS.pids,
        "passwd": sha256(Path("/etc/passwd").read_bytes()).hexdigest(),
        "memory": LIMITS.memory_bytes, "scratch": LIMITS.scratch_bytes,
    }  # fmt: skip


def prepared(sandbox: Sandbox, folder: Path) -> None:
    repo = folder / "repo"
    repo.mkdir()
    (repo / "README.md").write_text("hello\n")
    bundle, record = bundled(repo, folder)
    sandbox.prepare(REVIEW, bundle, record.commit)
    box = sandbox.open(BoxOrder(REVIEW, "prepare", 1, Role.INSTALL, limits=LIMITS))
    try:
        ran = box.run(PREPARE, environment=Environment.NONE, timeout_s=120)
    finally:
        box.destroy()
    assert ran.ok, ran.output
