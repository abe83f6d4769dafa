"""The worker's end of a step runner: sends orders, collects answers, carries streams to the proxy.

A channel lives as long as its step runner. It knows pipes and frames and nothing of backends:
bubblewrap hands it the pipes of a process, Docker those of an exec. One thread reads; orders are
given by one caller at a time.
"""

import codecs
import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from orchestrator.sandbox import step_runner as wire
from orchestrator.sandbox.contract import BoxGone, Cancelled, SandboxError
from review_agents.ports import NoSuchFile
from review_agents.records import Ran

CANCEL_LOOK_S = 0.5  # how often `cancelled` is asked
SHOW_EVERY_S = 1.0  # how often `on_output` is called at most
GRACE_S = 3.0  # a runner that has said nothing this long after a command's end was due is taken for dead
CANCEL_GRACE_S = 1.0  # the same after a cancel
READER_PATIENCE_S = 0.5
MOST_WAITING = 256 << 20  # bytes of frames that were not taken yet; a file is read in one frame
FILE_PATIENCE_S = 60.0  # for reading, writing, listing and comparing


class Pipes(Protocol):
    """Two ends that lead to a step runner."""

    def read(self, most: int) -> bytes:
        """Wait for bytes; empty when the runner is gone."""
        ...

    def write(self, data: bytes) -> None:
        """Write all. Raises OSError when the runner is gone."""
        ...

    def hang_up(self) -> None:
        """Tell the runner that nothing more comes. It ends, or was ended, and so a waiting `read` does."""
        ...

    def close(self) -> None: ...


class Answers(Protocol):
    """Takes the streams that a box opens: the egress proxy."""

    refusals: list[str]  # every request that came to nothing, with the reason

    def serve(self, client: "Stream") -> None:
        """Talk with the client until one of the two ends it. Runs in a thread of its own."""
        ...


class Channel:
    def __init__(self, pipes: Pipes, proxy: Answers | None):
        self.pipes = pipes
        self.proxy = proxy
        self.frames: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self.waiting_bytes = 0
        self.streams: dict[int, Stream] = {}
        self.writing = threading.Lock()
        self.gone = False
        self.reader = threading.Thread(target=self.read_frames, name="step-runner", daemon=True)
        self.reader.start()

    # Orders ------------------------------------------------------------------------------

    def set_up(self, order: dict[str, Any], *, patience_s: float) -> dict[str, Any]:
        """First order to a new runner. Raises `SandboxError` when the box cannot be set up."""
        self.send(wire.SETUP, as_json(order))
        kind, payload = self.next_frame(patience_s)
        if kind != wire.READY:
            raise SandboxError(parsed(payload).get("message", "no reason given"))
        return parsed(payload)

    def run(
        self,
        order: dict[str, Any],
        *,
        on_output: Callable[[str], None] | None,
        cancelled: Callable[[], bool] | None,
    ) -> Ran:
        """Run a command. Raises `BoxGone` when the runner dies, hangs or cannot end what it started."""
        output = Collected(on_output, order["output_bytes"])
        started = time.monotonic()
        deadline = started + order["timeout_s"] + GRACE_S + wire.KILL_PATIENCE_S
        next_look = started + CANCEL_LOOK_S
        step_s = CANCEL_LOOK_S if cancelled or on_output else float("inf")
        cancelling = False
        try:
            self.send(wire.RUN, as_json(order))
            while True:
                now = time.monotonic()
                if now > deadline:
                    raise RunnerLost("The step runner is silent.", output, now - started, cancelling, silent=True)
                if cancelled and not cancelling and now >= next_look:
                    next_look = now + CANCEL_LOOK_S
                    if cancelled():
                        cancelling = True
                        deadline = min(deadline, now + CANCEL_GRACE_S)
                        self.send(wire.CANCEL)
                frame = self.frame_within(min(deadline - now, step_s))
                if frame is not None:
                    kind, payload = frame
                    if kind == wire.ENDED:
                        return self.ended(parsed(payload), output, cancelling)
                    if kind == wire.FAILED:
                        raise SandboxError(f"The command could not be started: {parsed(payload).get('message')}")
                    output.add(kind, payload)
                output.show()
        except BoxGone as gone:
            if isinstance(gone, RunnerLost):
                raise
            raise RunnerLost(str(gone), output, time.monotonic() - started, cancelling) from None
        except (SandboxError, Cancelled):
            raise
        except BaseException:  # of the caller's own: `on_output`, `cancelled`, a time limit of the worker
            self.end_command()
            raise

    def end_command(self) -> None:
        """End the running command although nobody asks how it went, so that the box can be used again."""
        with suppress(BoxGone):
            self.send(wire.CANCEL)
            give_up = time.monotonic() + CANCEL_GRACE_S + wire.KILL_PATIENCE_S
            while True:
                frame = self.frame_within(give_up - time.monotonic())
                if frame is None:
                    self.close()  # whoever uses the box next learns that it is gone
                    return
                if frame[0] in (wire.ENDED, wire.FAILED):
                    return

    def ended(self, end: dict[str, Any], output: "Collected", cancelling: bool) -> Ran:
        if end.get("stuck"):
            raise BoxGone("Processes of the command do not die (stuck in the kernel); the box must be ended.")
        if cancelling:
            raise Cancelled
        try:
            how = {name: end[name] for name in ("exit", "signal", "seconds", "user_s", "sys_s", "peak_bytes", "oom")}
            how |= {name: end[name] for name in ("instructions", "runner_s") if name in end}
            end_of_it = Ran(**how, timed_out=end["stopped"] == "timeout", dropped_bytes=end["dropped_bytes"])
        except (KeyError, ValueError) as error:
            raise BoxGone(f"The step runner's answer makes no sense: {error}") from None
        return output.finished(end_of_it)

    def read(self, path: str, limit_bytes: int) -> bytes:
        return self.ask(wire.READ, as_json({"path": path, "limit_bytes": limit_bytes}))

    def write(self, path: str, content: bytes) -> None:
        self.ask(wire.WRITE, path.encode("utf-8", "surrogateescape") + b"\0" + content)

    def list(self, folder: str, base: str) -> tuple[str, ...]:
        return names(self.ask(wire.LIST, as_json({"folder": folder, "base": base})))

    def changed(self, files: Sequence[str], folder: str, original: str) -> tuple[str, ...]:
        order = {"files": list(files), "folder": folder, "original": original}
        return names(self.ask(wire.COMPARE, as_json(order)))

    def ask(self, kind: int, payload: bytes) -> bytes:
        self.send(kind, payload)
        kind, answer = self.next_frame(FILE_PATIENCE_S)
        if kind == wire.FAILED:
            problem = parsed(answer)
            if problem.get("error") == "missing":
                raise NoSuchFile(problem.get("message", "there is no such file"))
            raise SandboxError(problem.get("message", "no reason given"))
        return answer

    # Frames ------------------------------------------------------------------------------

    def send(self, kind: int, payload: bytes = b"", stream: int = 0) -> None:
        if self.gone:
            raise BoxGone("The box is closed.")
        try:
            with self.writing:
                self.pipes.write(wire.HEADER.pack(kind, stream, len(payload)) + payload)
        except OSError as error:
            raise BoxGone(f"The step runner is gone: {error}.") from None

    def next_frame(self, patience_s: float) -> tuple[int, bytes]:
        frame = self.frame_within(patience_s)
        if frame is None:
            raise BoxGone(f"The step runner did not answer within {patience_s:.0f} s.")
        return frame

    def frame_within(self, seconds: float) -> tuple[int, bytes] | None:
        try:
            frame = self.frames.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None
        if frame is None:
            self.frames.put(None)  # whoever asks next learns it too
            raise BoxGone("The step runner ended.")
        self.waiting_bytes -= wire.HEADER.size + len(frame[1])
        return frame

    def read_frames(self) -> None:
        """The reading thread: answers go to the caller, stream frames to their stream.

        It trusts nobody: where a runtime lets commands at the step runner, these frames may be theirs.
        """
        waiting = bytearray()
        while data := self.read_some():
            waiting += data
            while len(waiting) >= wire.HEADER.size:
                kind, number, length = wire.HEADER.unpack_from(waiting)
                if length + self.waiting_bytes > MOST_WAITING:
                    self.pipes.hang_up()
                    self.all_gone()
                    return
                if len(waiting) < wire.HEADER.size + length:
                    break
                payload = bytes(waiting[wire.HEADER.size : wire.HEADER.size + length])
                del waiting[: wire.HEADER.size + length]
                if kind >= wire.OPEN:
                    self.stream_frame(kind, number, payload)
                else:
                    self.waiting_bytes += wire.HEADER.size + length
                    self.frames.put((kind, payload))
        self.all_gone()

    def all_gone(self) -> None:
        for stream in list(self.streams.values()):
            stream.other_side_closed()
        self.frames.put(None)

    def read_some(self) -> bytes:
        try:
            return self.pipes.read(wire.CHUNK)
        except OSError:
            return b""

    def stream_frame(self, kind: int, number: int, payload: bytes) -> None:
        if kind == wire.OPEN:
            if self.proxy is None or number in self.streams or len(self.streams) >= 2 * wire.MOST_STREAMS:
                return
            self.streams[number] = Stream(self, number)
            threading.Thread(target=self.answer, args=(self.streams[number],), name="egress", daemon=True).start()
            return
        stream = self.streams.get(number)
        if stream is None:
            return
        if kind == wire.DATA:
            stream.arrived(payload)
        elif kind == wire.CREDIT:
            stream.allowed(int.from_bytes(payload[:4], "big"))
        else:
            del self.streams[number]
            stream.other_side_closed()

    def answer(self, stream: "Stream") -> None:
        try:
            if self.proxy:
                self.proxy.serve(stream)
        finally:
            stream.close()

    def close(self) -> None:
        """Let the runner go and give the pipes back. May be called twice."""
        self.gone = True
        self.pipes.hang_up()
        if self.reader is not threading.current_thread():
            self.reader.join(READER_PATIENCE_S)
        self.pipes.close()


class RunnerLost(BoxGone):
    """The step runner ended or fell silent while a command ran. `output` is what came until then."""

    def __init__(self, message: str, output: "Collected", seconds: float, cancelling: bool, *, silent: bool = False):
        super().__init__(message)
        self.output = output
        self.seconds = seconds  # since the command was ordered, by the worker's clock
        self.cancelling = cancelling
        self.silent = silent  # still there perhaps, but does not answer


class Stream:
    """One connection that a program in the box opened, used like a connected socket."""

    def __init__(self, channel: Channel, number: int):
        self.channel = channel
        self.number = number
        self.changed = threading.Condition()
        self.waiting = bytearray()
        self.may_send = wire.WINDOW
        self.closed_there = False
        self.closed_here = False

    def recv(self, most: int) -> bytes:
        """Wait for bytes; empty when the other side closed."""
        with self.changed:
            self.changed.wait_for(lambda: self.waiting or self.closed_there or self.closed_here)
            data = bytes(self.waiting[:most])
            del self.waiting[:most]
        if data:
            self.tell(wire.CREDIT, wire.CREDITS.pack(len(data)))
        return data

    def sendall(self, data: bytes) -> None:
        """Send everything, waiting for room. Raises BrokenPipeError when the other side closed."""
        rest = memoryview(data)
        while rest:
            with self.changed:
                self.changed.wait_for(lambda: self.may_send > 0 or self.closed_there or self.closed_here)
                if self.closed_there or self.closed_here:
                    raise BrokenPipeError("the box closed the connection")
                part = rest[: min(len(rest), self.may_send, wire.CHUNK)]
                self.may_send -= len(part)
            self.tell(wire.DATA, bytes(part))
            rest = rest[len(part) :]

    def close(self) -> None:
        with self.changed:
            if self.closed_here:
                return
            self.closed_here = True
            self.changed.notify_all()
        if not self.closed_there:
            self.tell(wire.CLOSE, b"")

    def tell(self, kind: int, payload: bytes) -> None:
        try:
            self.channel.send(kind, payload, self.number)
        except BoxGone:
            self.other_side_closed()

    # Called by the channel's reading thread

    def arrived(self, data: bytes) -> None:
        with self.changed:
            self.waiting += data
            self.changed.notify_all()

    def allowed(self, more: int) -> None:
        with self.changed:
            self.may_send += more
            self.changed.notify_all()

    def other_side_closed(self) -> None:
        with self.changed:
            self.closed_there = True
            self.changed.notify_all()


class Collected:
    """Output of one command as it comes: shown about once a second, kept for the `Ran`."""

    def __init__(self, on_output: Callable[[str], None] | None, most_bytes: int):
        self.on_output = on_output
        self.most_bytes = most_bytes
        self.head_parts = bytearray()
        self.tail_parts = bytearray()
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.unshown: list[str] = []
        self.next_show = time.monotonic() + SHOW_EVERY_S

    def add(self, kind: int, data: bytes) -> None:
        if kind == wire.TAIL:
            self.tail_parts += data
        else:
            self.head_parts += data
            if self.on_output:
                self.unshown.append(self.decoder.decode(data))
        if len(self.head_parts) + len(self.tail_parts) > self.most_bytes + wire.CHUNK:
            raise BoxGone("The step runner sends more output than it may.")

    def show(self) -> None:
        if self.on_output and self.unshown and time.monotonic() >= self.next_show:
            self.on_output("".join(self.unshown))
            self.unshown.clear()
            self.next_show = time.monotonic() + SHOW_EVERY_S

    def finished(self, ran: Ran) -> Ran:
        """The record of how the command ended, with its output; what was not shown yet is shown now."""
        head, tail = bytes(self.head_parts), bytes(self.tail_parts)
        if not ran.dropped_bytes:
            head, tail = head + tail, b""
        if self.on_output:
            if tail:
                self.unshown.append(f"\n[... {ran.dropped_bytes} bytes not kept ...]\n")
            self.unshown.append(self.decoder.decode(bytes(self.tail_parts), final=True))
            rest = "".join(self.unshown)
            if rest:
                self.on_output(rest)
        texts = {"head": head.decode(errors="replace"), "tail": tail.decode(errors="replace")}
        return ran.model_copy(update=texts)


def names(answer: bytes) -> tuple[str, ...]:
    return tuple(name.decode(errors="replace") for name in answer.split(b"\0")) if answer else ()


def as_json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()


def parsed(payload: bytes) -> dict[str, Any]:
    try:
        value = json.loads(payload)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise BoxGone("The step runner's answer makes no sense.")
    return value
