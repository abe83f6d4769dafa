"""Container engines of our own for tests: own socket, data root and cgroup parent, never one found running.

    @pytest.fixture(scope="session")
    def engine(tmp_path_factory): with docker_engine(tmp_path_factory.mktemp("engine")) as engine: yield engine

`engine.url` is for LAMPLIGHTER_DOCKER_URL and DOCKER_HOST, `engine.command("ps")` runs the client.
Images stay in one data root per machine (the cache folder of standin_images.py) from one test run
to the next; while another run holds it, a fresh one in the given folder is used.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

START_TIMEOUT_S = 120  # on a busy machine, with containers of a killed run to clear away


@dataclass
class Engine:
    url: str
    program: str  # the client: docker or podman
    process: subprocess.Popen[bytes]
    log: Path

    def command(self, *arguments: str, check: bool = True) -> str:
        """Run the client against this engine; returns its output."""
        where = ["--url", self.url] if self.program == "podman" else ["--host", self.url]
        lead = [self.program, "--remote", *where] if self.program == "podman" else [self.program, *where]
        environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
        done = subprocess.run([*lead, *arguments], capture_output=True, text=True, env=environment)
        if check and done.returncode:
            raise AssertionError(f"{self.program} {' '.join(arguments)}: {done.stderr[-2000:]}{done.stdout[-1000:]}")
        return done.stdout

    def has_image(self, tag: str) -> bool:
        return bool(self.command("images", "-q", tag, check=False).strip())

    def alive(self) -> bool:
        return self.process.poll() is None


@contextmanager
def docker_engine(
    folder: Path,
    *,
    bridge: str = "none",
    networks: str = "",
    runtimes: dict[str, list[str]] | None = None,
    images: str = "docker",
) -> Iterator[Engine]:
    """A dockerd with its socket and run files in `folder`.

    bridge      the default network's bridge device, which must exist; "none" (no NAT rules) suffices
                for sandboxes, whose network is none
    networks    address range of networks that are made later, with a bridge
    runtimes    further OCI runtimes: name and command line
    images      name of the shared data root
    """
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("a Docker engine of our own needs root and dockerd (apt-get install docker.io)")
    with data_root(folder, images) as (data, lock):
        url = f"unix://{folder}/docker.sock"
        command = ["dockerd", "--host", url, "--data-root", str(data), "--exec-root", str(folder / "exec")]
        command += ["--pidfile", str(folder / "docker.pid"), "--bridge", bridge, "--cgroup-parent", "lamplighter-tests"]
        command += [] if bridge != "none" else ["--iptables=false", "--ip6tables=false", "--ip-forward=false"]
        command += ["--default-address-pool", f"base={networks},size=24"] if networks else []
        config = {name: {"path": words[0], "runtimeArgs": words[1:]} for name, words in (runtimes or {}).items()}
        (folder / "daemon.json").write_text(json.dumps({"runtimes": config}))
        command += ["--config-file", str(folder / "daemon.json")]
        with running(command, folder / "docker.log", lock) as process:
            engine = Engine(url, "docker", process, folder / "docker.log")
            wait_until_it_answers(engine, "version")
            yield engine


@contextmanager
def bridge_to_the_world(name: str, address: str) -> Iterator[str]:
    """A bridge for an engine whose containers reach the network. Afterwards the packet filter is as before.

    address     of the device with its prefix length, for example 10.213.0.1/24
    """
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "iptables-save", "iptables-restore"))):
        pytest.skip("containers with a network need root, ip and iptables (apt-get install iproute2 iptables)")
    before = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout
    subprocess.run(["ip", "link", "delete", name], capture_output=True)  # of a run that was killed
    made = subprocess.run(["ip", "link", "add", name, "type", "bridge"], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no bridge can be made here: {made.stderr.strip()}")
    try:
        subprocess.run(["ip", "address", "add", address, "dev", name], check=True)
        subprocess.run(["ip", "link", "set", name, "up"], check=True)
        yield name
    finally:
        subprocess.run(["ip", "link", "delete", name], capture_output=True)
        emptied = "".join(f"*{table}\nCOMMIT\n" for table in ("nat", "filter") if f"*{table}\n" not in before)
        subprocess.run(["iptables-restore"], input=emptied + before, text=True, capture_output=True)


@contextmanager
def podman_engine(folder: Path) -> Iterator[Engine]:
    """Podman's Docker-compatible socket, as root, with its own storage."""
    if os.geteuid() != 0 or shutil.which("podman") is None:
        pytest.skip("Podman's socket needs podman (apt-get install podman), here as root")
    with data_root(folder, "podman") as (data, lock):
        url = f"unix://{folder}/podman.sock"
        # Its database remembers both folders, so they stay together.
        command = ["podman", "--root", str(data), "--runroot", str(data / "run"), "--cgroup-manager", "cgroupfs"]
        command += ["system", "service", "--time", "0", url]
        with running(command, folder / "podman.log", lock) as process:
            engine = Engine(url, "podman", process, folder / "podman.log")
            wait_until_it_answers(engine, "version")
            yield engine


@contextmanager
def data_root(folder: Path, kind: str) -> Iterator[tuple[Path, IO[str]]]:
    """The machine's shared data root when nobody else uses it now, else a new one; and the lock on it."""
    from tests.support.standin_images import cache_folder

    shared = cache_folder() / kind
    shared.mkdir(parents=True, exist_ok=True)
    with (shared.parent / f"{kind}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with tempfile.TemporaryDirectory(prefix=f"{kind}-") as alone:  # Podman wants a short path
                try:
                    yield Path(alone), lock
                finally:
                    unmount_below(Path(alone))
        else:
            yield shared, lock


@contextmanager
def running(command: list[str], log: Path, lock: IO[str]) -> Iterator[subprocess.Popen[bytes]]:
    """The process until the block ends. It ends with ours however that ends, and holds the lock that long."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *command],
            cwd=log.parent,  # where Podman's conmon leaves a file `oom` when an exec runs out of memory
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=[lock.fileno()],
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        unmount_below(log.parent)


def unmount_below(folder: Path) -> None:
    """An engine leaves its network namespaces mounted and, when killed, its data root on itself."""
    places = [line.split(" ")[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for place in reversed(places):  # the latest lie on the earlier
        if Path(place).is_relative_to(folder):
            subprocess.run(["umount", "--lazy", place], capture_output=True)


def wait_until_it_answers(engine: Engine, question: str) -> None:
    give_up = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            engine.command(question)
            return
        except AssertionError as error:
            if not engine.alive() or time.monotonic() > give_up:
                last = (engine.log.read_text().strip().splitlines() or [str(error)])[-1]
                pytest.skip(f"{engine.program} does not start here: {last[-300:]}")
            time.sleep(0.2)
