"""One review at a time on this machine, whatever started it: a lock that the kernel lets go of with its holder.

The file says who holds it, for people who wait. The lock is the truth, not the text: a killed holder leaves
its name behind, and no lock.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.services.errors import OutsideError

ASK_EVERY_S = 0.25


@contextmanager
def held(
    path: Path,
    name: str,
    *,
    waiting: Callable[[str], None] = lambda holder: None,
    give_up: Callable[[], bool] = lambda: False,
) -> Iterator[bool]:
    """Hold the lock within the block. Yields False, without it, when `give_up` said so first.

    `waiting` hears the holder's name, once per holder. Raises `OutsideError` when there can be no such file.
    """
    file = opened(path)
    try:
        told = None
        while not taken(file):
            if give_up():
                yield False
                return
            holder = holder_of(path)
            if holder != told:
                waiting(holder)
                told = holder
            time.sleep(ASK_EVERY_S)
        written(file, name)
        yield True
    finally:
        os.close(file)


def is_free(path: Path) -> bool:
    """Whether nobody holds it right now."""
    file = opened(path)
    try:
        return taken(file)
    finally:
        os.close(file)


def take_for_good(path: Path, name: str) -> int | None:
    """Hold it until the process ends; None when somebody else does. The descriptor must be kept."""
    file = opened(path)
    if not taken(file):
        os.close(file)
        return None
    written(file, name)
    return file


def holder_of(path: Path) -> str:
    """Who wrote its name there last, on one line."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")[:300]
    except OSError:
        text = ""
    return " ".join(text.split()) or "somebody without a name"


def opened(path: Path) -> int:
    """The file for every user of this machine. It may belong to another one: a lock needs no right to write."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for flags in (os.O_RDWR, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDONLY):
            try:
                file = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            except (FileNotFoundError, FileExistsError, PermissionError):
                continue
            if flags & os.O_CREAT:
                os.fchmod(file, 0o666)  # the umask took the others' right away
            return file
        raise PermissionError(13, "permission denied")
    except OSError as error:
        raise OutsideError(
            f"The lock file {path} cannot be opened: {error.strerror}. "
            "Set LAMPLIGHTER_HOST_LOCK to a file that every user who reviews on this machine can open.",
            retry=False,
        ) from None


def taken(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def written(file: int, name: str) -> None:
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, f"{name}\n".encode(), 0)
    except OSError:  # somebody else's file: then the name is not to be had
        return
