"""Parts of the step runner that need no box; that it runs commands rightly is the conformance suite's business."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.sandbox import interpreters, step_runner


class Sent:
    """Stands for the server: collects frames."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, bytes]] = []

    def send(self, kind: int, payload: bytes = b"", stream: int = 0) -> None:
        self.frames.append((kind, payload))

    def of(self, kind: int) -> bytes:
        return b"".join(payload for found, payload in self.frames if found == kind)


@pytest.mark.parametrize("pieces", [[10], [3, 3, 4], [1] * 10])
@pytest.mark.parametrize("total", [0, 1, 4, 5, 8, 9, 100])
def test_head_and_tail_are_kept_and_the_rest_is_counted(pieces: list[int], total: int):
    """8 bytes are kept: 4 of the head and 4 of the tail, however the output is cut."""
    server = Sent()
    output = step_runner.Output(server, 8)  # type: ignore[arg-type]
    content = bytes(i % 251 for i in range(total))
    at = 0
    while at < total:
        for piece in pieces:
            if at < total:
                output.add(content[at : at + piece])
                at += piece
    output.send_tail()
    head, tail = server.of(step_runner.OUTPUT), server.of(step_runner.TAIL)
    assert head == content[:4]
    assert tail == content[4:][-4:]
    assert len(head) + len(tail) + output.dropped_bytes == total


def test_it_refuses_to_run_as_root_or_outside_a_box():
    """Its way to end a command is `kill -9 -1`."""
    command = [sys.executable, "-I", step_runner.__file__]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 1
    assert "never runs as root" in done.stderr or "not PID 1 of a sandbox" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_it_refuses_another_user_than_the_one_it_is_told():
    source = Path(step_runner.__file__).read_text()
    done = subprocess.run(
        [str(reachable()), "-I", "-c", source, "x", "1"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        user=70606,
        group=70606,
        extra_groups=[],
        cwd="/",
        env={},
    )
    assert done.returncode == 1 and "not PID 1 of a sandbox" in done.stderr


def reachable() -> Path:
    for found in interpreters.found():
        if not found.outside_usr:
            return found.path
    pytest.skip("no interpreter below /usr")


def test_every_interpreter_that_a_box_may_get_can_run_it():
    """Compiled by each; the oldest that counts is 3.8."""
    for found in interpreters.found():
        source = f"compile(open({step_runner.__file__!r}).read(), 'x', 'exec')"
        done = subprocess.run([found.path, "-I", "-c", source], capture_output=True)
        assert done.returncode == 0, (found, done.stderr)


def test_short_scripts_are_arguments_and_long_ones_files():
    assert step_runner.script_arguments("echo a") == ([b"/bin/bash", b"-c", b"echo a"], None)
    arguments, path = step_runner.script_arguments("x" * 200_000)
    assert path is not None and arguments == [b"/bin/bash", path.encode()]
    assert Path(path).read_text() == "x" * 200_000
    step_runner.remove_quietly(path)
    step_runner.remove_quietly(path)


def test_folder_size_counts_blocks_and_follows_no_links(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/large").write_bytes(b"x" * 1_000_000)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "usr").symlink_to("/usr")
    assert 1_000_000 <= step_runner.folder_bytes(str(tmp_path)) < 1_200_000
    assert step_runner.folder_bytes(str(tmp_path / "missing")) == 0


def test_watch_without_orders_sees_nothing():
    watch = step_runner.Watch({})
    assert watch.look() == "" and watch.every_s > 1000


def test_watch_tells_what_is_over_which_limit(tmp_path: Path):
    (tmp_path / "large").write_bytes(b"x" * 3_000_000)
    watch = step_runner.Watch({"folders": [str(tmp_path)], "folder_bytes": 1 << 20, "free_bytes": 0})
    watch.next_look = 0
    assert watch.look() == "disk" and "limit 1" in watch.complaint
    watch = step_runner.Watch({"folders": [str(tmp_path)], "folder_bytes": 0, "free_bytes": 1 << 60})
    watch.next_look = 0
    assert watch.look() == "disk" and "must stay free" in watch.complaint
    watch = step_runner.Watch({"memory_bytes": 1 << 20})
    watch.next_look = 0
    assert watch.look() == "memory" and "MiB of memory, limit 1" in watch.complaint


def test_oom_counter_is_read_from_either_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    v1, v2 = tmp_path / "memory.oom_control", tmp_path / "memory.events"
    monkeypatch.setattr(step_runner, "OOM_COUNTERS", (str(v2), str(v1)))
    assert step_runner.oom_kills() == 0
    v1.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert step_runner.oom_kills() == 3
    v2.write_text("low 0\nhigh 0\nmax 12\noom 2\noom_kill 5\noom_group_kill 0\n")
    assert step_runner.oom_kills() == 5


def test_limits_are_read_as_numbers_and_max_is_none(tmp_path: Path):
    (tmp_path / "a").write_text("max\n")
    (tmp_path / "b").write_text("77\n")
    assert step_runner.first_number((str(tmp_path / "a"), str(tmp_path / "b"))) == 77
    assert step_runner.first_number((str(tmp_path / "a"),)) is None


@pytest.mark.parametrize("kind", ["fifo", "link to a device", "folder", "missing", "loop", "below a file"])
def test_only_regular_files_are_opened_and_nothing_waits(tmp_path: Path, kind: str):
    path = tmp_path / "x"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "below a file":
        path.write_text("")
        path = path / "y"
    with pytest.raises(step_runner.NoFile):
        step_runner.read_file(str(path), 10)


@pytest.mark.parametrize("target", ["/proc/self/mem", "/proc/self/fd/0", "/dev/null", "/sys/kernel/uevent_seqnum"])
def test_links_into_the_kernels_own_files_are_no_files(tmp_path: Path, target: str):
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(step_runner.NoFile):
        step_runner.read_file(str(tmp_path / "link"), 10)
    with pytest.raises(step_runner.NoFile):
        step_runner.write_file(str(tmp_path / "link").encode(), b"x")


def test_writing_through_a_pipe_with_no_reader_does_not_wait(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(step_runner.NoFile):
        step_runner.write_file(str(tmp_path / "pipe").encode(), b"x")


def test_listing_leaves_links_and_git_out_and_is_sorted(tmp_path: Path):
    for name in ("b.txt", "a/z.txt", ".git/config", "sub/.git/config", "a.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "link").symlink_to("b.txt")
    (tmp_path / "out").symlink_to("/usr")
    os.mkfifo(tmp_path / "fifo")
    assert step_runner.list_files(str(tmp_path), str(tmp_path)) == [b"a.txt", b"a/z.txt", b"b.txt"]
    assert step_runner.list_files(str(tmp_path / "a"), str(tmp_path)) == [b"a/z.txt"]


def test_a_kernel_counter_sees_what_children_did_and_not_the_step_runner_itself():
    """With the kernel's task clock, because virtual machines rarely pass on the processor's own counters."""
    software, task_clock_ns = 1, 1
    try:
        counter = step_runner.ChildCounter(software, task_clock_ns)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOENT, errno.EOPNOTSUPP):
            raise
        pytest.skip(f"this kernel counts nothing for us: {error}")
    before = counter.read()
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    alone = counter.read() - before
    burn = "import time\nwhile time.process_time() < 0.15: pass"
    subprocess.run([sys.executable, "-I", "-c", burn], check=True)
    assert alone < 20e6
    assert counter.read() - before > 100e6


def test_where_nothing_is_counted_instructions_are_unknown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(step_runner, "PERF_EVENT_OPEN", {})
    assert step_runner.child_counter() is None
