"""Cgroups of our own for boxes that no engine limits: memory, processes, CPU pinning; v1 and v2.

A box gets one folder per hierarchy, `lamplighter.INSTANCE/NAME` below the hierarchy's root: always
the same place, so that the successor of a killed worker, which may itself sit in another cgroup,
finds what was left. The instance's folder goes with its last box, so whoever makes a box must expect
it to vanish until the box is in it. Only root can make them; for an ordinary user `missing_limits`
says what lacks.

On v1 each controller has its own tree; a hybrid system has a v2 tree beside them without the memory
and pids controllers, which we use for its pressure files and `cgroup.kill`.
"""

import errno
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.sandbox.contract import Limits, SandboxError
from orchestrator.sandbox.pressure import with_siblings
from orchestrator.settings import Settings

WANTED = ("memory", "pids", "cpuset")
IN_WORDS = {"memory": "memory", "pids": "number of processes", "cpuset": "pinning to CPUs"}
REMOVAL_PATIENCE_S = 3.0
CREATION_TRIES = 20  # other boxes of the instance may end in between
# What is said of a folder that is gone; the last when it went while Python asked whether it is one.
VANISHED = (errno.ENOENT, errno.ENODEV, errno.EEXIST)


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted cgroup tree."""

    root: Path
    version: int
    controllers: frozenset[str]


def hierarchies(mounts: str) -> tuple[Hierarchy, ...]:
    """The trees named in the text of /proc/self/mounts."""
    found = []
    for line in mounts.splitlines():
        _, place, kind, options = line.split(" ")[:4]
        root = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), place))
        if kind == "cgroup":
            controllers = frozenset(WANTED) & frozenset(options.split(","))
            if controllers:
                found.append(Hierarchy(root, 1, controllers))
        elif kind == "cgroup2":
            available = read_words(root / "cgroup.controllers")
            found.append(Hierarchy(root, 2, frozenset(WANTED) & available))
    return tuple(found)


class Cgroups:
    """All boxes' cgroups of one instance."""

    def __init__(self, instance: str, trees: tuple[Hierarchy, ...] | None = None):
        self.trees = hierarchies(Path("/proc/self/mounts").read_text()) if trees is None else trees
        self.parent = f"lamplighter.{instance}"

    def missing_limits(self) -> tuple[str, ...]:
        """Limits that cannot be set here, in words; found by making a cgroup and removing it again."""
        usable: set[str] = set()
        for tree in self.trees:
            with suppress(OSError, SandboxError):
                trial = self.make(tree, f"trial-{os.getpid()}")
                usable |= {name for name in tree.controllers if (trial / LIMIT_FILES[tree.version][name]).exists()}
                remove(trial)
                remove_if_empty(trial.parent)
        return tuple(f"{IN_WORDS[name]} (no usable {name} cgroup)" for name in WANTED if name not in usable)

    def create(self, name: str, limits: Limits) -> "BoxCgroup":
        """Make the box's cgroups with their limits; controllers that do not work here are left out."""
        folders = []
        for tree in self.trees:
            folder = tree.root / self.parent / name
            try:
                self.make(tree, name)
                set_limits(tree, folder, limits)
            except OSError as error:
                remove_if_empty(folder)
                remove_if_empty(folder.parent)
                if os.geteuid() == 0 and tree.controllers and not os.access(tree.root, os.W_OK):
                    continue  # a read-only tree, as in a container: named by missing_limits
                raise SandboxError(f"The cgroup {folder} could not be set up: {error}.", retry=True) from None
            folders.append(Folder(tree, folder, folder.stat().st_ino))
        return BoxCgroup(tuple(folders))

    def make(self, tree: Hierarchy, name: str) -> Path:
        """The folder of that name, in the instance's."""
        folder = tree.root / self.parent / name
        for attempt in range(1, CREATION_TRIES + 1):
            try:
                self.make_parent(tree)
                folder.mkdir(exist_ok=True)
                break
            except OSError as error:  # the instance's last box ended just now, and its folder with it
                if attempt == CREATION_TRIES or error.errno not in VANISHED:
                    raise
        self.make_parent(tree)  # somebody else may have made it anew meanwhile and be not as far yet
        return folder

    def make_parent(self, tree: Hierarchy) -> None:
        parent = tree.root / self.parent
        parent.mkdir(exist_ok=True)
        if tree.version == 2:
            for folder in (tree.root, parent):
                enable(folder, tree.controllers)
        elif "cpuset" in tree.controllers:
            inherit_cpuset(parent)

    def names(self) -> set[str]:
        """Boxes that have a cgroup, also left ones."""
        found: set[str] = set()
        for tree in self.trees:
            with suppress(FileNotFoundError):
                found |= {folder.name for folder in (tree.root / self.parent).iterdir() if folder.is_dir()}
        return found

    def remove(self, name: str) -> None:
        """Kill what is left in the box's cgroups and remove them. Quiet when there is nothing."""
        for tree in self.trees:
            remove(tree.root / self.parent / name)
        self.remove_parent()

    def remove_parent(self) -> None:
        """The instance's own folder, where no box is in it: a worker killed between the two leaves it empty."""
        for tree in self.trees:
            remove_if_empty(tree.root / self.parent)


@dataclass(frozen=True, slots=True)
class Folder:
    """One cgroup of a box. The number tells it from a later one of the same name."""

    tree: Hierarchy
    path: Path
    number: int


@dataclass(frozen=True, slots=True)
class BoxCgroup:
    """The cgroups of one box."""

    folders: tuple[Folder, ...]

    @property
    def process_files(self) -> tuple[Path, ...]:
        """A process that writes its id to each of these is inside."""
        return tuple(folder.path / "cgroup.procs" for folder in self.folders)

    @property
    def mounts(self) -> Iterator[tuple[Path, str]]:
        """Host folder and its place in the box, so that programs (and our step runner) read their own limits."""
        for folder in self.folders:
            if folder.tree.version == 2 and folder.tree.controllers:
                yield folder.path, "/sys/fs/cgroup"
            elif folder.tree.version == 1:
                for name in sorted(folder.tree.controllers):
                    yield folder.path, f"/sys/fs/cgroup/{name}"

    def oom_kills(self) -> int:
        """How many of the box's processes the kernel has killed for memory."""
        counts = [0]
        for folder in self.folders:
            with suppress(OSError):
                counters = (folder.path / OOM_COUNTERS[folder.tree.version]).read_text()
                counts += [int(line.split()[1]) for line in counters.splitlines() if line.startswith("oom_kill ")]
        return max(counts)

    def memory_peak(self) -> "MemoryPeak | None":
        """A fresh look at the most memory that all of the box holds; None where the kernel does not count it anew."""
        for folder in self.folders:
            if "memory" in folder.tree.controllers:
                with suppress(OSError):
                    return MemoryPeak(folder.path / PEAK_FILES[folder.tree.version])
        return None

    def remove(self) -> None:
        """Kill what is left in them and remove them; a box that took over the name is left alone."""
        for folder in self.folders:
            with suppress(FileNotFoundError):
                if folder.path.stat().st_ino == folder.number:
                    remove(folder.path)
            remove_if_empty(folder.path.parent)


class MemoryPeak:
    """The most memory that a cgroup has held since this was made, page cache included."""

    def __init__(self, counter: Path):
        """Raises `OSError` where the counter cannot be started anew (v2 before Linux 6.12)."""
        self.file = os.open(counter, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.write(self.file, b"0\n")
        except OSError:
            os.close(self.file)
            raise

    def read_and_close(self) -> int | None:
        try:
            return int(os.pread(self.file, 32, 0))
        except (OSError, ValueError):  # the box is gone
            return None
        finally:
            os.close(self.file)


OOM_COUNTERS = {1: "memory.oom_control", 2: "memory.events"}
PEAK_FILES = {1: "memory.max_usage_in_bytes", 2: "memory.peak"}
LIMIT_FILES = {
    1: {"memory": "memory.limit_in_bytes", "pids": "pids.max", "cpuset": "cpuset.cpus"},
    2: {"memory": "memory.max", "pids": "pids.max", "cpuset": "cpuset.cpus"},
}


def set_limits(tree: Hierarchy, folder: Path, limits: Limits) -> None:
    cpus = ",".join(str(cpu) for cpu in limits.cpus)
    if "memory" in tree.controllers:
        (folder / LIMIT_FILES[tree.version]["memory"]).write_text(str(limits.memory_bytes))
        with_swap = folder / ("memory.memsw.limit_in_bytes" if tree.version == 1 else "memory.swap.max")
        if with_swap.exists():  # absent where the kernel does not count swap
            with_swap.write_text(str(limits.memory_bytes if tree.version == 1 else 0))
    if "pids" in tree.controllers:
        (folder / "pids.max").write_text(str(limits.pids))
    if "cpuset" in tree.controllers:
        if tree.version == 1:
            inherit_cpuset(folder)
        if cpus:
            (folder / "cpuset.cpus").write_text(cpus)


def inherit_cpuset(folder: Path) -> None:
    """On v1 a new cpuset is empty and takes no process until it has CPUs and memory nodes."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if not (folder / name).read_text().strip():
            (folder / name).write_text((folder.parent / name).read_text())


def enable(folder: Path, controllers: frozenset[str]) -> None:
    """Pass controllers on to the folder's children (v2)."""
    for name in sorted(controllers - read_words(folder / "cgroup.subtree_control")):
        with suppress(OSError):  # cannot be passed on here; missing_limits will not find its files
            (folder / "cgroup.subtree_control").write_text(f"+{name}")


def remove(folder: Path) -> None:
    """Kill every process in the cgroup and remove it, waiting a little for the kernel to let go."""
    give_up = time.monotonic() + REMOVAL_PATIENCE_S
    while True:
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > give_up:
                raise SandboxError(f"The cgroup {folder} does not become empty.", retry=True) from None
        kill_members(folder)
        time.sleep(0.002)


def remove_if_empty(folder: Path) -> None:
    """The kernel decides in one step: a cgroup with another in it stays."""
    with suppress(OSError):
        folder.rmdir()


def kill_members(folder: Path) -> None:
    with suppress(OSError):
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def read_words(path: Path) -> frozenset[str]:
    try:
        return frozenset(path.read_text().split())
    except OSError:
        return frozenset()


def configured(settings: Settings, *, step_s: float | None = None) -> Limits:
    """What the operator allows one box. Raises `SandboxError` when the CPU list cannot be read."""
    return Limits(
        cpus=cpu_list(settings.sandbox_cpus),
        memory_bytes=settings.sandbox_memory_bytes,
        pids=settings.sandbox_pids,
        scratch_bytes=settings.sandbox_scratch_bytes,
        free_bytes=settings.free_disk_bytes // 2,
        step_s=settings.budget_minutes * 60.0 if step_s is None else step_s,
    )


def for_measuring(settings: Settings) -> tuple[int, ...]:
    """The CPUs for commands whose time is compared: the operator's, else all but the first core, which the kernel
    and this worker then have for themselves. Empty, so not pinned, where there is only one core."""
    chosen = cpu_list(settings.sandbox_cpus)
    if chosen:
        return chosen
    allowed = tuple(sorted(os.sched_getaffinity(0)))
    return tuple(cpu for cpu in allowed if cpu not in with_siblings(allowed[:1]))


def cpu_list(text: str) -> tuple[int, ...]:
    """The numbers in a list such as "0,2-3"."""
    cpus: set[int] = set()
    for part in filter(None, text.replace(" ", "").split(",")):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part)
        if match is None:
            raise SandboxError(f'LAMPLIGHTER_SANDBOX_CPUS: found {text!r}, expected a list such as "2-3".')
        cpus.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    missing = cpus - os.sched_getaffinity(0)
    if missing:
        raise SandboxError(f"LAMPLIGHTER_SANDBOX_CPUS: {text!r} names CPUs that are not here: {sorted(missing)}.")
    return tuple(sorted(cpus))
