"""One review at a time on a machine, whoever starts it and however it ends."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from orchestrator.services import host_lock
from orchestrator.services.errors import OutsideError

HOLDING = """
import sys, time
from pathlib import Path
from orchestrator.services import host_lock
with host_lock.held(Path(sys.argv[1]), "the other process"):
    print("held", flush=True)
    time.sleep(60)
"""


def other_process(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLDING, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_held_lock_is_not_free_and_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert host_lock.is_free(path)
    with host_lock.held(path, "a review of x") as ours:
        assert ours and not host_lock.is_free(path)
        assert host_lock.holder_of(path) == "a review of x"
    assert host_lock.is_free(path)


def test_a_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    other = other_process(path)
    waited_for: list[str] = []
    threading.Timer(0.6, lambda: other.send_signal(signal.SIGKILL)).start()
    started = time.monotonic()
    with host_lock.held(path, "us", waiting=waited_for.append) as ours:
        assert ours and time.monotonic() - started > 0.5
    assert waited_for == ["the other process"]
    other.wait()


def test_waiting_can_be_given_up(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    other = other_process(path)
    try:
        with host_lock.held(path, "us", give_up=lambda: True) as ours:
            assert not ours
        assert host_lock.take_for_good(path, "us") is None
    finally:
        other.kill()
        other.wait()


def test_a_child_does_not_inherit_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with host_lock.held(path, "us"):
        child = subprocess.Popen(["sleep", "30"], close_fds=False)
    try:
        assert host_lock.is_free(path)
    finally:
        child.kill()
        child.wait()


def test_the_file_is_for_every_user_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with host_lock.held(tmp_path / "lock", "us"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o666


@pytest.mark.parametrize("name", ["folder", "link"])
def test_what_cannot_be_a_lock_file_is_said_with_the_setting_to_change(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutsideError, match="LAMPLIGHTER_HOST_LOCK"), host_lock.held(tmp_path / name, "us"):
        pass
