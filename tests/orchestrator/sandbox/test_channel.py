"""The worker's end of a step runner, against a runner that the test plays, honest or not."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from orchestrator.sandbox import channel as channels
from orchestrator.sandbox import step_runner as wire
from orchestrator.sandbox.channel import Channel, RunnerLost, Stream
from orchestrator.sandbox.contract import BoxGone, Cancelled, SandboxError
from review_agents.ports import NoSuchFile
from review_agents.records import Ran

ENDED = {
    "exit": 0,
    "signal": None,
    "seconds": 0.5,
    "user_s": 0.1,
    "sys_s": 0.1,
    "peak_bytes": 9,
    "stopped": "",
    "oom": False,
    "dropped_bytes": 0,
    "stuck": False,
}
ORDER = {"timeout_s": 5.0, "output_bytes": 1000}


class Runner:
    """Plays the step runner at the other end of two pipes."""

    def __init__(self) -> None:
        self.from_worker, self.worker_out = os.pipe()
        self.worker_in, self.to_worker = os.pipe()
        self.leaving = threading.Lock()

    # What the channel uses
    def read(self, most: int) -> bytes:
        return os.read(self.worker_in, most)

    def write(self, data: bytes) -> None:
        os.write(self.worker_out, data)

    def hang_up(self) -> None:
        self.leave()

    def close(self) -> None:
        for descriptor in (self.worker_out, self.worker_in):
            try:
                os.close(descriptor)
            except OSError:
                continue

    # What the test uses
    def say(self, kind: int, payload: bytes | dict[str, Any] = b"", stream: int = 0) -> None:
        data = json.dumps(payload).encode() if isinstance(payload, dict) else payload
        os.write(self.to_worker, wire.HEADER.pack(kind, stream, len(data)) + data)

    def hear(self) -> tuple[int, int, bytes]:
        kind, stream, length = wire.HEADER.unpack(os.read(self.from_worker, wire.HEADER.size))
        return kind, stream, os.read(self.from_worker, length) if length else b""

    def leave(self) -> None:
        with self.leaving:  # the test's own thread and the channel's may both want to
            if self.to_worker >= 0:
                os.close(self.to_worker)
                self.to_worker = -1


class Sink:
    """Stands for the proxy: answers every client with what it said, in capitals."""

    def __init__(self) -> None:
        self.refusals: list[str] = []
        self.served = 0

    def serve(self, client: Stream) -> None:
        self.served += 1
        while data := client.recv(100):
            client.sendall(data.upper())


@pytest.fixture
def runner() -> Runner:
    return Runner()


@pytest.fixture
def channel(runner: Runner) -> Iterator[Channel]:
    opened = Channel(runner, Sink())
    yield opened
    opened.close()


def run(channel: Channel, **given: Any) -> Ran:
    return channel.run(ORDER, on_output=given.pop("on_output", None), cancelled=given.pop("cancelled", None))


def soon(do: Callable[[], None], seconds: float = 0.1) -> None:
    threading.Timer(seconds, do).start()


def test_output_and_end_become_a_record(channel: Channel, runner: Runner):
    runner.say(wire.OUTPUT, b"one ")
    runner.say(wire.OUTPUT, "zwei \u00fc".encode()[:-1])
    runner.say(wire.OUTPUT, "\u00fc".encode()[-1:])
    runner.say(wire.ENDED, ENDED)
    shown: list[str] = []
    ran = run(channel, on_output=shown.append)
    assert (ran.exit, ran.seconds, ran.output) == (0, 0.5, "one zwei \u00fc")
    assert "".join(shown) == ran.output


def test_tail_without_a_gap_joins_the_head(channel: Channel, runner: Runner):
    runner.say(wire.OUTPUT, b"head ")
    runner.say(wire.TAIL, b"tail")
    runner.say(wire.ENDED, ENDED)
    ran = run(channel)
    assert (ran.head, ran.tail) == ("head tail", "")


def test_tail_behind_a_gap_stays_apart(channel: Channel, runner: Runner):
    runner.say(wire.OUTPUT, b"head")
    runner.say(wire.TAIL, b"tail")
    runner.say(wire.ENDED, {**ENDED, "dropped_bytes": 7})
    shown: list[str] = []
    ran = run(channel, on_output=shown.append)
    assert (ran.head, ran.tail, ran.dropped_bytes) == ("head", "tail", 7)
    assert "".join(shown) == ran.output


def test_runner_that_ends_loses_the_command_but_not_its_output(channel: Channel, runner: Runner):
    runner.say(wire.OUTPUT, b"so far")
    soon(runner.leave)
    with pytest.raises(RunnerLost) as lost:
        run(channel)
    assert not lost.value.silent
    assert lost.value.output.finished(Ran(exit=None)).output == "so far"


def test_runner_that_falls_silent_is_lost_after_the_commands_time(channel: Channel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(channels, "GRACE_S", 0.1)
    monkeypatch.setattr(wire, "KILL_PATIENCE_S", 0.1)
    started = time.monotonic()
    with pytest.raises(RunnerLost) as lost:
        channel.run({**ORDER, "timeout_s": 0.3}, on_output=None, cancelled=None)
    assert lost.value.silent and 0.4 < time.monotonic() - started < 3


def test_cancel_is_ordered_and_confirmed(channel: Channel, runner: Runner):
    heard: list[int] = []

    def answer() -> None:
        heard.extend(runner.hear()[0] for _ in range(2))
        runner.say(wire.ENDED, {**ENDED, "exit": None, "signal": 9, "stopped": "cancelled"})

    threading.Thread(target=answer, daemon=True).start()
    with pytest.raises(Cancelled):
        run(channel, cancelled=lambda: True)
    assert heard == [wire.RUN, wire.CANCEL]


def test_cancel_that_is_not_confirmed_loses_the_runner_within_two_seconds(channel: Channel):
    started = time.monotonic()
    with pytest.raises(RunnerLost) as lost:
        run(channel, cancelled=lambda: True)
    assert lost.value.cancelling and time.monotonic() - started < 2


def test_error_of_the_caller_ends_the_command_and_the_box_goes_on(channel: Channel, runner: Runner):
    def answer() -> None:
        assert [runner.hear()[0] for _ in range(2)] == [wire.RUN, wire.CANCEL]
        runner.say(wire.OUTPUT, b"late")
        runner.say(wire.ENDED, {**ENDED, "exit": None, "signal": 9, "stopped": "cancelled"})

    def broken() -> bool:
        raise LookupError("the caller's database is gone")

    threading.Thread(target=answer, daemon=True).start()
    with pytest.raises(LookupError):
        run(channel, cancelled=broken)
    runner.say(wire.ENDED, ENDED)
    assert run(channel).output == ""


def test_processes_that_do_not_die_cost_the_box(channel: Channel, runner: Runner):
    runner.say(wire.ENDED, {**ENDED, "stuck": True})
    with pytest.raises(BoxGone, match="do not die"):
        run(channel)


def test_command_that_cannot_be_started_is_an_error_and_the_box_goes_on(channel: Channel, runner: Runner):
    runner.say(wire.FAILED, {"error": "failed", "message": "no space"})
    with pytest.raises(SandboxError, match="no space") as error:
        run(channel)
    assert not isinstance(error.value, BoxGone)
    runner.say(wire.ENDED, ENDED)
    assert run(channel).ok


def test_missing_files_and_failures_are_told_apart(channel: Channel, runner: Runner):
    runner.say(wire.FAILED, {"error": "missing", "message": "there is no file x"})
    with pytest.raises(NoSuchFile, match="no file x"):
        channel.read("x", 10)
    runner.say(wire.FAILED, {"error": "failed", "message": "disk"})
    with pytest.raises(SandboxError, match="disk"):
        channel.write("x", b"")
    runner.say(wire.ANSWER, b"a\0b")
    assert channel.list(".", "/job/repo") == ("a", "b")
    runner.say(wire.ANSWER, b"")
    assert channel.list(".", "/job/repo") == ()


def test_streams_are_carried_to_the_proxy_and_back(channel: Channel, runner: Runner):
    runner.say(wire.OPEN, stream=3)
    runner.say(wire.DATA, b"hello", stream=3)
    got = sorted([runner.hear(), runner.hear()])
    assert got == [(wire.DATA, 3, b"HELLO"), (wire.CREDIT, 3, wire.CREDITS.pack(5))]
    runner.say(wire.CLOSE, stream=3)
    runner.say(wire.ENDED, ENDED)
    assert run(channel).ok


def test_stream_waits_for_credit_and_ends_with_the_channel(channel: Channel, runner: Runner):
    stream = Stream(channel, 9)
    channel.streams[9] = stream
    stream.may_send = 3
    sent: list[BaseException | None] = []

    def send() -> None:
        try:
            stream.sendall(b"abcdef")
        except OSError as error:
            sent.append(error)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    assert runner.hear() == (wire.DATA, 9, b"abc")
    runner.say(wire.CREDIT, wire.CREDITS.pack(2), stream=9)
    assert runner.hear() == (wire.DATA, 9, b"de")
    runner.leave()
    sender.join(5)
    assert isinstance(sent[0], BrokenPipeError)


# A runner that a hostile command took over --------------------------------------------------


def test_frame_longer_than_any_may_be_ends_the_box_without_being_read(channel: Channel, runner: Runner):
    os.write(runner.to_worker, wire.HEADER.pack(wire.OUTPUT, 0, 0xFFFFFFFF))
    with pytest.raises(BoxGone):
        run(channel)


def test_more_output_than_allowed_ends_the_box(channel: Channel, runner: Runner):
    def flood() -> None:
        try:
            while True:
                runner.say(wire.OUTPUT, b"x" * 60_000)
        except OSError:
            pass

    threading.Thread(target=flood, daemon=True).start()
    with pytest.raises(RunnerLost, match="more output than it may") as lost:
        run(channel)
    assert len(lost.value.output.head_parts) < 300_000


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"[]", b"null", b"{}", b'{"exit": 0}', json.dumps({**ENDED, "seconds": "long"}).encode(), b"\xff\xfe"],
)
def test_answer_that_makes_no_sense_ends_the_box(channel: Channel, runner: Runner, payload: bytes):
    runner.say(wire.ENDED, payload)
    with pytest.raises(BoxGone, match="makes no sense"):
        run(channel)


def test_unknown_frames_and_streams_are_passed_over(channel: Channel, runner: Runner):
    for kind in (wire.DATA, wire.CREDIT, wire.CLOSE, 99, 0xFF):
        runner.say(kind, b"", stream=1234)
    runner.say(wire.ENDED, ENDED)
    assert run(channel).ok


def test_streams_without_end_start_no_threads_without_end(channel: Channel, runner: Runner):
    before = threading.active_count()
    for number in range(1000):
        runner.say(wire.OPEN, stream=number)
    runner.say(wire.ENDED, ENDED)
    assert run(channel).ok
    assert threading.active_count() - before <= 2 * wire.MOST_STREAMS + 5


def test_streams_in_a_box_without_egress_are_ignored(runner: Runner):
    closed = Channel(runner, None)
    runner.say(wire.OPEN, stream=1)
    runner.say(wire.ENDED, ENDED)
    assert run(closed).ok and not closed.streams
    closed.close()
