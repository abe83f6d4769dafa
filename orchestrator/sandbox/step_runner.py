"""The program inside every sandbox that runs commands for the worker.

Standard library only, Python 3.8 or newer: it is copied read-only into the sandbox and started by
whatever interpreter is there, as the step's user. It reads framed orders from stdin and answers on
stdout, so one process serves a box for its whole life and nothing but two pipes leads in.

Why it exists: seconds, CPU time, peak memory and the oom counter are taken here, beside the
command (timed across a container engine's API, a 17 ms start reads 104 ms); output is capped here,
so that a printing loop cannot fill the worker; and here stragglers are ended, including those that
left the session: every process of the box but this one is killed when the command has ended.

Frame: kind (1 byte), stream (4), length (4), then that many bytes; numbers big-endian. Kinds are
the constants below; the worker's end is orchestrator/sandbox/channel.py.

The commands run as the same user as this program, so it defends itself: it cannot be traced or
read (not dumpable), as PID 1 it cannot be killed, and where it is not PID 1 (Docker) the worker
replaces it. A worker that dies closes stdin, which ends this program and, as PID 1, the whole box.

Streams: while a command with egress runs, a listener on a loopback port takes connections of
proxy clients and carries each as one stream over stdout and stdin to the worker's egress proxy.
There is no socket to reach, bind or mount, and none at all for commands without egress.
"""

from __future__ import annotations

import binascii
import ctypes
import errno
import json
import os
import resource
import selectors
import signal
import socket
import stat
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

HEADER = struct.Struct("!BII")
CREDITS = struct.Struct("!I")
CHUNK = 1 << 16
MOST_CHANGED = 20  # changed files that are named
MOST_STREAMS = 64  # connections to the proxy at the same time
WINDOW = 1 << 18  # bytes that a stream may have under way and not yet credited, each direction

# Orders
SETUP, RUN, CANCEL, READ, WRITE, LIST, COMPARE = 1, 2, 3, 4, 5, 6, 7
# Answers
READY, OUTPUT, TAIL, ENDED, ANSWER, FAILED = 20, 21, 22, 23, 24, 25
# Streams, both directions; CREDIT carries how many more bytes the other side may send
OPEN, DATA, CLOSE, CREDIT = 40, 41, 42, 43

PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 22, 36, 38
INITIAL_PID_NAMESPACE = "pid:[4026531836]"
OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
PIDS_LIMITS = ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max")
OOM_SCORE = "500"  # so that the kernel never prefers this program to a command
CANNOT_START = 126
SMALLEST_FILE = 4096  # bytes that a file counts at least
FREE_FILES = 20_000  # that must stay possible on the disk of watched folders
KILL_PATIENCE_S = 5.0  # what lives after this is stuck in the kernel, and the box must go
LONGEST_ARGUMENT = 100_000  # Linux allows 128 KiB for one argument; longer scripts go through a file
NO_FILES = ("/proc", "/sys", "/dev")  # what looks like a file there is a device or this program itself

PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}  # system call numbers
PERF_HARDWARE, PERF_INSTRUCTIONS = 0, 1
PERF_ATTR_BYTES = 112
PERF_INHERIT, PERF_EXCLUDE_KERNEL, PERF_EXCLUDE_HV = 1 << 1, 1 << 5, 1 << 6
PERF_CLOEXEC = 8

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    refuse_outside_a_box()
    protect()
    Server().serve()


def refuse_outside_a_box() -> None:
    """Ending a command means `kill -9 -1`: outside a box of our own that would end the machine."""
    if os.getuid() == 0:
        sys.exit("step_runner: never runs as root")
    if os.getpid() == 1:
        return
    if sys.argv[2:3] != [str(os.getuid())] or os.readlink("/proc/self/ns/pid") == INITIAL_PID_NAMESPACE:
        sys.exit("step_runner: not PID 1 of a sandbox, and not started as a container's step user")


def protect() -> None:
    """Keep the commands' processes, which have our user id, away from this one."""
    if libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        sys.exit("step_runner: prctl(PR_SET_DUMPABLE) failed, so the code under test could rewrite its results")
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)


IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXCPU, signal.SIGXFSZ)


class Server:
    """One loop over the worker's pipe, the running command and its proxy connections."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.incoming = bytearray()
        self.outgoing: deque[bytes] = deque()  # what the worker has not taken yet
        self.command: Command | None = None
        self.instructions: ChildCounter | None = None  # None: this kernel does not count for us
        self.streams = Streams(self)

    def serve(self) -> None:
        wake_read, wake_write = os.pipe()
        for descriptor in (0, 1, wake_read, wake_write):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self.listen_to(0, selectors.EVENT_READ, self.read_orders)
        self.listen_to(wake_read, selectors.EVENT_READ, lambda: os.read(wake_read, CHUNK))
        while True:
            for key, _ in self.selector.select(self.command.patience() if self.command else None):
                known = self.selector.get_map().get(key.fd)
                if known is not None and known.data == key.data:  # not closed by an earlier one of this turn
                    key.data()
            if self.command:
                self.command.look_after()

    def listen_to(self, descriptor: int, events: int, call: Callable) -> None:
        """Call when the descriptor is ready; no events means not to."""
        known = self.selector.get_map().get(descriptor)
        if known is None:
            if events:
                self.selector.register(descriptor, events, call)
        elif not events:
            self.selector.unregister(descriptor)
        elif known.events != events:
            self.selector.modify(descriptor, events, call)

    # The worker's pipe -------------------------------------------------------------------

    def read_orders(self) -> None:
        try:
            data = os.read(0, CHUNK)
        except BlockingIOError:
            return
        if not data:
            self.end()
        self.incoming += data
        while len(self.incoming) >= HEADER.size:
            kind, stream, length = HEADER.unpack_from(self.incoming)
            if len(self.incoming) < HEADER.size + length:
                return
            payload = bytes(self.incoming[HEADER.size : HEADER.size + length])
            del self.incoming[: HEADER.size + length]
            self.obey(kind, stream, payload)

    def send(self, kind: int, payload: bytes = b"", stream: int = 0) -> None:
        self.outgoing.append(HEADER.pack(kind, stream, len(payload)) + payload)
        self.flush()

    def flush(self) -> None:
        """Write what the pipe takes, and come back when it takes more."""
        while self.outgoing:
            try:
                written = os.write(1, self.outgoing[0])
            except BlockingIOError:
                break
            except OSError:
                self.end()
            if written < len(self.outgoing[0]):
                self.outgoing[0] = self.outgoing[0][written:]
            else:
                self.outgoing.popleft()
        self.listen_to(1, selectors.EVENT_WRITE if self.outgoing else 0, self.flush)

    def end(self) -> None:
        """The worker is gone: leave nothing running."""
        kill_all_others()
        os._exit(0)

    # Orders ------------------------------------------------------------------------------

    def obey(self, kind: int, stream: int, payload: bytes) -> None:
        if kind in (DATA, CLOSE, CREDIT):
            self.streams.obey(kind, stream, payload)
        elif kind == CANCEL:
            if self.command:
                self.command.stop("cancelled")
        else:
            try:
                self.answer(kind, payload)
            except NoFile as error:
                self.fail("missing", error)
            except (OSError, ValueError) as error:
                self.fail("failed", error)

    def fail(self, what: str, error: Exception) -> None:
        self.send(FAILED, json.dumps({"error": what, "message": str(error)}).encode())

    def answer(self, kind: int, payload: bytes) -> None:
        if kind == WRITE:
            path, _, content = payload.partition(b"\0")
            write_file(path, content)
            self.send(ANSWER)
            return
        order = json.loads(payload.decode())
        if kind == RUN:
            if self.command:
                raise ValueError("a command is running already")
            self.command = Command(self, order)
        elif kind == SETUP:
            self.instructions = child_counter()  # before the filter forbids it
            set_up(order)
            self.send(READY, json.dumps(what_is_here()).encode())
        elif kind == READ:
            self.send(ANSWER, read_file(order["path"], order["limit_bytes"]))
        elif kind == LIST:
            self.send(ANSWER, b"\0".join(list_files(order["folder"], order["base"])))
        elif kind == COMPARE:
            self.send(ANSWER, b"\0".join(changed_files(order["files"], order["folder"], order["original"])))
        else:
            raise ValueError(f"unknown order {kind}")


# Setting the box up ----------------------------------------------------------------------


def set_up(order: dict) -> None:
    """Limits that a process sets for itself and its children, HOME, and the fresh copy of the repo."""
    for name, wanted in order["rlimits"].items():
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(number, (value, value))
    if order["cpus"]:
        os.sched_setaffinity(0, order["cpus"])
    os.umask(0o022)
    os.makedirs(order["home"], mode=0o700, exist_ok=True)
    for path, text in order["files"].items():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
    if order["copy"]:
        copy_tree(*order["copy"])
    if order["seccomp"]:
        filter_calls(binascii.a2b_base64(order["seccomp"]))


def filter_calls(program: bytes) -> None:
    """Put a BPF filter on this process and all it starts, on top of whatever the engine set."""

    class FilterProgram(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("lines", ctypes.c_char_p)]

    lines = FilterProgram(len(program) // 8, program)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(lines), 0, 0):
        raise OSError(f"the system call filter was refused: {os.strerror(ctypes.get_errno())}")


def what_is_here() -> dict:
    """The interpreter, and the limits as the inside sees them; None where it cannot see them."""
    return {
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "memory_bytes": first_number(MEMORY_LIMITS),
        "pids": first_number(PIDS_LIMITS),
        "cpus": sorted(os.sched_getaffinity(0)),
        "oom_counter": any(os.path.exists(path) for path in OOM_COUNTERS),
    }


class ChildCounter:
    """A counter of the kernel over all that this program starts from now on, without its own share.

    A child's count is added when the child ends, so it is read when none is left.
    """

    def __init__(self, kind: int, event: int):
        """Raises `OSError` where the kernel or the processor does not count that."""
        self.everything = open_counter(kind, event, PERF_INHERIT)
        self.own = open_counter(kind, event, 0)

    def read(self) -> int:
        counts = [int.from_bytes(os.read(one, 8), sys.byteorder) for one in (self.everything, self.own)]
        return counts[0] - counts[1]


def child_counter() -> ChildCounter | None:
    """Instructions in user mode; None where they are not to be had (most virtual machines and engines)."""
    try:
        return ChildCounter(PERF_HARDWARE, PERF_INSTRUCTIONS)
    except OSError:
        return None


def open_counter(kind: int, event: int, flags: int) -> int:
    number = PERF_EVENT_OPEN.get(os.uname().machine)
    if number is None:
        raise OSError("no system call number is known")
    settings = struct.pack(
        "=IIQQQQQ", kind, PERF_ATTR_BYTES, event, 0, 0, 0, flags | PERF_EXCLUDE_KERNEL | PERF_EXCLUDE_HV
    )
    descriptor = libc.syscall(number, settings.ljust(PERF_ATTR_BYTES, b"\0"), 0, -1, -1, PERF_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


def first_number(paths: tuple[str, ...]) -> int | None:
    for path in paths:
        try:
            with open(path) as file:
                return int(file.read())
        except (OSError, ValueError):  # "max" means no limit
            continue
    return None


def copy_tree(source: str, target: str) -> None:
    """`cp -a`: links, modes and times as they are, and fast."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write_end, 1)
        os.dup2(write_end, 2)
        os.execv("/bin/cp", ["cp", "-a", "--reflink=auto", "--", source, target])
    os.close(write_end)
    with os.fdopen(read_end, errors="replace") as said:
        complaint = said.read(2000)
        while said.read(CHUNK):
            pass
    if os.waitpid(child, 0)[1] != 0:
        raise OSError(f"copying {source} to {target} failed: {complaint.strip()}")


# Running a command -----------------------------------------------------------------------


class Command:
    """One bash script, from its start until nothing of it is left."""

    def __init__(self, server: Server, order: dict):
        self.server = server
        self.kept = Output(server, order["output_bytes"])
        self.watch = Watch(order["watch"])
        self.user_s = self.sys_s = 0.0
        self.peak_bytes = 0
        self.stopped = ""  # why we ended it: timeout, cancelled, disk or memory
        self.status: int | None = None
        self.ended_at = 0.0
        self.arguments, self.script_file = script_arguments(order["script"])
        environment = dict(order["env"])
        if order["egress"]:
            environment.update(server.streams.listen())
        self.output, output_write = os.pipe()
        os.set_blocking(self.output, False)
        server.listen_to(self.output, selectors.EVENT_READ, self.read_output)
        self.input: int | None = None
        input_read = self.open_input(order["stdin"].encode("utf-8", "surrogateescape"))
        self.oom_before = oom_kills()
        self.runner_before = own_cpu_s()
        self.instructions_before = server.instructions.read() if server.instructions else 0
        self.started_at = time.monotonic()
        self.deadline = self.started_at + order["timeout_s"]
        self.pid = start(self.arguments, environment, order["cwd"], input_read, output_write)
        os.close(output_write)
        os.close(input_read)

    def open_input(self, content: bytes) -> int:
        """The command's end of stdin; ours is `input` where there is something to feed."""
        self.to_feed = memoryview(content)
        if not content:
            return os.open("/dev/null", os.O_RDONLY)
        read_end, self.input = os.pipe()
        os.set_blocking(self.input, False)
        self.server.listen_to(self.input, selectors.EVENT_WRITE, self.feed)
        return read_end

    def feed(self) -> None:
        assert self.input is not None
        try:
            self.to_feed = self.to_feed[os.write(self.input, self.to_feed[:CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:  # the command closed its input
            self.to_feed = self.to_feed[:0]
        if not self.to_feed:
            self.close_input()

    def close_input(self) -> None:
        if self.input is not None:
            self.server.listen_to(self.input, 0, self.feed)
            os.close(self.input)
            self.input = None

    def read_output(self) -> bool:
        """Take what is there. False when there is nothing (left)."""
        try:
            data = os.read(self.output, CHUNK)
        except BlockingIOError:
            return False
        if not data:  # nobody holds the other end any more, though the command may go on
            self.server.listen_to(self.output, 0, self.read_output)
            return False
        self.kept.add(data)
        return True

    def patience(self) -> float:
        """Seconds until something is due although no descriptor is ready."""
        return max(0.0, min(self.deadline - time.monotonic(), self.watch.every_s))

    def stop(self, why: str) -> None:
        self.stopped = self.stopped or why

    def look_after(self) -> None:
        """Once a turn of the loop: children that ended, time, disk and memory."""
        self.reap()
        if self.status is None and not self.stopped:
            if time.monotonic() >= self.deadline:
                self.stop("timeout")
            else:
                self.stop(self.watch.look())
        if self.status is not None or self.stopped:
            self.finish()

    def reap(self) -> bool:
        """Collect children that ended. False when there are none left at all."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.user_s += usage.ru_utime
            self.sys_s += usage.ru_stime
            self.peak_bytes = max(self.peak_bytes, usage.ru_maxrss * 1024)
            if pid == self.pid:
                self.ended_at = time.monotonic()
                self.status = status

    def finish(self) -> None:
        """End whatever is left, collect the rest of the output, and say how it went."""
        stuck = not self.end_processes()
        self.close_input()
        self.server.streams.close_all()
        while self.read_output():
            pass
        self.server.listen_to(self.output, 0, self.read_output)
        os.close(self.output)
        if self.script_file:
            remove_quietly(self.script_file)
        if self.watch.complaint:
            self.kept.add(f"\n[lamplighter: command ended: {self.watch.complaint}]\n".encode())
        self.kept.send_tail()
        status = signal.SIGKILL if self.status is None else self.status
        ended = {
            "exit": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            "seconds": (self.ended_at or time.monotonic()) - self.started_at,
            "user_s": self.user_s,
            "sys_s": self.sys_s,
            "peak_bytes": self.peak_bytes,
            "instructions": self.instructions(),
            "runner_s": own_cpu_s() - self.runner_before,
            "stopped": self.stopped,
            "oom": oom_kills() > self.oom_before or self.stopped == "memory",
            "dropped_bytes": self.kept.dropped_bytes,
            "stuck": stuck,
        }
        self.server.command = None
        self.server.send(ENDED, json.dumps(ended).encode())

    def instructions(self) -> int | None:
        counter = self.server.instructions
        return counter.read() - self.instructions_before if counter else None

    def end_processes(self) -> bool:
        """Kill every process of the box but us. False when something does not die."""
        give_up = time.monotonic() + KILL_PATIENCE_S
        while True:
            kill_all_others()
            if not self.reap():
                return True
            if time.monotonic() > give_up:
                return False
            time.sleep(0.0005)


def own_cpu_s() -> float:
    """CPU time of this program itself, so that nobody takes it for a neighbour's."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def script_arguments(script: str) -> tuple[list[bytes], str | None]:
    """The command line for a bash script, and the file it is in when it is too long for one."""
    encoded = script.encode("utf-8", "surrogateescape")
    if b"\0" in encoded:
        raise ValueError("the command contains a NUL byte")
    if len(encoded) <= LONGEST_ARGUMENT:
        return [b"/bin/bash", b"-c", encoded], None
    path = f"/tmp/command-{os.urandom(8).hex()}.sh"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(encoded)
    return [b"/bin/bash", path.encode()], path


def start(arguments: list, environment: dict, folder: str, stdin: int, output: int) -> int:
    """Fork and execute; a command that cannot start says why in its output and ends with 126."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        os.dup2(stdin, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for number in IGNORED:
            signal.signal(number, signal.SIG_DFL)
        become_likelier_oom_victim()
        os.chdir(folder)
        os.execve(arguments[0], arguments, environment)
    except BaseException as error:
        os.write(2, f"cannot start: {error}\n".encode())
    os._exit(CANNOT_START)


def become_likelier_oom_victim() -> None:
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # else our own file in /proc belongs to root
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # gVisor has no such file
        file.write(OOM_SCORE)


def kill_all_others() -> None:
    """SIGKILL for every process we may signal, but ourselves; as the kernel does it, no fork escapes."""
    with suppress(OSError):  # nobody left
        os.kill(-1, signal.SIGKILL)


def oom_kills() -> int:
    """How many processes of this box the kernel has killed for memory; 0 where it does not say."""
    for path in OOM_COUNTERS:
        try:
            with open(path) as file:
                for line in file:
                    name, _, count = line.partition(" ")
                    if name == "oom_kill":
                        return int(count)
        except OSError:
            continue
    return 0


class Output:
    """Sends the first part of the output on as it comes and keeps the last part."""

    def __init__(self, server: Server, most_bytes: int):
        self.server = server
        self.half = max(1, most_bytes // 2)
        self.head_bytes = 0
        self.tail: deque[bytes] = deque()
        self.tail_bytes = 0
        self.dropped_bytes = 0

    def add(self, data: bytes) -> None:
        head = data[: max(0, self.half - self.head_bytes)]
        rest = data[len(head) :]
        if head:
            self.head_bytes += len(head)
            self.server.send(OUTPUT, head)
        if rest:
            self.tail.append(rest)
            self.tail_bytes += len(rest)
            self.shorten()

    def shorten(self) -> None:
        while self.tail_bytes > self.half:
            extra = min(self.tail_bytes - self.half, len(self.tail[0]))
            self.tail_bytes -= extra
            self.dropped_bytes += extra
            if extra == len(self.tail[0]):
                self.tail.popleft()
            else:
                self.tail[0] = self.tail[0][extra:]

    def send_tail(self) -> None:
        for part in self.tail:
            self.server.send(TAIL, part)


class Watch:
    """Looks at what no kernel limit covers here: the size of folders on disk, and memory without a cgroup.

    folders, folder_bytes   what the folders may hold together; 0: not watched
    free_bytes              what must stay free on their disk
    memory_bytes            resident memory of all processes of the box together; 0: not watched
    """

    def __init__(self, order: dict):
        self.folders = order.get("folders", [])
        self.folder_bytes = order.get("folder_bytes", 0)
        self.free_bytes = order.get("free_bytes", 0)
        self.memory_bytes = order.get("memory_bytes", 0)
        self.every_s = 0.25 if self.memory_bytes else 0.5 if self.folders else 3600.0
        self.complaint = ""
        self.next_look = time.monotonic() + self.every_s  # later than at once: a clean-up must be able to run
        self.next_count = 0.0

    def look(self) -> str:
        """Why the command must end: disk, memory, or nothing."""
        now = time.monotonic()
        if now < self.next_look:
            return ""
        self.next_look = now + self.every_s / 2
        if self.memory_bytes:
            used = resident_bytes()
            if used > self.memory_bytes:
                self.complaint = f"its processes held {used >> 20} MiB of memory, limit {self.memory_bytes >> 20}"
                return "memory"
        if self.folders:
            self.complaint = self.look_at_disk(now)
            return "disk" if self.complaint else ""
        return ""

    def look_at_disk(self, now: float) -> str:
        state = os.statvfs(self.folders[0])
        free = state.f_bavail * state.f_frsize
        if free < self.free_bytes:
            return f"only {free >> 20} MiB are left on the disk, {self.free_bytes >> 20} must stay free"
        if state.f_files and state.f_favail < FREE_FILES:
            return f"only {state.f_favail} more files fit on the disk"
        if self.folder_bytes and now >= self.next_count:
            used = sum(folder_bytes(folder) for folder in self.folders)
            took = time.monotonic() - now
            self.next_count = now + max(2.0, 20 * took)  # counting takes at most a twentieth of the time
            if used > self.folder_bytes:
                names = " and ".join(self.folders)
                return f"{names} hold {used >> 20} MiB, limit {self.folder_bytes >> 20}"
        return ""


def resident_bytes() -> int:
    page = os.sysconf("SC_PAGE_SIZE")
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/statm") as file:
                    total += int(file.read().split()[1]) * page
            except (OSError, IndexError):
                continue
    return total


def folder_bytes(folder: str) -> int:
    """Disk blocks below a folder, links not followed; an empty file counts a block, for a disk has only so many."""
    total = 0
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    total += max(entry.stat(follow_symlinks=False).st_blocks * 512, SMALLEST_FILE)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:
            continue
    return total


# Streams to the egress proxy -------------------------------------------------------------


class Streams:
    """The forwarder: loopback connections of proxy clients, carried over the worker's pipe."""

    def __init__(self, server: Server):
        self.server = server
        self.listener: socket.socket | None = None
        self.open: dict[int, Stream] = {}
        self.last = 0

    def listen(self) -> dict:
        """Start to listen; returns the variables that lead a client to it."""
        listener = self.listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(MOST_STREAMS)
        listener.setblocking(False)
        self.server.listen_to(listener.fileno(), selectors.EVENT_READ, self.accept)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        proxies = {name: address for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")}
        proxies.update({name.lower(): value for name, value in proxies.items()})
        proxies.update(NO_PROXY="localhost,127.0.0.1,::1", no_proxy="localhost,127.0.0.1,::1")
        return proxies

    def accept(self) -> None:
        assert self.listener is not None
        try:
            connection, _ = self.listener.accept()
        except OSError:
            return
        if len(self.open) >= MOST_STREAMS:
            connection.close()
            return
        self.last += 1
        connection.setblocking(False)
        self.open[self.last] = Stream(self, self.last, connection)
        self.server.send(OPEN, stream=self.last)

    def obey(self, kind: int, number: int, payload: bytes) -> None:
        stream = self.open.get(number)
        if stream is None:
            return  # closed here meanwhile
        if kind == DATA:
            stream.deliver(payload)
        elif kind == CREDIT:
            stream.allow(CREDITS.unpack(payload)[0])
        else:
            stream.end_after_delivery()

    def close_all(self) -> None:
        if self.listener:
            self.server.listen_to(self.listener.fileno(), 0, self.accept)
            self.listener.close()
            self.listener = None
        for stream in list(self.open.values()):
            stream.close()


class Stream:
    """One connection of a proxy client."""

    def __init__(self, streams: Streams, number: int, connection: socket.socket):
        self.streams = streams
        self.server = streams.server
        self.number = number
        self.connection = connection
        self.may_send = WINDOW
        self.to_deliver = bytearray()
        self.delivered = 0  # bytes not yet credited back
        self.ending = False
        self.update()

    def update(self) -> None:
        reading = selectors.EVENT_READ if self.may_send > 0 and not self.ending else 0
        writing = selectors.EVENT_WRITE if self.to_deliver else 0
        self.server.listen_to(self.connection.fileno(), reading | writing, self.ready)

    def ready(self) -> None:
        if self.to_deliver:
            self.push()
        if self.connection.fileno() >= 0 and self.may_send > 0 and not self.ending:
            self.pull()

    def pull(self) -> None:
        try:
            data = self.connection.recv(min(CHUNK, self.may_send))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self.may_send -= len(data)
        self.server.send(DATA, data, self.number)
        self.update()

    def deliver(self, data: bytes) -> None:
        self.to_deliver += data
        self.push()

    def push(self) -> None:
        try:
            sent = self.connection.send(self.to_deliver)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        del self.to_deliver[:sent]
        self.delivered += sent
        if self.delivered >= WINDOW // 4 or (self.delivered and not self.to_deliver):
            self.server.send(CREDIT, CREDITS.pack(self.delivered), self.number)
            self.delivered = 0
        if self.ending and not self.to_deliver:
            self.close()
        else:
            self.update()

    def allow(self, more: int) -> None:
        self.may_send += more
        self.update()

    def end_after_delivery(self) -> None:
        self.ending = True
        if self.to_deliver:
            self.update()
        else:
            self.close()

    def close(self) -> None:
        self.server.listen_to(self.connection.fileno(), 0, self.ready)
        self.connection.close()
        del self.streams.open[self.number]
        self.server.send(CLOSE, stream=self.number)


# Files -----------------------------------------------------------------------------------


class NoFile(Exception):
    """There is no regular file at that path."""


def read_file(path: str, limit_bytes: int) -> bytes:
    descriptor = open_regular(os.fsencode(path), os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(limit_bytes)


def write_file(path: bytes, content: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def open_regular(path: bytes, flags: int) -> int:
    """Open a regular file without waiting (a pipe would) and never one that stands for something else."""
    real = os.path.realpath(path)
    if any(real == place.encode() or real.startswith(place.encode() + b"/") for place in NO_FILES):
        raise NoFile(f"{os.fsdecode(path)} is no regular file")
    try:
        descriptor = os.open(real, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, 0o644)
    except OSError as error:
        if flags == os.O_RDONLY or error.errno in (errno.EISDIR, errno.ENOTDIR, errno.ENXIO, errno.ELOOP):
            raise NoFile(f"there is no file {os.fsdecode(path)}: {error.strerror}") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NoFile(f"{os.fsdecode(path)} is no regular file")
    return descriptor


def list_files(folder: str, base: str) -> list:
    """Regular files below the folder, relative to the base, sorted; links not followed, .git left out."""
    root = os.fsencode(folder)
    if not os.path.isdir(root):
        raise NoFile(f"there is no folder {folder}")
    found = []
    for where, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != b".git"]
        for name in names:
            path = os.path.join(where, name)
            try:
                if stat.S_ISREG(os.lstat(path).st_mode):
                    found.append(os.path.relpath(path, os.fsencode(base)))
            except OSError:
                continue
    return sorted(found)


def changed_files(files: list, folder: str, original: str) -> list:
    """The first of the files that differ between the two folders in kind, content, link target or right to execute."""
    changed = []
    for name in files:
        if not same_file(os.fsencode(os.path.join(folder, name)), os.fsencode(os.path.join(original, name))):
            changed.append(os.fsencode(name))
            if len(changed) == MOST_CHANGED:
                break
    return changed


def same_file(one: bytes, other: bytes) -> bool:
    try:
        a, b = os.lstat(one), os.lstat(other)
        if stat.S_IFMT(a.st_mode) != stat.S_IFMT(b.st_mode):
            return False
        if stat.S_ISLNK(a.st_mode):
            return os.readlink(one) == os.readlink(other)
        if not stat.S_ISREG(a.st_mode):
            return True
        if a.st_size != b.st_size or (a.st_mode ^ b.st_mode) & 0o111:
            return False
        with open(one, "rb") as x, open(other, "rb") as y:
            while part := x.read(1 << 20):
                if part != y.read(1 << 20):
                    return False
            return not y.read(1)
    except (FileNotFoundError, NotADirectoryError):
        return os.path.lexists(one) == os.path.lexists(other)
    except OSError:
        return False


def remove_quietly(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


if __name__ == "__main__":
    main()
