"""The system call filter of every command, as BPF bytes that the step runner puts on itself.

bubblewrap filters nothing by itself, and engines differ (Podman allows user namespaces, Docker
before 23 allows AF_VSOCK); filters add up, so this one lies on top of the engine's on all of them.
It refuses what no build or test needs and what has been the way out of sandboxes: new user
namespaces (root inside becomes reachable), mounts, kernel keys, tracing by perf and bpf, io_uring,
and every socket family but local, IP and netlink. AF_VSOCK matters most: it reaches the hypervisor
and knows no network namespace.

Refused calls fail with EPERM; `clone3`, whose flags a filter cannot read, and io_uring fail with
ENOSYS so that callers fall back; foreign system call tables (32 bit, x32) do not exist inside.
"""

import errno
import platform
import struct

ALLOWED_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK
CLONE_NEWUSER = 0x10000000

# Numbers from the kernel's tables; the order of names is the same in both.
CALLS: dict[str, dict[str, int]] = {
    "x86_64": {
        "clone": 56, "unshare": 272, "clone3": 435, "socket": 41, "setns": 308,
        "mount": 165, "umount2": 166, "pivot_root": 155, "move_mount": 429, "open_tree": 428, "fsopen": 430,
        "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442,
        "add_key": 248, "request_key": 249, "keyctl": 250, "bpf": 321, "perf_event_open": 298,
        "userfaultfd": 323, "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "finit_module": 313,
        "delete_module": 176, "open_by_handle_at": 304, "name_to_handle_at": 303, "swapon": 167, "swapoff": 168,
        "reboot": 169, "quotactl": 179, "acct": 163, "settimeofday": 164, "clock_settime": 227, "clock_adjtime": 305,
        "syslog": 103, "lookup_dcookie": 212, "iopl": 172, "ioperm": 173,
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "pidfd_getfd": 438,
        "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    },
    "aarch64": {
        "clone": 220, "unshare": 97, "clone3": 435, "socket": 198, "setns": 268,
        "mount": 40, "umount2": 39, "pivot_root": 41, "move_mount": 429, "open_tree": 428, "fsopen": 430,
        "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442,
        "add_key": 217, "request_key": 218, "keyctl": 219, "bpf": 280, "perf_event_open": 241,
        "userfaultfd": 282, "kexec_load": 104, "kexec_file_load": 294, "init_module": 105, "finit_module": 273,
        "delete_module": 106, "open_by_handle_at": 265, "name_to_handle_at": 264, "swapon": 224, "swapoff": 225,
        "reboot": 142, "quotactl": 60, "acct": 89, "settimeofday": 170, "clock_settime": 112, "clock_adjtime": 266,
        "syslog": 116, "lookup_dcookie": 18,
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "pidfd_getfd": 438,
        "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    },
}  # fmt: skip
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NOT_THERE = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register")
TRACING = ("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd")
BY_ARGUMENT = ("clone", "unshare", "socket")
X32_BIT = 0x40000000

LOAD, AND, JUMP_EQUAL, JUMP_AT_LEAST, RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
NUMBER_AT, ARCH_AT, ARGUMENT_AT = 0, 4, 16  # offsets in struct seccomp_data; argument 0, low half (little endian)
ALLOW, FAIL = 0x7FFF0000, 0x00050000


def program(machine: str | None = None, *, tracing: bool = True) -> bytes:
    """The filter for this kind of machine; empty for kinds without a table (see `missing_limits`).

    tracing     whether debuggers may trace what they started. Not where the kernel lets a program trace
                the step runner although it is not dumpable (gVisor).
    """
    machine = machine or platform.machine()
    if machine not in CALLS:
        return b""
    calls = CALLS[machine]
    lines = [
        statement(LOAD, ARCH_AT),
        jump(JUMP_EQUAL, AUDIT_ARCH[machine], 1, 0),
        statement(RETURN, FAIL | errno.ENOSYS),
        statement(LOAD, NUMBER_AT),
    ]
    if machine == "x86_64":
        lines += [jump(JUMP_AT_LEAST, X32_BIT, 0, 1), statement(RETURN, FAIL | errno.ENOSYS)]
    for name, number in calls.items():
        if name not in BY_ARGUMENT and not (tracing and name in TRACING):
            code = errno.ENOSYS if name in NOT_THERE else errno.EPERM
            lines += [jump(JUMP_EQUAL, number, 0, 1), statement(RETURN, FAIL | code)]
    for name in ("clone", "unshare"):  # five lines each: skip all of them when it is another call
        lines += [
            jump(JUMP_EQUAL, calls[name], 0, 5),
            statement(LOAD, ARGUMENT_AT),
            statement(AND, CLONE_NEWUSER),
            jump(JUMP_EQUAL, 0, 1, 0),
            statement(RETURN, FAIL | errno.EPERM),
            statement(RETURN, ALLOW),
        ]
    lines += [jump(JUMP_EQUAL, calls["socket"], 0, len(ALLOWED_FAMILIES) + 2), statement(LOAD, ARGUMENT_AT)]
    for position, family in enumerate(ALLOWED_FAMILIES):
        lines.append(jump(JUMP_EQUAL, family, len(ALLOWED_FAMILIES) - position, 0))
    lines += [statement(RETURN, FAIL | errno.EAFNOSUPPORT), statement(RETURN, ALLOW)]
    return b"".join(lines)


def missing_limits() -> tuple[str, ...]:
    machine = platform.machine()
    return () if machine in CALLS else (f"system calls (no table for {machine})",)


def statement(code: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, 0, 0, value)


def jump(code: int, value: int, when_true: int, when_false: int) -> bytes:
    """Skips that many of the following lines."""
    return struct.pack("=HBBI", code, when_true, when_false, value)
