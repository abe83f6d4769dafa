"""Running `git` so that nothing a repo or a URL says is carried out.

git reads no configuration but ours, asks nobody anything, runs no hook, filter or submodule, speaks only the
protocols named for the call, and is ended with everything it started when it takes too long, writes too much, or
the caller no longer wants it. Configuration of a *served* local repo is read by git's upload-pack; what that could
reach is closed off in `git_local`.
"""

import ctypes
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from review_agents.ports import RepoProblem, Stopped

LOOK_EVERY_S = 0.1  # how often a running git is checked against its limits
STDERR_BYTES = 20_000
KEPT_ENVIRONMENT = ("PATH", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO", "LD_LIBRARY_PATH")

CONFIGURATION = """\
[core]
\thooksPath = /dev/null
\tattributesFile = /dev/null
\texcludesFile = /dev/null
\tfsmonitor = false
\taskPass = /bin/false
\tbigFileThreshold = 16m
\tquotePath = false
[safe]
\tdirectory = *
[credential]
\thelper =
[submodule]
\trecurse = false
[fetch]
\trecurseSubmodules = false
\tunpackLimit = 1
\tshowForcedUpdates = false
[transfer]
\tbundleURI = false
[uploadpack]
\tallowAnySHA1InWant = true
[filter "lfs"]
\tclean = cat
\tsmudge = cat
\tprocess =
\trequired = false
[gc]
\tauto = 0
\tautoDetach = false
[maintenance]
\tauto = false
[http]
\tfollowRedirects = initial
\tlowSpeedLimit = 1000
\tlowSpeedTime = 60
[advice]
\tdetachedHead = false
[init]
\tdefaultBranch = main
"""


class GitFailed(RepoProblem):
    """git ended with a status other than 0, or not in time; `stderr` is what it said."""

    def __init__(self, message: str, stderr: str = "", *, retry: bool = True):
        super().__init__(message, retry=retry)
        self.stderr = stderr


class TooLarge(RepoProblem):
    """The repo, or git's answer, is over a size cap."""


class GitCommand:
    """The one way in which this service starts git."""

    def __init__(self, home: Path):
        self._home = home
        self._configuration = home / "gitconfig"

    def run(
        self,
        *arguments: str | bytes,
        action: str,
        git_dir: Path | None = None,
        protocols: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        output_bytes: int = 64 << 20,
        too_large: Callable[[], str] = lambda: "",
        cancelled: Callable[[], bool] = lambda: False,
        codes: Sequence[int] = (0,),
    ) -> bytes:
        """What git printed. `action` completes "git could not ..."; `too_large` says why it must end, or "".

        Raises `GitFailed`, `TooLarge`, `Stopped`.
        """
        command = ["git", *([f"--git-dir={git_dir}"] if git_dir else []), "--literal-pathspecs", *arguments]
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as given:
            given.write(stdin)
            given.seek(0)
            try:
                process = subprocess.Popen(
                    command,
                    stdin=given,
                    stdout=output,
                    stderr=errors,
                    env=self._environment(protocols, environment or {}),
                    cwd=self._home,
                    start_new_session=True,
                    preexec_fn=end_with_parent,
                )
            except FileNotFoundError:
                raise GitFailed("git is not installed on this machine. Install it and try again.") from None
            try:
                deadline = time.monotonic() + timeout_s
                while not _ended(process, LOOK_EVERY_S):
                    if cancelled():
                        raise Stopped
                    if time.monotonic() > deadline:
                        raise GitFailed(f"git could not {action} within {timeout_s:.0f} s.")
                    if os.fstat(output.fileno()).st_size > output_bytes:
                        raise TooLarge(f"git could not {action}: its answer is over {output_bytes >> 20} MiB.")
                    if why := too_large():
                        raise TooLarge(why)
            finally:
                _end(process)
            if why := too_large():
                raise TooLarge(why)
            if process.returncode not in codes:
                said = _tail(errors, STDERR_BYTES).strip()
                raise GitFailed(f"git could not {action}: {printable(said, lines=True) or 'it said nothing'}", said)
            if os.fstat(output.fileno()).st_size > output_bytes:
                raise TooLarge(f"git could not {action}: its answer is over {output_bytes >> 20} MiB.")
            output.seek(0)
            return output.read()

    def _environment(self, protocols: Sequence[str], more: Mapping[str, str]) -> dict[str, str]:
        self._home.mkdir(parents=True, exist_ok=True)
        if not self._configuration.exists() or self._configuration.read_text() != CONFIGURATION:
            fresh = self._configuration.with_suffix(f".{os.getpid()}")
            fresh.write_text(CONFIGURATION)
            fresh.replace(self._configuration)
        kept = {name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ}
        return {
            **kept,
            "HOME": str(self._home),
            "LC_ALL": "C.UTF-8",
            "GIT_CONFIG_GLOBAL": str(self._configuration),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_ALLOW_PROTOCOL": ":".join(protocols) or "none",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "/bin/false",
            "SSH_ASKPASS": "/bin/false",
            "GIT_LFS_SKIP_SMUDGE": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_PAGER": "cat",
            **more,
        }


def printable(text: str, limit: int = 2000, *, lines: bool = False) -> str:
    """The text for a message or a log line: control characters as escapes, so that no terminal obeys them.

    `lines` leaves line ends as they are.
    """
    clean = "".join(
        c if c.isprintable() or (lines and c == "\n") else c.encode("unicode_escape", "replace").decode() for c in text
    )
    return clean if len(clean) <= limit else clean[:limit] + " ..."


def end_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it is gone, also after kill -9."""
    _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


_libc = ctypes.CDLL(None, use_errno=True)


def _ended(process: subprocess.Popen[bytes], wait_s: float) -> bool:
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the whole process group, if it still runs; git's helpers (remote-https, index-pack) are in it."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _tail(file: IO[bytes], limit: int) -> str:
    size = os.fstat(file.fileno()).st_size
    file.seek(max(0, size - limit))
    return file.read().decode("utf-8", "replace")
