"""A sandbox for tests that runs nothing: a script answers, files are a dict, and any call can be told to fail.

def answer(command: str) -> Ran: ...
sandbox = FakeSandbox(answer, files={"README.md": b"..."})
sandbox.fail["open"] = SandboxError("disk full")          # the next calls of `open` raise it
sandbox.fail["run"] = [None, BoxGone("killed")]           # the first works, the second raises, then fine
sandbox.calls                                             # what was called, in order
"""

import posixpath
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from orchestrator.sandbox.contract import Box, BoxGone, BoxOrder, Cancelled, Description, SandboxError
from review_agents.ports import NoSuchFile
from review_agents.records import Environment, Network, Ran

Failure = Exception | list[Exception | None]


def succeed(command: str) -> Ran:
    return Ran(exit=0, seconds=0.01)


class FakeSandbox:
    """Keeps to the contract's order of calls and to its errors, so that it breaks when its user does."""

    name = "fake"

    def __init__(self, script: Callable[[str], Ran] = succeed, *, files: dict[str, bytes] | None = None):
        self.script = script
        self.files = files or {}
        self.fail: dict[str, Failure] = {}
        self.calls: list[tuple[str, str]] = []
        self.timeouts: list[float] = []  # of each command
        self.changed: list[str] = []  # what every box finds changed in its repo
        self.volumes: set[str] = set()
        self.boxes: dict[str, FakeBox] = {}

    def describe(self) -> Description:
        self.called("describe", "")
        return Description(name=self.name, version="1", image="none", python="3.11.0", missing_limits=("everything",))

    def prepare(self, review: str, bundle: Path, commit: str) -> None:
        self.drop_boxes(lambda box: box.order.review == review)
        self.volumes.discard(review)
        self.called("prepare", review)
        self.volumes.add(review)

    def prepared(self, review: str) -> bool:
        self.called("prepared", review)
        return review in self.volumes

    def open(self, order: BoxOrder) -> Box:
        self.called("open", f"{order.review} {order.step} {order.attempt}")
        if order.review not in self.volumes:
            raise SandboxError(f"Review {order.review} has no volumes on this machine: prepare it first.")
        name = f"lamplighter.fake.{order.review}.{order.step}.{order.attempt}"
        self.boxes[name] = FakeBox(self, name, order)
        return self.boxes[name]

    def drop(self, review: str) -> None:
        self.called("drop", review)
        self.drop_boxes(lambda box: box.order.review == review)
        self.volumes.discard(review)

    def sweep(self, living: Collection[str]) -> tuple[str, ...]:
        self.called("sweep", " ".join(sorted(living)))
        gone = self.drop_boxes(lambda box: box.order.review not in living)
        gone += [f"volumes of {review}" for review in sorted(self.volumes) if review not in living]
        self.volumes &= set(living)
        return tuple(gone)

    def drop_boxes(self, ends: Callable[["FakeBox"], bool]) -> list[str]:
        names = [name for name, box in self.boxes.items() if ends(box)]
        for name in names:
            self.boxes.pop(name).gone = True
        return names

    def called(self, method: str, about: str) -> None:
        """Note the call and raise what the test asked for."""
        self.calls.append((method, about))
        failure = self.fail.get(method)
        if isinstance(failure, list):
            failure = failure.pop(0) if failure else None
        if failure is not None:
            raise failure


class FakeBox:
    def __init__(self, sandbox: FakeSandbox, name: str, order: BoxOrder):
        self.sandbox = sandbox
        self.name = name
        self.order = order
        self.files = dict(sandbox.files)
        self.gone = False

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
        self.alive()
        self.sandbox.called("run", command)
        self.sandbox.timeouts.append(timeout_s)
        if network is Network.EGRESS and not self.order.egress:
            raise SandboxError(f"Box {self.name} was opened without egress.")
        if cancelled and cancelled():
            raise Cancelled
        ran = self.sandbox.script(command)
        if on_output and ran.output:
            on_output(ran.output)
        return ran

    def read(self, path: str, *, limit_bytes: int) -> bytes:
        self.alive()
        self.sandbox.called("read", path)
        try:
            return self.files[relative(path)][:limit_bytes]
        except KeyError:
            raise NoSuchFile(f"there is no file {path}") from None

    def write(self, path: str, content: bytes) -> None:
        self.alive()
        self.sandbox.called("write", path)
        self.files[relative(path)] = content

    def list(self, folder: str) -> tuple[str, ...]:
        self.alive()
        self.sandbox.called("list", folder)
        return tuple(sorted(below(self.files, relative(folder))))

    def changed(self, files: Sequence[str]) -> tuple[str, ...]:
        self.alive()
        self.sandbox.called("changed", "")
        return tuple(self.sandbox.changed)

    def destroy(self) -> None:
        self.sandbox.called("destroy", self.name)
        self.gone = True
        self.sandbox.boxes.pop(self.name, None)

    def alive(self) -> None:
        if self.gone:
            raise BoxGone(f"Box {self.name} was destroyed.")


def relative(path: str) -> str:
    return posixpath.normpath(posixpath.join("/job/repo", path)).removeprefix("/job/repo/")


def below(files: Iterable[str], folder: str) -> Iterable[str]:
    return (path for path in files if folder == "/job/repo" or path.startswith(folder + "/"))
