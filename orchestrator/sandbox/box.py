"""What an open box is on either real backend: a step runner behind a channel, and the rules around it.

The backends differ in how a box comes up and goes away; what a command sees (places, PATH, HOME,
variables, limits it sets itself) is decided here, once, so that a reproduction behaves alike on both.
"""

import base64
import posixpath
import re
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.sandbox import seccomp
from orchestrator.sandbox.channel import Channel, RunnerLost
from orchestrator.sandbox.contract import BoxGone, BoxOrder, Cancelled, Limits, Role, SandboxError
from orchestrator.settings import Settings
from review_agents.records import Environment, Network, Ran

Answer = TypeVar("Answer")

BASE, VENV, JOB = "/base", "/venv", "/job"
BASE_REPO, JOB_REPO, HOME = "/base/repo", "/job/repo", "/home/step"
INSIDE = "/lamplighter"  # our own files: the step runner, the CA bundle, wrappers
CA_FILE = f"{INSIDE}/ca.pem"
CA_VARIABLES = (
    "SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS",
)  # fmt: skip
LARGEST_READ = 128 << 20  # bytes of a file
PROGRAMS = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
STEP_RUNNER = f"{INSIDE}/step_runner.py"
VOLUMES_ARE_WATCHED = "size of /base and /venv (watched while an install step writes them, not capped)"
STEP_USER = "step"
STEP_UID = 70606  # in the range that neither distributions nor systemd nor subuids hand out
OPEN_FILES = 16384
REFUSALS_KEPT = 20  # of one command
TRIAL_S = 60.0  # what a trial box may take
SETUP_PATIENCE_S = 120.0  # copying a large repo takes its time

# A user has this; without it every test that commits something in a repo of its own would fail.
FILES = {
    f"{HOME}/.gitconfig": "[user]\n\tname = Lamplighter Step\n\temail = step@sandbox.invalid\n"
    "[safe]\n\tdirectory = *\n[init]\n\tdefaultBranch = main\n[advice]\n\tdetachedHead = false\n"
}


def box_name(instance: str, order: BoxOrder) -> str:
    """Unique on this machine, and tells a successor whose box it is."""
    return f"lamplighter.{instance}.{order.review}.{slug(order.step)}.{order.attempt}"


def slug(step: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]+", "-", step)[:60]


def review_of(name: str, instance: str) -> str | None:
    """The review that a box or cgroup name belongs to; None when it is not this instance's."""
    match = re.fullmatch(rf"lamplighter\.{re.escape(instance)}\.([^.]+)\.[^.]+\.\d+", name)
    return match[1] if match else None


def trial_review() -> str:
    """The review id of a trial box: another process's sweep leaves it alone while it may still run."""
    return f"trial-{time.time_ns()}"


def to_sweep(review: str, living: Collection[str]) -> bool:
    """Whether what carries this review id belongs to nobody any more."""
    started = re.fullmatch(r"trial-(\d+)", review)
    if started:
        return abs(time.time_ns() - int(started[1])) > TRIAL_S * 1e9  # one of a time to come: the clock was set back
    return review not in living


def check_review(review: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,80}", review):
        raise SandboxError(f"{review!r} is no review id: letters, digits, - and _ only.")


def split_scratch(order: BoxOrder) -> dict[str, int]:
    """How the scratch bytes are shared out, because each place is a tmpfs of its own."""
    total = order.limits.scratch_bytes
    if order.role is Role.INSTALL:  # /job is the volume there
        return {"/tmp": total // 2, "/home": total // 2}
    return {JOB: total // 2, "/tmp": total // 4, "/home": total // 4}


def variables(settings: Settings, environment: Environment, network: Network, interpreter_paths: str) -> dict[str, str]:
    """The whole environment of a command; the worker's own never gets in."""
    folders = [
        *interpreter_paths.split(":"),
        "/usr/local/bin",
        "/usr/bin",
        "/bin",
        "/usr/local/sbin",
        "/usr/sbin",
        "/sbin",
    ]
    path = ":".join(dict.fromkeys(folders))
    found = {
        "HOME": HOME,
        "USER": STEP_USER,
        "LOGNAME": STEP_USER,
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TZ": "UTC",
        "PATH": path,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "GIT_TERMINAL_PROMPT": "0",
    }
    if environment is not Environment.NONE:
        found["VIRTUAL_ENV"] = f"{VENV}/{environment.value}"
        found["PATH"] = f"{VENV}/{environment.value}/bin:{path}"
    if network is Network.EGRESS and settings.pip_index:
        found["PIP_INDEX_URL"] = settings.pip_index
    if settings.sandbox_ca_file:
        found |= dict.fromkeys(CA_VARIABLES, CA_FILE)
    for pair in settings.sandbox_env:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise SandboxError(f"LAMPLIGHTER_SANDBOX_ENV: found {pair!r}, expected NAME=value.")
        found[name] = value
    return found


def operator_mounts(settings: Settings) -> list[tuple[str, str]]:
    """The configured read-only mounts as (host, inside)."""
    pairs = []
    for mount in settings.sandbox_mounts:
        host, _, inside = mount.partition(":")
        inside = inside or host
        if not host.startswith("/") or not inside.startswith("/") or ".." in inside.split("/"):
            raise SandboxError(f"LAMPLIGHTER_SANDBOX_MOUNTS: found {mount!r}, expected /host/path:/inside/path.")
        pairs.append((host, inside))
    return pairs


def read_ca(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SandboxError(f"LAMPLIGHTER_SANDBOX_CA_FILE: {path} cannot be read: {error}.") from None


def setup_order(
    order: BoxOrder,
    *,
    rlimits: dict[str, int] | None = None,
    cpus: tuple[int, ...] = (),
    files: dict[str, str] | None = None,
    tracing: bool = True,
) -> dict[str, Any]:
    """The first order to a box's step runner.

    rlimits, cpus   limits that only the runner can set here
    files           to be written as the step's user, by path
    tracing         see `seccomp.program`
    """
    return {
        "rlimits": {
            "RLIMIT_CORE": 0,
            "RLIMIT_NOFILE": OPEN_FILES,
            "RLIMIT_FSIZE": max(order.limits.scratch_bytes, order.limits.volume_bytes),
            **(rlimits or {}),
        },
        "cpus": list(cpus),
        "home": HOME,
        "files": FILES | (files or {}),
        "copy": [BASE_REPO, JOB_REPO] if order.role is Role.STEP else None,
        "seccomp": base64.b64encode(seccomp.program(tracing=tracing)).decode(),
    }


class RunnerBox:
    """A `Box` whose commands are run by the step runner at the other end of a channel.

    end     the backend's way to end the box at once, whatever it is doing; may be called twice
    """

    def __init__(
        self,
        name: str,
        order: BoxOrder,
        channel: Channel,
        *,
        surroundings: Callable[[Environment, Network], dict[str, str]],
        end: Callable[[], None],
        watch_memory: bool = False,
    ):
        self.name = name
        self.order = order
        self.channel = channel
        self.surroundings = surroundings
        self.end = end
        self.why_gone = ""
        self.watch = watched(order.role, order.limits, memory=watch_memory)
        self.ends_at = time.monotonic() + order.limits.step_s
        self.timer = threading.Timer(order.limits.step_s, self.step_is_over)
        self.timer.daemon = True
        self.timer.start()

    def run(
        self,
        command: str,
        *,
        environment: Environment = Environment.PLAIN,
        network: Network = Network.NONE,
        timeout_s: float = 120.0,
        stdin: str = "",
        on_output: Callable[[str], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Ran:
        if network is Network.EGRESS and not self.order.egress:
            raise SandboxError(f"Box {self.name} was opened without egress.")
        wanted = {
            "script": command,
            "env": self.surroundings(environment, network),
            "cwd": JOB_REPO,
            "timeout_s": timeout_s,
            "stdin": stdin,
            "egress": network is Network.EGRESS,
            "output_bytes": self.order.limits.output_bytes,
            "watch": self.watch,
        }
        self.alive()
        proxy = self.channel.proxy
        if proxy:
            proxy.refusals.clear()
        try:
            ran = self.channel.run(wanted, on_output=on_output, cancelled=cancelled)
        except RunnerLost as lost:
            self.alive()  # destroyed meanwhile, or its time was over
            return self.lost(lost)
        refusals = tuple(dict.fromkeys(proxy.refusals))[:REFUSALS_KEPT] if proxy else ()
        return ran.model_copy(update={"refusals": refusals}) if refusals else ran

    def lost(self, lost: RunnerLost) -> Ran:
        """What becomes of a command whose step runner is gone. Raises `BoxGone`, or `Cancelled`."""
        outside = not lost.cancelling and self.ended_from_outside()
        self.give_up(str(lost))
        if lost.cancelling:
            raise Cancelled
        raise BoxGone(self.why_gone, retry=outside)

    def ended_from_outside(self) -> bool:
        """Whether neither we nor anything inside ended the box, so that the same may work in another one."""
        return False

    def read(self, path: str, *, limit_bytes: int) -> bytes:
        return self.asked(lambda: self.channel.read(inside(path), min(limit_bytes, LARGEST_READ)))

    def write(self, path: str, content: bytes) -> None:
        self.asked(lambda: self.channel.write(inside(path), content))

    def list(self, folder: str) -> tuple[str, ...]:
        return self.asked(lambda: self.channel.list(inside(folder), JOB_REPO))

    def changed(self, files: Sequence[str]) -> tuple[str, ...]:
        return self.asked(lambda: self.channel.changed(files, JOB_REPO, BASE_REPO))

    def asked(self, question: Callable[[], Answer]) -> Answer:
        """The runner's answer; a box that does not answer is ended."""
        self.alive()
        try:
            return question()
        except BoxGone as gone:
            outside = not self.why_gone and self.ended_from_outside()
            self.give_up(str(gone))
            raise BoxGone(self.why_gone, retry=outside) from None

    def alive(self) -> None:
        """Raises `BoxGone` with the reason."""
        if self.why_gone:
            raise BoxGone(self.why_gone)

    def give_up(self, why: str) -> None:
        self.why_gone = self.why_gone or f"Box {self.name} is gone: {why}"
        self.finish()

    def step_is_over(self) -> None:
        self.give_up(f"its step took longer than {self.order.limits.step_s:.0f} s")

    def destroy(self) -> None:
        self.give_up("it was destroyed")

    def finish(self) -> None:
        self.timer.cancel()
        self.end()
        self.channel.close()


def inside(path: str) -> str:
    return posixpath.normpath(posixpath.join(JOB_REPO, path))


def watched(role: Role, limits: Limits, *, memory: bool) -> dict[str, Any]:
    """What the step runner has to look at, because no kernel limit covers it."""
    found: dict[str, Any] = {}
    if role is Role.INSTALL:
        found |= {"folders": [BASE, VENV], "folder_bytes": limits.volume_bytes, "free_bytes": limits.free_bytes}
    if memory:
        found["memory_bytes"] = limits.memory_bytes
    return found
