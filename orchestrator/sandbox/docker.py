"""Sandboxes from a Docker engine; also Podman's socket, and gVisor by LAMPLIGHTER_SANDBOX_RUNTIME.

A box is one container: PID 1 is a sleeper under the engine's init, as a user of its own. Docker
cannot kill an exec, so commands are run by our step runner, which one exec as the step's user
starts and whose stdin and stdout are the channel. The runner is not PID 1 here: a command may kill
it (same user). Then everything of the step's user is killed by a second exec, a new runner takes
over, and the command counts as ended by a signal; the container and its files stay.

The source of the step runner goes first through that exec's stdin: nothing is mounted from the
worker, which may itself be a container or on another machine than the engine. Volumes are named,
labelled and filled by archive. The egress proxy is reached through the same channel (egress.py).
"""

import struct
import tarfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from socket import SHUT_RDWR
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.types import LogConfig, Mount, Ulimit
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from orchestrator.sandbox import egress, seccomp, step_runner
from orchestrator.sandbox.box import (
    BASE,
    CA_FILE,
    INSIDE,
    JOB,
    OPEN_FILES,
    SETUP_PATIENCE_S,
    STEP_UID,
    TRIAL_S,
    VENV,
    VOLUMES_ARE_WATCHED,
    RunnerBox,
    box_name,
    check_review,
    operator_mounts,
    read_ca,
    setup_order,
    split_scratch,
    to_sweep,
    trial_review,
    variables,
)
from orchestrator.sandbox.channel import Channel, RunnerLost
from orchestrator.sandbox.cloning import bundle_files, clone_script
from orchestrator.sandbox.contract import (
    Box,
    BoxGone,
    BoxOrder,
    Cancelled,
    Description,
    NeedsMissing,
    Role,
    SandboxError,
)
from orchestrator.sandbox.instance import instance_of
from orchestrator.sandbox.limits import configured
from orchestrator.settings import Settings
from review_agents.records import Environment, Ran

DEFAULT_URL = "unix:///var/run/docker.sock"
SLEEPER_UID = STEP_UID + 1  # so that `kill -9 -1` of the step's user leaves PID 1's child alone
STEP_USER = f"{STEP_UID}:{STEP_UID}"
API_TIMEOUT_S = 120
RUNNER_SOURCE = Path(step_runner.__file__).read_bytes()
# Reads that many bytes of source from stdin and becomes it; what follows on stdin are frames.
BOOT = """
import os, sys
source = b""
while len(source) < int(sys.argv[1]):
    source += os.read(0, int(sys.argv[1]) - len(source)) or sys.exit(1)
exec(compile(source, "step_runner.py", "exec"))
"""
RUNNER = ["python3", "-I", "-S", "-B", "-c", BOOT, str(len(RUNNER_SOURCE)), str(STEP_UID)]
KILL_ALL = ["/bin/sh", "-c", "kill -9 -1"]
STDERR = 2
TMPFS = "rw,exec,nosuid,nodev"
BUNDLE = f"{BASE}/bundle/repo.bundle"

INSTANCE, REVIEW, STEP, ATTEMPT = (f"lamplighter.{name}" for name in ("instance", "review", "step", "attempt"))


class Docker:
    """The backend `docker`."""

    name = "docker"

    def __init__(self, settings: Settings, *, egress_log: Callable[[str, str, str], None] | None = None):
        """`egress_log` is called with (box name, host:port, "" or why it was refused)."""
        self.settings = settings
        self.url = settings.docker_url or DEFAULT_URL
        self.instance = instance_of(settings.data)
        self.egress_log = egress_log or (lambda box, host, refusal: None)
        self.egress_rules = egress.rules(settings.egress_hosts, settings.egress_allow_ranges, settings.pip_index)
        self.has_init = True
        self.seen: dict[str, dict[str, Any]] = {}  # what the trial box of an image saw of itself
        try:
            # The URL is given, so the CLI's contexts and DOCKER_HOST cannot lead us to another engine.
            self.engine = docker.DockerClient(base_url=self.url, timeout=API_TIMEOUT_S)
        except (DockerException, requests.RequestException) as error:
            raise SandboxError(f"No Docker engine answers at {self.url}: {in_short(error)}", retry=True) from None

    # The contract ------------------------------------------------------------------------

    def describe(self) -> Description:
        seen = self.trial(self.settings.sandbox_image)
        with outside("describing the engine"):
            version = self.engine.version()
            image = self.engine.images.get(self.settings.sandbox_image)
        kind = [*(["(podman)"] if self.podman else []), self.settings.sandbox_runtime]
        return Description(
            name=self.name,
            version=" ".join(filter(None, [version["Version"], *kind])),
            image=f"{self.settings.sandbox_image} {image.id}",
            python=seen["python"],
            missing_limits=self.missing_limits(seen),
        )

    def prepare(self, review: str, bundle: Path, commit: str) -> None:
        check_review(review)
        self.drop(review)
        limits = configured(self.settings, step_s=self.settings.git_timeout_s)
        order = BoxOrder(review, "clone", 1, role=Role.INSTALL, limits=limits)
        self.make_volumes(review)
        script = clone_script(commit, BUNDLE)
        box = DockerBox(self, box_name(self.instance, order), order, fill=lambda archive: fill(archive, bundle))
        try:
            ran = box.run(f"{script}\nrm {BUNDLE}*", environment=Environment.NONE, timeout_s=limits.step_s)
        finally:
            box.destroy()
        if not ran.ok:
            raise SandboxError(f"Commit {commit} could not be cloned ({ran.ending}): {ran.output[-2000:].strip()}")
        with outside(f"marking review {review} as prepared"):
            self.engine.volumes.create(self.volume(review, "prepared"), labels=self.labels(review))

    def prepared(self, review: str) -> bool:
        check_review(review)
        with outside("looking for volumes"):
            try:
                self.engine.volumes.get(self.volume(review, "prepared"))
            except NotFound:
                return False
        return True

    def open(self, order: BoxOrder) -> Box:
        check_review(order.review)
        self.check_image(order)
        if not self.prepared(order.review):
            raise SandboxError(f"Review {order.review} has no volumes on this machine: prepare it first.")
        name = box_name(self.instance, order)
        self.remove_container(name)  # of an earlier try with the same name
        return DockerBox(self, name, order)

    def drop(self, review: str) -> None:
        check_review(review)
        self.remove(lambda labels: labels.get(REVIEW) == review)

    def sweep(self, living: Collection[str]) -> tuple[str, ...]:
        return self.remove(lambda labels: to_sweep(labels.get(REVIEW, ""), living))

    @cached_property
    def podman(self) -> bool:
        """Whether Podman answers in Docker's stead."""
        with outside("asking for the version"):
            return "podman" in str(self.engine.version().get("Components", "")).lower()

    @property
    def tmpfs_owner(self) -> str:
        """A tmpfs takes the mode of the image's folder, whatever one asks for; an owner only Docker can give it."""
        return "mode=1777" if self.podman else f"uid={STEP_UID},gid={STEP_UID}"

    # Checks ------------------------------------------------------------------------------

    def check(self) -> None:
        """That the engine answers, has the image, and runs a command under limits. Raises `SandboxError`."""
        self.trial(self.settings.sandbox_image)

    def trial(self, image: str) -> dict[str, Any]:
        """What a box of the image sees of itself: interpreter and limits. One container per image and process."""
        if image not in self.seen:
            with outside("asking for the image"):
                try:
                    self.engine.images.get(image)
                except ImageNotFound:
                    raise SandboxError(f'The image "{image}" is not on the engine. Run `make sandbox-image`.') from None
            review = trial_review()
            limits = configured(self.settings, step_s=TRIAL_S)
            order = BoxOrder(review, "trial", 1, role=Role.INSTALL, limits=limits, image=image)
            self.make_volumes(review)
            try:
                box = DockerBox(self, box_name(self.instance, order), order, fill=lambda archive: fill(archive, None))
                box.destroy()
            finally:
                self.drop(review)
            self.seen[image] = box.ready
        return self.seen[image]

    def check_image(self, order: BoxOrder) -> None:
        """That the operator allows the image and that its interpreter suits the repo. Raises `SandboxError`."""
        if order.image and order.image not in self.settings.sandbox_images:
            raise NeedsMissing(f"needs image {order.image}, which is not among LAMPLIGHTER_SANDBOX_IMAGES")
        if not order.requires_python:
            return
        version = self.trial(self.image(order))["python"]
        try:
            satisfied = version in SpecifierSet(order.requires_python)
        except InvalidSpecifier:
            raise NeedsMissing(f"needs a Python by {order.requires_python!r}, which is no version specifier") from None
        if not satisfied:
            raise NeedsMissing(f"needs Python {order.requires_python}; this sandbox has {version}")

    def image(self, order: BoxOrder) -> str:
        return order.image or self.settings.sandbox_image

    def missing_limits(self, seen: dict[str, Any]) -> tuple[str, ...]:
        """Limits that were ordered but that the inside of a box does not see in its cgroup."""
        limits = configured(self.settings)
        missing = [
            f"{words} ({'not visible inside' if inside is None else f'inside it is {inside}'})"
            for words, inside, ordered in (
                ("memory", seen["memory_bytes"], limits.memory_bytes),
                ("number of processes", seen["pids"], limits.pids),
            )
            if inside != ordered
        ]
        if limits.cpus and tuple(seen["cpus"]) != limits.cpus:
            missing.append(f"pinning to CPUs (inside there are {seen['cpus']})")
        if self.podman:
            missing.append("size of /tmp (Podman mounts its own over ours; the memory limit covers it)")
        if self.settings.sandbox_runtime:
            missing.append("what commands may do to the step runner (another runtime may not keep them apart)")
        return (*missing, VOLUMES_ARE_WATCHED, *seccomp.missing_limits())

    # Engine objects ----------------------------------------------------------------------

    def volume(self, review: str, place: str) -> str:
        return f"lamplighter.{self.instance}.{review}.{place}"

    def make_volumes(self, review: str) -> None:
        with outside(f"making the volumes of review {review}"):
            for place in ("base", "venv"):
                self.engine.volumes.create(self.volume(review, place), labels=self.labels(review))

    def labels(self, review: str) -> dict[str, str]:
        return {INSTANCE: self.instance, REVIEW: review}

    def remove(self, ends: Callable[[dict[str, str]], bool]) -> tuple[str, ...]:
        """Remove our containers, then our volumes, whose labels say so; names what went."""
        gone = []
        ours = {"label": f"{INSTANCE}={self.instance}"}
        with outside("removing containers and volumes"):
            for container in self.engine.api.containers(all=True, filters=ours):
                if ends(container.get("Labels") or {}):
                    self.remove_container(container["Id"])
                    gone.append(container["Names"][0].lstrip("/"))
            for volume in self.engine.api.volumes(filters=ours)["Volumes"] or ():
                if ends(volume.get("Labels") or {}):
                    with suppress(NotFound):
                        self.engine.api.remove_volume(volume["Name"], force=True)
                    gone.append(f"volume {volume['Name']}")
        return tuple(gone)

    def remove_container(self, name: str) -> None:
        with outside(f"removing container {name}"), suppress(NotFound):
            try:
                self.engine.api.remove_container(name, force=True, v=True)
            except APIError as error:
                if error.status_code != 409:  # somebody else is removing it already
                    raise

    def create(self, name: str, order: BoxOrder) -> str:
        """The container, not started yet; returns its id."""
        limits = order.limits
        api = self.engine.api
        install = order.role is Role.INSTALL
        sizes = {**split_scratch(order), INSIDE: 1 << 20}
        volumes = [Mount(BASE, self.volume(order.review, "base"), "volume", read_only=not install)]
        volumes.append(Mount(VENV, self.volume(order.review, "venv"), "volume", read_only=not install))
        if install:
            volumes.append(Mount(JOB, self.volume(order.review, "base"), "volume"))
        binds = [Mount(inside, host, "bind", read_only=True) for host, inside in operator_mounts(self.settings)]
        # The last two because Podman's own defaults are more than some hosts allow; pids_limit is what limits.
        # The size of files is limited by the step runner: here it would also end gVisor's own memory file.
        ulimits = {"core": 0, "nofile": OPEN_FILES, "nproc": OPEN_FILES}
        host = api.create_host_config(
            init=self.has_init,
            network_mode="none",
            read_only=True,
            tmpfs={place: f"{TMPFS},size={size},{self.tmpfs_owner}" for place, size in sizes.items()},
            mounts=[*volumes, *binds],
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            pids_limit=limits.pids,
            mem_limit=limits.memory_bytes,
            memswap_limit=limits.memory_bytes,
            cpuset_cpus=",".join(map(str, limits.cpus)) or None,
            shm_size=limits.scratch_bytes // 4,
            ulimits=[Ulimit(name=name, soft=value, hard=value) for name, value in ulimits.items()],
            log_config=LogConfig(type="json-file", config={"max-size": "1m", "max-file": "1"}),
            runtime=self.settings.sandbox_runtime or None,
            ipc_mode="private",
        )
        try:
            created = api.create_container(
                self.image(order),
                entrypoint=["/bin/sleep"],
                command=["infinity"],
                name=name,
                hostname="sandbox",
                user=f"{SLEEPER_UID}:{SLEEPER_UID}",
                working_dir="/",
                labels={**self.labels(order.review), STEP: order.step, ATTEMPT: str(order.attempt)},
                host_config=host,
            )
        except APIError as error:
            if not self.has_init or "init binary" not in in_short(error):
                raise
            self.has_init = False  # Podman without catatonit; the step runner reaps what it started itself
            return self.create(name, order)
        return str(created["Id"])


class DockerBox(RunnerBox):
    """One container and the step runner in it.

    fill    called with the created container before it starts
    """

    def __init__(
        self,
        sandbox: Docker,
        name: str,
        order: BoxOrder,
        fill: Callable[["Archive"], None] | None = None,
    ):
        self.sandbox = sandbox
        self.name = name
        self.order = order
        self.container = ""
        self.proxy = self.egress_proxy()  # one for all runners of the box, for they share its bytes
        # Another runtime may mean another kernel, with other ideas of who may trace whom.
        usual = not sandbox.settings.sandbox_runtime
        self.setup = setup_order(order, files=own_files(sandbox.settings), tracing=usual)
        try:
            with outside(f"opening box {name}"):
                self.container = sandbox.create(name, order)
                if fill:
                    fill(Archive(sandbox, self.container))
                sandbox.engine.api.start(self.container)
            channel = self.start_runner()
        except BaseException:
            self.remove()
            raise
        super().__init__(
            name,
            order,
            channel,
            surroundings=lambda environment, network: variables(
                sandbox.settings, environment, network, str(Path(self.ready["executable"]).parent)
            ),
            end=self.remove,
        )

    def start_runner(self) -> Channel:
        """A step runner by exec, set up. Raises `SandboxError` with what it said."""
        with outside(f"starting the step runner of {self.name}"):
            pipes = ExecPipes(self.sandbox, self.container)
        channel = Channel(pipes, self.proxy)
        try:
            self.ready = channel.set_up(self.setup, patience_s=SETUP_PATIENCE_S)
        except SandboxError as error:
            channel.close()
            said = f"{error} {pipes.complaint()}".rstrip()
            raise SandboxError(f"Box {self.name} did not open: {said}", retry=True) from None
        return channel

    def egress_proxy(self) -> egress.Proxy | None:
        if not self.order.egress:
            return None
        return egress.Proxy(
            self.sandbox.egress_rules,
            most_bytes=self.sandbox.settings.egress_bytes,
            log=lambda host, refusal: self.sandbox.egress_log(self.name, host, refusal),
        )

    def lost(self, lost: RunnerLost) -> Ran:
        """The command killed the step runner, or it hangs: end the command, and a new runner takes over."""
        state = self.state()
        if not state.get("Running"):
            if not state.get("OOMKilled"):
                return super().lost(lost)
            self.give_up("its container ran out of memory")
            return lost.output.finished(Ran(exit=None, signal=9, oom=True, seconds=lost.seconds))
        self.channel.close()
        self.setup = {**self.setup, "copy": None}
        try:
            self.kill_all()
            self.channel = self.start_runner()
        except SandboxError as error:  # the container ended meanwhile
            self.give_up(str(error))
            raise BoxGone(self.why_gone, retry=True) from None
        if lost.cancelling:
            raise Cancelled
        return lost.output.finished(Ran(exit=None, signal=9, timed_out=lost.silent, seconds=lost.seconds))

    def ended_from_outside(self) -> bool:
        """The step's user can end neither the container's sleeper nor the engine."""
        try:
            state = self.state()
        except SandboxError:  # the engine is away
            return True
        return not state.get("Running") and not state.get("OOMKilled")

    def state(self) -> dict[str, Any]:
        with outside(f"inspecting {self.name}"):
            try:
                return dict(self.sandbox.engine.api.inspect_container(self.container)["State"])
            except NotFound:
                return {}

    def kill_all(self) -> None:
        """`kill -9 -1` as the step's user; nothing of a step survives it."""
        api = self.sandbox.engine.api
        with outside(f"killing what is left in {self.name}"):
            api.exec_start(api.exec_create(self.container, KILL_ALL, user=STEP_USER)["Id"])

    def remove(self) -> None:
        self.sandbox.remove_container(self.container or self.name)


def own_files(settings: Settings) -> dict[str, str]:
    return {CA_FILE: read_ca(settings.sandbox_ca_file).decode()} if settings.sandbox_ca_file else {}


class ExecPipes:
    """The channel's way to a step runner that is an exec: one socket, output in frames of the engine's own."""

    def __init__(self, sandbox: Docker, container: str):
        api = sandbox.engine.api
        created = api.exec_create(container, RUNNER, stdin=True, user=STEP_USER, workdir="/")
        answer = api.exec_start(created["Id"], socket=True)
        self.answer = answer  # keeps the connection open
        self.socket = getattr(answer, "_sock", answer)
        self.socket.settimeout(None)
        self.buffer = bytearray()
        self.said = bytearray()
        self.write(RUNNER_SOURCE)

    def read(self, most: int) -> bytes:
        """The next piece of stdout; what comes on stderr is put aside."""
        while True:
            kind, length = struct.unpack("!BxxxI", self.exactly(8))
            piece = self.exactly(length)
            if kind != STDERR:
                return piece
            self.said += piece[: max(0, 4000 - len(self.said))]

    def exactly(self, count: int) -> bytes:
        while len(self.buffer) < count:
            data = self.socket.recv(1 << 16)
            if not data:
                raise OSError("the exec ended")
            self.buffer += data
        piece = bytes(self.buffer[:count])
        del self.buffer[:count]
        return piece

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def complaint(self) -> str:
        return self.said.decode(errors="replace").strip()[-1500:]

    def hang_up(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(SHUT_RDWR)

    def close(self) -> None:
        self.answer.close()  # a file over the socket, which would keep the descriptor by itself
        self.socket.close()


# Filling volumes ---------------------------------------------------------------------------


class Archive:
    """Puts files into a container that is created and not started, by way of its volumes."""

    def __init__(self, sandbox: Docker, container: str):
        self.sandbox = sandbox
        self.container = container

    def put(self, folder: str, content: Iterator[bytes]) -> None:
        self.sandbox.engine.api.put_archive(self.container, folder, content)


def fill(archive: Archive, bundle: Path | None) -> None:
    """The folders of the step's user inside the volumes, whose own roots stay root's, and the bundle."""
    files = {f"bundle/repo.bundle{ending}": path for ending, path in bundle_files(bundle).items()} if bundle else {}
    archive.put(BASE, tar_of(["repo", "bundle"], files))
    archive.put(VENV, tar_of(["plain", "test"], {}))


def tar_of(folders: list[str], files: dict[str, Path]) -> Iterator[bytes]:
    """A tar as it is written, so that a large bundle is never held in memory."""
    for folder in folders:
        yield header(folder, tarfile.DIRTYPE, 0o755, 0)
    for name, path in files.items():
        size = path.stat().st_size
        yield header(name, tarfile.REGTYPE, 0o644, size)
        with path.open("rb") as file:
            while data := file.read(1 << 20):
                yield data
        yield b"\0" * (-size % tarfile.BLOCKSIZE)
    yield b"\0" * (2 * tarfile.BLOCKSIZE)


def header(name: str, kind: bytes, mode: int, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.size = kind, mode, size
    member.uid = member.gid = STEP_UID
    return member.tobuf(tarfile.GNU_FORMAT)


# Errors ------------------------------------------------------------------------------------


@contextmanager
def outside(doing: str) -> Iterator[None]:
    """Turn what the engine or the way to it says into a `SandboxError`."""
    try:
        yield
    except (DockerException, requests.RequestException, OSError) as error:
        refused = isinstance(error, APIError) and error.is_client_error()
        raise SandboxError(f"Docker, {doing}: {in_short(error)}", retry=not refused) from None


def in_short(error: Exception) -> str:
    text = str(getattr(error, "explanation", "") or error)
    return text if len(text) < 500 else f"{text[:200]} ... {text[-250:]}"
