"""What the reviewer needs from outside. Implementations live in orchestrator."""

from typing import Protocol

from review_agents.records import Environment, Measurement, Network, Ran


class Match(Protocol):
    """One line that a search found."""

    file: str
    line: int
    text: str


class Workspace(Protocol):
    """One step's place in a sandbox: a fresh writable copy of the repo at /job/repo.

    Paths are relative to /job/repo (absolute ones inside the sandbox are taken as they are).
    A command is a bash script; its working directory is /job/repo. Files written, also under
    /tmp and HOME, stay until the step ends. Nothing survives the step.
    """

    def run(
        self,
        command: str,
        *,
        environment: Environment = Environment.PLAIN,
        network: Network = Network.NONE,
        timeout_s: float = 120.0,
        stdin: str = "",
    ) -> Ran:
        """Run to its end, its time limit or its memory limit. Never raises for what the command does."""
        ...

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
        """Time the command as fresh processes. Raises `CommandFailed` if it does not exit 0."""
        ...

    def read(self, path: str, *, limit_bytes: int = 1_000_000) -> str:
        """The file's text, undecodable bytes replaced. Raises `NoSuchFile`."""
        ...

    def list(self, folder: str = ".") -> tuple[str, ...]:
        """All files below the folder, relative to /job/repo, sorted; symbolic links not followed."""
        ...

    def search(self, pattern: str, *, folder: str = ".", limit: int = 200) -> tuple[Match, ...]:
        """Lines that match the extended regular expression."""
        ...

    def write(self, path: str, text: str) -> None:
        """Create or replace a file below /job/repo or /tmp."""
        ...


class NoSuchFile(LookupError):
    """There is no such file in the workspace."""


class CommandFailed(RuntimeError):
    """A command that was to be measured did not exit 0."""

    def __init__(self, command: str, ran: Ran):
        super().__init__(f"{command!r} ended with {ran.ending}: {ran.output[-500:]}")
        self.ran = ran
