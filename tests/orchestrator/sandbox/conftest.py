"""Every real backend that this machine can run, each with one prepared review.

`backend` is a parameter of the conformance suite. Engines are our own (tests/support/docker_engine.py)
and start once a session, when a test first asks for them; what cannot run here is skipped with the reason.
"""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.sandbox.bubblewrap import Bubblewrap
from orchestrator.sandbox.contract import Box, BoxOrder, Limits, Role, Sandbox, SandboxError
from orchestrator.sandbox.docker import Docker
from orchestrator.settings import Settings
from tests.support.boxes import bundled, here
from tests.support.docker_engine import Engine, docker_engine, podman_engine
from tests.support.standin_images import ensure_sandbox_image

MIB = 1 << 20
LIMITS = Limits(
    memory_bytes=256 * MIB,
    pids=64,
    output_bytes=64 << 10,
    scratch_bytes=64 * MIB,
    volume_bytes=64 * MIB,
    free_bytes=MIB,
)
REVIEW = "conformance"
ENGINES = ("docker", "podman", "runsc")
WITH_AN_ENGINE = [pytest.param(kind, marks=pytest.mark.docker) for kind in ENGINES]
# gVisor keeps programs from the host by its own kernel. Its limits are the whole sandbox's, so what
# breaks them ends the box, and the inside does not see them.
RUNSC_LIMITS = replace(LIMITS, pids=1024)
RUNSC = ["/usr/bin/runsc", "--network=none"]

FILES = {
    "readme.txt": "hello\n",
    "conform/__init__.py": "value = 7\n",
    "deep/er/file.txt": "x\n",
    "run.sh": "#!/bin/sh\necho ran\n",
}
# An editable install as pip leaves it, made without a package index.
PREPARE = """
python3 -m venv --without-pip /venv/plain && python3 -m venv --without-pip /venv/test
for site in /venv/*/lib/python*/site-packages; do echo /job/repo > $site/editable.pth; done
cp /usr/bin/id /venv/plain/bin/suid; chmod 4755 /venv/plain/bin/suid
"""


@dataclass
class Backend:
    """One real sandbox with a prepared review."""

    kind: str
    sandbox: Sandbox
    settings: Settings
    commit: str
    bundle: Path
    asked: list[tuple[str, str]] = field(default_factory=list)  # (host:port, refusal) that the proxy logged
    limits: Limits = LIMITS
    attempts: int = 0

    def open(self, step: str = "probe:conform", **order: Any) -> Box:
        self.attempts += 1
        return self.sandbox.open(BoxOrder(REVIEW, step, self.attempts, **{"limits": self.limits, **order}))


@pytest.fixture(scope="session")
def upstream() -> Iterator[int]:
    """The port of a server on this machine that answers any HTTP request with "reached"."""
    with socket.create_server(("0.0.0.0", 0), backlog=64) as server:
        import threading

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    client.recv(4096)
                    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nreached")

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Engines"]:
    with ExitStack() as stack:
        yield Engines(stack, tmp_path_factory)


class Engines:
    """Starts each engine when it is first asked for."""

    def __init__(self, stack: ExitStack, folders: pytest.TempPathFactory):
        self.stack = stack
        self.folders = folders
        self.started: dict[str, Engine] = {}
        self.refused: dict[str, str] = {}

    def get(self, program: str) -> Engine:
        if program in self.refused:
            pytest.skip(self.refused[program])
        if program not in self.started:
            try:
                self.started[program] = self.start(program)
            except pytest.skip.Exception as skipped:
                self.refused[program] = str(skipped)
                raise
        return self.started[program]

    def image(self) -> str:
        """The sandbox image's tag; Docker builds it, whoever uses it."""
        return ensure_sandbox_image(self.get("docker"))

    def start(self, program: str) -> Engine:
        folder = self.folders.mktemp(program)
        if program == "docker":
            runtimes = {"runsc": RUNSC} if shutil.which("runsc") else None
            return self.stack.enter_context(docker_engine(folder, runtimes=runtimes))
        image = self.image()
        engine = self.stack.enter_context(podman_engine(folder))
        if not engine.has_image(image):
            tar = folder / "image.tar"
            self.get("docker").command("save", "-o", str(tar), image)
            engine.command("load", "-i", str(tar))
            tar.unlink()
        return engine


@pytest.fixture(
    scope="session", params=["bubblewrap", *(pytest.param(name, marks=pytest.mark.docker) for name in ENGINES)]
)
def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, upstream: int, engines: Engines
) -> Iterator[Backend]:
    kind: str = request.param
    folder = tmp_path_factory.mktemp(f"sandbox-{kind}")
    limits = RUNSC_LIMITS if kind == "runsc" else LIMITS
    given: dict[str, Any] = {
        "data": folder / "data",
        "sandbox_mounts": (),
        "sandbox_env": ("GIVEN=by the operator",),
        "sandbox_memory_bytes": limits.memory_bytes,
        "sandbox_pids": limits.pids,
        "sandbox_scratch_bytes": LIMITS.scratch_bytes,
        "egress_hosts": (f"localhost:{upstream}", "private.invalid", f"*.localhost:{upstream}"),
        "egress_allow_ranges": ("127.0.0.0/8", "::1/128"),
        "egress_bytes": 200_000,
    }
    if kind in ENGINES:
        if kind == "runsc" and not shutil.which("runsc"):
            pytest.skip("gVisor's runsc is not installed (apt-get install runsc)")
        given["sandbox_image"] = engines.image()
        given["docker_url"] = engines.get("podman" if kind == "podman" else "docker").url
        given["sandbox_runtime"] = "runsc" if kind == "runsc" else ""
    settings = here(**given)
    made = Backend(kind, None, settings, "", Path(), limits=limits)  # type: ignore[arg-type]
    log = lambda box, host, refusal: made.asked.append((host, refusal))  # noqa: E731
    try:
        made.sandbox = (
            Bubblewrap(settings, egress_log=log) if kind == "bubblewrap" else Docker(settings, egress_log=log)
        )
        made.sandbox.check()  # type: ignore[attr-defined]
    except SandboxError as error:
        pytest.skip(f"{kind} does not work here: {str(error)[-300:]}")
    made.bundle, repo = bundled(repo_folder(folder), folder)
    made.commit = repo.commit
    made.sandbox.prepare(REVIEW, made.bundle, repo.commit)
    install = made.open("prepare", role=Role.INSTALL)
    prepared = install.run(PREPARE, timeout_s=120)
    install.destroy()
    assert prepared.ok, prepared.output
    yield made
    made.sandbox.drop(REVIEW)


def repo_folder(folder: Path) -> Path:
    repo = folder / "repo"
    for name, text in FILES.items():
        path = repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (repo / "run.sh").chmod(0o755)
    (repo / "link-out").symlink_to("/etc/passwd")
    (repo / "link-in").symlink_to("readme.txt")
    return repo


@pytest.fixture(scope="session")
def shared(backend: Backend) -> Iterator[Box]:
    """One step box for tests that leave it as they found it."""
    box = backend.open("probe:shared")
    yield box
    box.destroy()


@pytest.fixture
def box(backend: Backend) -> Iterator[Box]:
    """A step box of this test's own."""
    opened = backend.open()
    yield opened
    opened.destroy()


def is_root() -> bool:
    return os.geteuid() == 0
