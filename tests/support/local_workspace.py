"""A Workspace over bubblewrap without the service, for tests of probes: quick, and no wall against malice.

The places are those of the contracts (/job/repo, /venv/plain, /venv/test), the user is not root, and the network is off
unless asked for. Only for repos that the tests themselves made.
"""

import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from review_agents.ports import CommandFailed, NoSuchFile
from review_agents.records import Environment, Measurement, Network, Ran, Repo, RepoSettings, Session

USER = 12345
HEAD, TAIL = 200_000, 200_000
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/opt")
# Runs its argument as a bash script and writes what `wait4` says to a file that only this program knows.
RUNNER = """
import json, os, resource, signal, sys, time
script, result, limit = sys.argv[1], sys.argv[2], float(sys.argv[3])
start = time.monotonic()
child = os.fork()
if not child:
    os.setsid()
    os.execvp("bash", ["bash", "-c", script])
timed_out = False
def stop(*_):
    global timed_out
    timed_out = True
    os.killpg(child, signal.SIGKILL)
signal.signal(signal.SIGALRM, stop)
signal.setitimer(signal.ITIMER_REAL, limit)
while True:
    try:
        _, status, used = os.wait4(child, 0)
        break
    except InterruptedError:
        continue
signal.setitimer(signal.ITIMER_REAL, 0)
seconds = time.monotonic() - start
try:
    os.killpg(child, signal.SIGKILL)
except ProcessLookupError:
    pass
code = os.waitstatus_to_exitcode(status)
with open(result, "w") as out:
    json.dump({"exit": code if code >= 0 else None, "signal": -code if code < 0 else None, "seconds": seconds,
               "user_s": used.ru_utime, "sys_s": used.ru_stime, "peak_bytes": used.ru_maxrss * 1024,
               "timed_out": timed_out}, out)
"""


@dataclass(frozen=True)
class Line:
    file: str
    line: int
    text: str


class Place:
    """The volumes of one review: make it with a git repository, then open workspaces on it."""

    def __init__(self, folder: Path, source: Path):
        self.folder = folder
        for name in ("base", "venv/plain", "venv/test"):
            (folder / name).mkdir(parents=True)
        subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(source), str(folder / "base/repo")], check=True)
        self._give(folder)
        self._count = 0

    def install_workspace(self) -> "LocalWorkspace":
        return LocalWorkspace(self, self.folder / "base/repo", writable_venvs=True)

    def step_workspace(self) -> "LocalWorkspace":
        self._count += 1
        job = self.folder / f"job{self._count}"
        shutil.copytree(self.folder / "base/repo", job, symlinks=True)
        self._give(job)
        return LocalWorkspace(self, job, writable_venvs=False)

    def repo(self, settings: RepoSettings | None = None) -> Repo:
        git = ["git", "-c", "safe.directory=*", "-C", str(self.folder / "base/repo")]
        files = subprocess.run([*git, "ls-files", "-z"], check=True, capture_output=True, text=True).stdout
        commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
        return Repo(
            name="sample",
            url="https://example.org/sample.git",
            ref="main",
            commit=commit,
            commit_date="2026-01-01T00:00:00+00:00",
            files=tuple(sorted(filter(None, files.split("\0")))),
            settings=settings or RepoSettings(),
            today="2026-01-02",
        )

    @staticmethod
    def _give(folder: Path) -> None:
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", f"{USER}:{USER}", str(folder)], check=True)


class LocalWorkspace:
    """See `review_agents.ports.Workspace`."""

    def __init__(self, place: Place, job: Path, *, writable_venvs: bool):
        self.place, self.job, self.writable_venvs = place, job, writable_venvs
        self.scratch = job.parent / f"{job.name}-scratch{time.monotonic_ns()}"
        for name in ("tmp", "home", "runner"):
            (self.scratch / name).mkdir(parents=True)
        place._give(self.scratch)
        self.ran: list[tuple[str, Ran]] = []

    def run(
        self,
        command: str,
        *,
        environment: Environment = Environment.PLAIN,
        network: Network = Network.NONE,
        timeout_s: float = 120.0,
        stdin: str = "",
    ) -> Ran:
        result = self.scratch / "runner/result.json"
        result.unlink(missing_ok=True)
        arguments = [*self._box(environment, network), "/usr/bin/python3", "-I", "-c", RUNNER, command]
        ended = subprocess.run(
            [*arguments, "/runner/result.json", str(timeout_s)],
            input=stdin.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s + 60,
        )
        text = ended.stdout.decode("utf-8", "replace")
        if not result.exists():
            raise RuntimeError(f"bubblewrap did not start: {text[-500:]}")
        dropped = max(0, len(text) - HEAD - TAIL)
        head, tail = (text[:HEAD], text[-TAIL:]) if dropped else (text, "")
        ran = Ran(**json.loads(result.read_text()), head=head, tail=tail, dropped_bytes=dropped)
        self.ran.append((command, ran))
        return ran

    def measure(
        self,
        name: str,
        command: str,
        *,
        sessions: int = 6,
        warmup: int = 1,
        environment: Environment = Environment.PLAIN,
        timeout_s: float = 120.0,
    ) -> Measurement:
        taken = []
        for number in range(warmup + sessions):
            ran = self.run(command, environment=environment, timeout_s=timeout_s)
            if not ran.ok:
                raise CommandFailed(command, ran)
            if number >= warmup:
                taken.append(Session(value=ran.seconds, user_s=ran.user_s, sys_s=ran.sys_s, peak_bytes=ran.peak_bytes))
        return Measurement(name=name, command=command, sessions=tuple(taken))

    def read(self, path: str, *, limit_bytes: int = 1_000_000) -> str:
        place = self._outside(path)
        if place.is_symlink() or not place.is_file():
            raise NoSuchFile(path)
        with place.open("rb") as file:
            return file.read(limit_bytes).decode("utf-8", "replace")

    def list(self, folder: str = ".") -> tuple[str, ...]:
        top = self._outside(folder)
        found = [path for path in top.rglob("*") if path.is_file() and not path.is_symlink()]
        return tuple(sorted(str(path.relative_to(self.job)) for path in found if self.job in path.parents))

    def search(self, pattern: str, *, folder: str = ".", limit: int = 200) -> tuple[Line, ...]:
        found = []
        for path in self.list(folder):
            for number, text in enumerate(self.read(path).splitlines(), start=1):
                if re.search(pattern, text):
                    found.append(Line(path, number, text))
        return tuple(found[:limit])

    def write(self, path: str, text: str) -> None:
        place = self._outside(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        self.place._give(place.parent if path.startswith("/job") or not path.startswith("/") else place)

    def _outside(self, path: str) -> Path:
        for inside, outside in (
            ("/job/repo", self.job),
            ("/tmp", self.scratch / "tmp"),
            ("/venv", self.place.folder / "venv"),
        ):
            if path == inside or path.startswith(f"{inside}/"):
                return outside / path[len(inside) :].lstrip("/")
        return self.job / path

    def _box(self, environment: Environment, network: Network) -> tuple[str, ...]:
        venv = "--bind" if self.writable_venvs else "--ro-bind"
        folder = self.place.folder
        first = {Environment.NONE: [], Environment.PLAIN: ["/venv/plain/bin"], Environment.TEST: ["/venv/test/bin"]}
        path = ":".join([*first[environment], "/usr/local/bin", "/usr/bin", "/bin"])
        arguments = ["bwrap", "--die-with-parent", "--new-session", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
        for name in SYSTEM:
            target = Path(name)
            if target.is_symlink():
                arguments += ["--symlink", os.readlink(name), name]
            elif target.exists():
                arguments += ["--ro-bind", name, name]
        arguments += [
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--perms",
            "0755",
            "--dir",
            "/job",
            "--perms",
            "0755",
            "--dir",
            "/home",
        ]
        arguments += ["--bind", str(self.job), "/job/repo", "--bind", str(self.scratch / "tmp"), "/tmp"]
        arguments += [
            "--bind",
            str(self.scratch / "home"),
            "/home/step",
            "--bind",
            str(self.scratch / "runner"),
            "/runner",
        ]
        arguments += [venv, str(folder / "venv"), "/venv", "--chdir", "/job/repo", "--clearenv"]
        values = {"PATH": path, "HOME": "/home/step", "LANG": "C.UTF-8", "USER": "step"}
        if network is Network.EGRESS:
            values |= {
                name: value for name, value in os.environ.items() if name.startswith("PIP_") or "proxy" in name.lower()
            }
        else:
            arguments.append("--unshare-net")
        for name, value in values.items():
            arguments += ["--setenv", name, value]
        if os.geteuid() == 0:
            arguments += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
            arguments += ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs"]
        return tuple(arguments)
