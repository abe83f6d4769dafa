"""What a sandbox is, whoever provides it: the only way in which repo code ever runs.

A `Sandbox` is one backend on this machine. For a review it makes volumes (/base/repo,
/venv/plain, /venv/test) and opens boxes on them, one box a step. The order of calls:

    describe        any time; says what this backend is and which limits it cannot set
    prepare         once a review and machine, before the first box; again after a crash, when it starts over
    open            once a step and attempt, with the name already written to the step's row
    Box.run/...     any number, one at a time
    Box.destroy     once the step ends; may follow a failed `open`, and may be called twice
    drop            when the review has ended; removes volumes and any box left
    sweep           at worker start and before each review; removes what belongs to no living review

Every container, volume, folder and cgroup carries the labels `lamplighter.instance`,
`lamplighter.review`, `lamplighter.step` and `lamplighter.attempt` (in its name where the
thing has no labels), so that a successor of a killed worker finds them.

What each backend must hold is the conformance suite's business:
tests/orchestrator/sandbox/test_conformance.py.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from review_agents.records import Environment, Network, Ran

# Exit status of the step runner itself when it could not start a command at all.
CANNOT_START = 126


@dataclass(frozen=True, slots=True)
class Limits:
    """What one box may use. Sizes in bytes, time in seconds."""

    cpus: tuple[int, ...] = ()  # host CPU numbers to pin to; empty: no pinning
    memory_bytes: int = 4 << 30  # swap is never added to it
    pids: int = 512
    output_bytes: int = 8 << 20  # kept output of one command, head and tail together
    scratch_bytes: int = 4 << 30  # /job, /tmp and HOME together
    volume_bytes: int = 16 << 30  # /base and /venv together, while an install step writes them
    free_bytes: int = 1 << 30  # what install steps must leave free on the disk
    step_s: float = 3600.0  # after this the whole box is ended, whatever runs in it


class Patience:
    """Seconds that a review may still spend on disturbed timings: waiting for a quieter moment, measuring again.

    One for all boxes of a review: where the machine is busy it is busy for all of them, and each would wait in vain.
    """

    def __init__(self, seconds: float):
        self.left_s = seconds
        self.waited_s = 0.0  # of what was spent, the part in which nothing ran

    def covers(self, seconds: float) -> bool:
        return self.left_s >= seconds

    def spend(self, *, waited_s: float, measured_s: float) -> None:
        self.waited_s += waited_s
        self.left_s = max(0.0, self.left_s - waited_s - measured_s)


class Role(StrEnum):
    """INSTALL boxes may write /base and /venv: there /job/repo *is* /base/repo.
    STEP boxes see both read-only and get a fresh copy of /base/repo at /job/repo."""

    INSTALL = "install"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class BoxOrder:
    """Which box to open."""

    review: str  # review id
    step: str  # step name, for example "probe:readme"
    attempt: int
    role: Role = Role.STEP
    egress: bool = False  # whether runs in it may use Network.EGRESS
    limits: Limits = field(default_factory=Limits)
    requires_python: str = ""  # a version specifier; no match raises `NeedsMissing`
    image: str = ""  # one of LAMPLIGHTER_SANDBOX_IMAGES; empty: the default; no such raises `NeedsMissing`


@dataclass(frozen=True, slots=True)
class Description:
    """What a backend is, for the review's page and the machine key of measurements."""

    name: str  # docker, bubblewrap, fake
    version: str
    image: str  # image digest, or what stands for it
    python: str  # full version of the interpreter inside
    missing_limits: tuple[str, ...] = ()  # limits that cannot be set here, in words


class Box(Protocol):
    """An open sandbox. All methods raise `BoxGone` once it was destroyed or died."""

    name: str  # unique on this machine; contains review, step and attempt

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
        """Run a bash script in /job/repo as the step's user.

        Times and the oom counter are taken inside. Stragglers are dead when it returns.
        `on_output` gets text as it comes, at most about once a second. When `cancelled`
        (asked about once a second) says True, the command is killed and `Cancelled` rises.
        """
        ...

    def read(self, path: str, *, limit_bytes: int) -> bytes:
        """Raises `review_agents.ports.NoSuchFile`. Never follows a link out of the box."""
        ...

    def write(self, path: str, content: bytes) -> None: ...

    def list(self, folder: str) -> tuple[str, ...]:
        """Regular files below the folder, relative to /job/repo, sorted; links not followed."""
        ...

    def changed(self, files: Sequence[str]) -> tuple[str, ...]:
        """Those files of /job/repo that are not what they are in /base/repo; of many, the first ones.

        Looked at from outside the commands: nothing that one left behind (PYTHONPATH, a changed .git) has a say.
        """
        ...

    def destroy(self) -> None: ...


class Sandbox(Protocol):
    """One backend on this machine."""

    name: str

    def describe(self) -> Description: ...

    def prepare(self, review: str, bundle: Path, commit: str) -> None:
        """Make the review's volumes and clone the git bundle into /base/repo as the step's user.

        Starts over when volumes of that review exist. Raises `SandboxError`.
        """
        ...

    def prepared(self, review: str) -> bool:
        """Whether the review's volumes are still here, so that a resumed review may go on with them."""
        ...

    def open(self, order: BoxOrder) -> Box: ...

    def drop(self, review: str) -> None:
        """Remove everything of that review. Quiet when there is nothing."""
        ...

    def sweep(self, living: Collection[str]) -> tuple[str, ...]:
        """Remove what carries our instance label and belongs to no living review; name what went."""
        ...


class SandboxError(RuntimeError):
    """The backend failed. `retry` says whether the same call may work later."""

    def __init__(self, message: str, *, retry: bool = False):
        super().__init__(message)
        self.retry = retry


class NeedsMissing(SandboxError):
    """The sandbox lacks what the repo needs (an interpreter version): could_not_run, no fault."""


class BoxGone(SandboxError):
    """The box died or was destroyed."""


class Cancelled(Exception):
    """The caller asked for the running command to be ended."""
