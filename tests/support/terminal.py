"""A terminal for tests of what a person types: real commands by a real shell, on a machine that is thrown away.

    with thrown_away(tmp_path, network=False) as inside:
        terminal = Terminal(tmp_path, {"PATH": ...}, inside=inside)
        terminal.types("make up", until="Lamplighter is up", then="\\x03")    # Ctrl-C
    assert terminal.typed == {"make up"}

Inside, /etc, /opt, /srv and /var/lib are laid over: users, units and files that a command makes there are gone
afterwards. `as_here` says what stands in for a word of the page; all else is typed as it is.
"""

import fcntl
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

MOMENT_S = 1.5  # a question is shown before the typing is hidden, and then what was typed too early is thrown away
BY_CTRL_C = [130, -signal.SIGINT]
LAID_OVER = ("/etc", "/opt", "/srv", "/var/lib")
LAY = """
set -e
mount -t tmpfs none "$0"
for place in {places}; do
    part="$0$place"; mkdir -p "$part/upper" "$part/work"
    mount -t overlay overlay -o lowerdir=$place,upperdir=$part/upper,workdir=$part/work $place
done
{more}
echo ready
exec sleep infinity
"""


@contextmanager
def thrown_away(folder: Path, *, network: bool) -> Iterator[tuple[str, ...]]:
    """The words before a command that is to run inside. Without a network there is a loopback of its own."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        pytest.skip("a machine to throw away needs root, unshare and ip (apt-get install iproute2)")
    (folder / "laid").mkdir(exist_ok=True)
    parts = ["--mount"] + ([] if network else ["--net"])
    script = LAY.format(places=" ".join(LAID_OVER), more="" if network else "ip link set lo up")
    command = ["unshare", *parts, "--propagation", "private", "sh", "-c", script, str(folder / "laid")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as holder:
        assert holder.stdout is not None
        try:
            said = holder.stdout.readline()
            if said.strip() != "ready":
                pytest.skip(f"nothing can be laid over this machine's folders: {said}")
            yield ("nsenter", "--target", str(holder.pid), *parts, "--")
        finally:
            holder.kill()


@dataclass
class Terminal:
    cwd: Path
    variables: Mapping[str, str]
    inside: Sequence[str] = ()
    as_here: dict[str, str] = field(default_factory=dict)
    patience_s: float = 120.0
    typed: set[str] = field(default_factory=set)

    @property
    def home(self) -> Path:
        return Path(self.variables["HOME"])

    def types(
        self,
        line: str,
        *,
        answers: Sequence[str] = (),
        until: str = "",
        meanwhile: Callable[[], object] = lambda: None,
        status: int | Sequence[int] = 0,
    ) -> str:
        """What the screen shows, once the line has ended with that status, or by that Ctrl-C.

        answers     typed one by one, each when something is asked: the screen ends with a colon or a bracket
        until       a pattern; when the screen shows it, `meanwhile` is done and Ctrl-C typed
        """
        self.typed.add(line)
        here = line
        for word, stand_in in self.as_here.items():
            here = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", lambda _, by=stand_in: by, here)  # type: ignore[misc]
        place = self.cwd / ".cwd-of-the-test"
        script = f"trap 'pwd > {shlex.quote(str(place))}' EXIT; cd {shlex.quote(str(self.cwd))}\n{here}\n"
        screen = Screen([*self.inside, "bash", "-c", script], self.variables, self.patience_s)
        try:
            for answer in answers:
                screen.wait_for(r"[:\]] *$")
                time.sleep(MOMENT_S)
                screen.press(f"{answer}\n")
            if until:
                screen.wait_for(until)
                meanwhile()
                screen.press("\x03")
            ended = screen.wait()
        finally:
            screen.close()
        right = [status] if isinstance(status, int) else list(status)
        assert ended in right + (BY_CTRL_C if until else []), f"{here}: {ended}\n{screen.text[-6000:]}"
        assert "Traceback" not in screen.text, screen.text[-6000:]
        with suppress(FileNotFoundError):
            self.cwd = Path(place.read_text().strip())
            place.unlink()
        return screen.text

    def also(self, line: str) -> str:
        """Something that no page says."""
        known = set(self.typed)
        try:
            return self.types(line)
        finally:
            self.typed = known


def in_the_foreground() -> None:
    """As a person's shell starts it, also where these tests run in another shell's background, which ignores Ctrl-C."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Screen:
    """One command on a pseudo-terminal."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], patience_s: float):
        self.text = ""
        self._patience_s = patience_s
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=dict(variables),
            start_new_session=True,
            preexec_fn=in_the_foreground,
        )
        os.close(theirs)
        self._from = 0  # what was there before was answered

    def press(self, keys: str) -> None:
        self._from = len(self.text)
        os.write(self._ours, keys.encode())

    def wait_for(self, pattern: str) -> None:
        until = time.monotonic() + self._patience_s
        while not re.search(pattern, self.text[self._from :]):
            assert self._read(), f"it ended without {pattern}: {self.text[-6000:]}"
            assert time.monotonic() < until, f"{pattern} is not shown: {self.text[-6000:]}"

    def wait(self) -> int:
        until = time.monotonic() + self._patience_s
        while self._read():
            assert time.monotonic() < until, f"it does not end: {self.text[-6000:]}"
        return self._process.wait(30)

    def _read(self) -> bool:
        """Whether there may be more."""
        ready, _, _ = select.select([self._ours], [], [], 0.2)
        if ready:
            try:
                more = os.read(self._ours, 65536)
            except OSError:  # nobody holds the other end any more
                return False
            self.text += more.decode(errors="replace").replace("\r\n", "\n")
            return bool(more)
        return self._process.poll() is None

    def close(self) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._ours)
