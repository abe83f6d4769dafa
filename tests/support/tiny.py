"""A review small enough for tests of the runner: a repo in a dict, two probes of one command each.

The first probe, `greets`, runs `greet` and claims a finding unless it says hello; `counts` measures `count`.
With FakeSandbox the commands are answered by `Script`; in a real box they are shell functions of the probes' own.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1
from pathlib import Path
from typing import Any

from orchestrator.sandbox.fake import FakeSandbox
from orchestrator.sandbox.workspace import BoxWorkspace
from orchestrator.services.workshop import Workshop
from orchestrator.store.session import Sessions
from review_agents.ports import RemoteHead, RepoProblem, UnknownRef, Workspace
from review_agents.probes import Prepared, Probe
from review_agents.records import (
    Candidate,
    Kind,
    Place,
    ProbeResult,
    ProbeState,
    Ran,
    Repo,
    Reproduction,
    Severity,
    Symptom,
)
from tests.factories import make_shop

FIRST, SECOND = "1" * 40, "2" * 40  # commits
FILES = {"README.md": "Run greet. It says hello.\n", "greet.sh": "echo good morning\n"}
GREET, COUNT, INSTALL = "bash greet.sh", "seq 3", "echo installing"


# The repo ----------------------------------------------------------------------------------


class TinyCheckout:
    def __init__(self, commit: str, files: Mapping[str, str], folder: Path):
        self.commit = commit
        self._files = files
        self._folder = folder

    def date(self) -> str:
        return "2026-11-29T10:00:00+01:00"

    def files(self) -> tuple[str, ...]:
        return tuple(sorted(self._files))

    def submodules(self) -> tuple[str, ...]:
        return ()

    def lfs_pointers(self) -> tuple[str, ...]:
        return ()

    def links_outside(self) -> tuple[str, ...]:
        return ()

    def show(self, path: str) -> str | None:
        content = self.content(path)
        return None if content is None else content.decode("utf-8", "replace")

    def blobs(self) -> Mapping[str, str]:
        return {path: blob_id(in_bytes(text)) for path, text in self._files.items()}

    def content(self, path: str) -> bytes | None:
        return in_bytes(self._files[path]) if path in self._files else None

    def changed(self, since: str) -> tuple[str, ...]:
        return ()

    def since(self, earlier: str) -> tuple[str, ...]:
        return (self.commit,)

    def parent(self) -> str:
        return FIRST if self.commit == SECOND else ""

    def last_tag(self) -> str:
        return ""

    def subject(self) -> str:
        return "A commit"

    @contextmanager
    def bundle(self) -> Iterator[Path]:
        self._folder.mkdir(parents=True, exist_ok=True)
        made = self._folder / "tiny.bundle"
        made.write_bytes(b"")
        yield made


def in_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def blob_id(content: bytes) -> str:
    return sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class TinyGit:
    """A remote with one branch, whose commits are dicts of files."""

    folder: Path
    commits: dict[str, Mapping[str, str]] = field(default_factory=lambda: {FIRST: FILES})
    head: str = FIRST
    problem: list[RepoProblem] = field(default_factory=list)  # raised by the next fetches, one each
    dirty: tuple[str, ...] = ()

    def probe(self, url: str, ref: str = "") -> RemoteHead:
        return RemoteHead(commit=self.head, ref=ref or "main", default_ref="main")

    def sweep(self) -> tuple[str, ...]:
        return ()

    def fetch(self, url: str, ref: str = "", *, cancelled: Callable[[], bool] = lambda: False) -> TinyCheckout:
        if self.problem:
            raise self.problem.pop(0)
        return self.at(url, ref if ref in self.commits else self.head)

    def at(self, url: str, commit: str) -> TinyCheckout:
        if commit not in self.commits:
            raise UnknownRef(f"no commit {commit}")
        return TinyCheckout(commit, self.commits[commit], self.folder)

    def uncommitted(self, url: str, commit: str) -> tuple[str, ...]:
        return self.dirty


# The probes --------------------------------------------------------------------------------


def prepare(workspace: Workspace, repo: Repo) -> tuple[Prepared, ProbeResult]:
    ran = workspace.run(INSTALL)
    prepared = Prepared(installed_plain=ran.ok, installed_test=ran.ok, python="3.11.0")
    state = ProbeState.PASSED if ran.ok else ProbeState.FAILED
    return prepared, ProbeResult(probe="install", state=state, summary="installed")


def greets(workspace: Workspace, repo: Repo, prepared: Prepared) -> ProbeResult:
    if prepared.not_installed:
        return ProbeResult(probe="greets", state=ProbeState.COULD_NOT_RUN, reason=prepared.not_installed)
    ran = workspace.run(GREET)
    if "hello" in ran.output:
        return ProbeResult(probe="greets", state=ProbeState.PASSED, summary="it greets")
    return ProbeResult(probe="greets", state=ProbeState.FAILED, summary="no greeting", candidates=(no_greeting(),))


def no_greeting(**changed: Any) -> Candidate:
    given: dict[str, Any] = {
        "kind": Kind.DOCUMENTATION,
        "rule": "tiny.no-greeting",
        "title": "greet does not say hello",
        "description": "README promises a hello.",
        "severity": Severity.MEDIUM,
        "places": (Place(file="README.md", line=1, symbol="Usage", quote="It says hello."),),
        "reproduction": Reproduction(
            command=GREET, expected="hello", observed="good morning", control="true", symptom=Symptom(lacks=("hello",))
        ),
    }
    return Candidate(**{**given, **changed})


def counts(workspace: Workspace, repo: Repo, prepared: Prepared) -> ProbeResult:
    if prepared.not_installed:
        return ProbeResult(probe="counts", state=ProbeState.COULD_NOT_RUN, reason=prepared.not_installed)
    measured = workspace.measure("count", COUNT, sessions=2, warmup=0)
    return ProbeResult(probe="counts", state=ProbeState.PASSED, summary="counted", measurements=(measured,))


PROBES = (Probe("greets", greets), Probe("counts", counts))


# The sandbox -------------------------------------------------------------------------------


class Script:
    """Answers commands; `says[COMMAND]` replaces an answer, as one or as a list used up one by one."""

    def __init__(self, **says: Any):
        self.says: dict[str, Any] = {GREET: Ran(exit=0, seconds=0.1, head="good morning\n"), **says}
        self.ran: list[str] = []

    def __call__(self, command: str) -> Ran:
        self.ran.append(command)
        said = self.says.get(command, Ran(exit=0, seconds=0.01))
        if isinstance(said, list):
            said = said.pop(0) if len(said) > 1 else said[0]
        return said() if callable(said) else said


def tiny_shop(sessions: Sessions, data: Path, *, script: Script | None = None, **changed: Any) -> Workshop:
    """A workshop that can do tiny reviews; `shop.sandbox` is a FakeSandbox, `shop.git` a TinyGit."""
    given: dict[str, Any] = {
        "git": TinyGit(data),
        "sandbox": FakeSandbox(script or Script()),
        "workspace": lambda box, patience: BoxWorkspace(box, patience=patience, wait=lambda seconds: None),
        "prepare": prepare,
        "probes": PROBES,
    }
    return make_shop(sessions, data, **{**given, **changed})
