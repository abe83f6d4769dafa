"""What the reviewer needs from outside. Implementations live in orchestrator."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from review_agents.records import Answer, Environment, Measurement, Network, Question, Ran, Record


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


class RemoteHead(Record):
    """What a ref of a git repository names, looked up without fetching anything."""

    commit: str  # full object id; a tag is peeled
    ref: str  # branch or tag without refs/heads/ or refs/tags/, or the commit as asked for
    default_ref: str  # the branch that HEAD names; empty when it names none


class Checkout(Protocol):
    """One commit of a repository, read from its mirror: nothing is ever checked out on the host."""

    commit: str  # full object id

    def date(self) -> str:
        """Committer date, ISO 8601 with offset."""
        ...

    def files(self) -> tuple[str, ...]:
        """Tracked files and symbolic links, sorted; submodules are not among them."""
        ...

    def submodules(self) -> tuple[str, ...]: ...

    def lfs_pointers(self) -> tuple[str, ...]:
        """Tracked files whose content is in Git LFS's store, which is not asked."""
        ...

    def links_outside(self) -> tuple[str, ...]:
        """Tracked symbolic links that lead out of the tree."""
        ...

    def show(self, path: str) -> str | None:
        """The file's text, undecodable bytes replaced; None where there is no such file or it is very large."""
        ...

    def blobs(self) -> Mapping[str, str]:
        """Git's id of each tracked file's content; of files alone, without links and submodules."""
        ...

    def content(self, path: str) -> bytes | None:
        """The file as it is; None as with `show`, from a larger size on."""
        ...

    def changed(self, since: str) -> tuple[str, ...]:
        """Files that differ from an earlier commit. Raises `RepoProblem` when the mirror lacks that."""
        ...

    def since(self, earlier: str) -> tuple[str, ...]:
        """The commits after an earlier one, up to and including this one, along first parents, oldest first.

        Empty when the earlier one does not lie on that line.
        """
        ...

    def parent(self) -> str:
        """The first parent; empty for a first commit."""
        ...

    def last_tag(self) -> str:
        """The commit of the nearest tag in the history before this one; empty when there is none."""
        ...

    def subject(self) -> str:
        """The first line of the commit's message."""
        ...

    def bundle(self) -> AbstractContextManager[Path]:
        """A git bundle of the commit with HEAD, branch `review` and the tags in its history; gone afterwards.

        Where the history is large it is cut: a file NAME.shallow beside the bundle then lists the commits whose
        parents are missing, and whoever clones writes it to `.git/shallow` before fetching from the bundle.
        """
        ...


class Git(Protocol):
    """Looks at repositories, local folders and remote ones, without running anything of theirs."""

    def probe(self, url: str, ref: str) -> RemoteHead:
        """What `ref` (empty: HEAD) names at the URL or absolute folder, now.

        Raises `UnreachableRepo`, `UnknownRef` or `EmptyRepo`, each with a message for a person.
        """
        ...

    def fetch(self, url: str, ref: str, *, cancelled: Callable[[], bool]) -> Checkout:
        """Bring the mirror up to date and open the ref's commit. Raises `RepoProblem`, and `Stopped` when cancelled."""
        ...

    def sweep(self) -> tuple[str, ...]:
        """Remove what killed processes left behind; names what went. Only while nobody reviews on this machine."""
        ...

    def at(self, url: str, commit: str) -> Checkout:
        """A commit fetched earlier. Raises `UnknownRef` when this machine's mirror lacks it."""
        ...

    def uncommitted(self, url: str, commit: str) -> tuple[str, ...]:
        """Files of a local folder that differ from the commit or are not tracked; empty for a remote."""
        ...


class Stopped(Exception):
    """The caller no longer wanted the result."""


class RepoProblem(RuntimeError):
    """A repository cannot be used as asked. `retry` says whether the same call may work later."""

    def __init__(self, message: str, *, retry: bool = False):
        super().__init__(message)
        self.retry = retry


class UnreachableRepo(RepoProblem):
    """No answer, no permission, or no repository there."""


class UnknownRef(RepoProblem):
    """The repository has no such branch, tag or commit."""


class EmptyRepo(RepoProblem):
    """The repository has no commit."""


class NodeWork(Record):
    """What a node says of its own work. Servers tell different parts of it; what one does not tell is None."""

    state: str = ""  # in the node's own word: ok, loading, ...
    why: str = ""  # why it is in that state
    tau: float | None = None  # tokens committed per verify
    tokens_per_s: float | None = None
    accepted_share: float | None = None  # drafts accepted over drafts verified
    restored_share: float | None = None  # prompt tokens taken from the prefix store
    running: int | None = None
    waiting: int | None = None
    device: str = ""
    drafter: str = ""


class NodeHealth(Record):
    """What an OpenAI-compatible endpoint answered when asked for its models."""

    reachable: bool
    problem: str = ""  # in words, when it is not reachable or answered nonsense
    models: tuple[str, ...] = ()
    seconds: float = 0.0
    work: NodeWork | None = None  # None: it tells nothing of it


class Node(Protocol):
    """An inference node, seen from the service."""

    def health(self) -> NodeHealth:
        """Ask now, within a few seconds. Never raises for what the node does."""
        ...


# Models ----------------------------------------------------------------------------------


class Ability(Record):
    """What a model's endpoint can do, found out by asking it."""

    model: str  # as the endpoint names it
    node: str  # its address, without credentials
    native_tools: bool  # tool calls are understood; otherwise they are written in the text
    context_tokens: int | None = None  # prompt and answer together; None: the endpoint does not say


class ChatModel(Protocol):
    """A model behind some endpoint, or something that plays one."""

    def ability(self, *, cancelled: Callable[[], bool]) -> Ability:
        """Asked once before a conversation begins. Raises `NodeAway`, `NodeRefused`, `Stopped`."""
        ...

    def ask(self, question: Question, *, cancelled: Callable[[], bool]) -> Answer:
        """One turn. Raises `Stopped` when cancelled; `NodeAway`, `NodeRefused`, `ContextOverflow`, `BrokenAnswer`."""
        ...


class NodeAway(RuntimeError):
    """The node does not answer, still loads, or is busy with something else: the same request may work later."""


class NodeRefused(RuntimeError):
    """The node will not serve this, now or later: a wrong key, an unknown model, a request that it takes for wrong."""


class ContextOverflow(RuntimeError):
    """The conversation and its answer do not fit. Counts are the server's, None where it gave none."""

    def __init__(self, message: str, *, prompt_tokens: int | None = None, context_tokens: int | None = None):
        super().__init__(message)
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class BrokenAnswer(RuntimeError):
    """The server failed on what the model wrote, for example on a tool call that it could not read."""


class WorkspaceReset(RuntimeError):
    """The container died under a command and a fresh one took its place: files written in it are gone."""
