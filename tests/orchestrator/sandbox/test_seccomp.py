"""The filter's decisions, by a small interpreter of its few BPF instructions, for other kinds of machine too."""

import errno
import struct

import pytest

from orchestrator.sandbox import seccomp

ALLOW = "allow"


def decide(machine: str, number: int, argument: int = 0, arch: int | None = None, **how: bool) -> str | int:
    """ALLOW, or the errno with which the call fails."""
    program = seccomp.program(machine, **how)
    lines = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    data = struct.pack("<IIQQ", number, seccomp.AUDIT_ARCH[machine] if arch is None else arch, 0, argument)
    at = register = 0
    while True:
        code, when_true, when_false, value = lines[at]
        at += 1
        if code == seccomp.LOAD:
            (register,) = struct.unpack_from("<I", data, value)
        elif code == seccomp.AND:
            register &= value
        elif code in (seccomp.JUMP_EQUAL, seccomp.JUMP_AT_LEAST):
            holds = register == value if code == seccomp.JUMP_EQUAL else register >= value
            at += when_true if holds else when_false
        else:
            assert code == seccomp.RETURN
            return ALLOW if value == seccomp.ALLOW else value & 0xFFFF


MACHINES = pytest.mark.parametrize("machine", sorted(seccomp.CALLS))


@MACHINES
def test_ordinary_calls_pass(machine: str):
    for number in set(range(400)) - set(seccomp.CALLS[machine].values()):
        assert decide(machine, number) == ALLOW


@MACHINES
def test_forbidden_calls_fail_with_a_code_that_callers_understand(machine: str):
    for name, number in seccomp.CALLS[machine].items():
        if name in seccomp.BY_ARGUMENT or name in seccomp.TRACING:
            continue
        assert decide(machine, number) == (errno.ENOSYS if name in seccomp.NOT_THERE else errno.EPERM), name


@MACHINES
@pytest.mark.parametrize("name", ["clone", "unshare"])
def test_user_namespaces_are_refused_and_threads_and_processes_are_not(machine: str, name: str):
    number = seccomp.CALLS[machine][name]
    assert decide(machine, number, 0x10000000) == errno.EPERM
    assert decide(machine, number, 0x7C020000 | 17) == errno.EPERM  # together with every other namespace
    assert decide(machine, number, 0x003D0F00) == ALLOW  # what glibc passes for a thread
    assert decide(machine, number, 17) == ALLOW


@MACHINES
def test_only_local_internet_and_netlink_sockets_exist(machine: str):
    number = seccomp.CALLS[machine]["socket"]
    allowed = {family for family in range(50) if decide(machine, number, family) == ALLOW}
    assert allowed == {1, 2, 10, 16}
    assert decide(machine, number, 40) == errno.EAFNOSUPPORT  # AF_VSOCK


@MACHINES
def test_other_call_tables_do_not_exist(machine: str):
    assert decide(machine, 1, arch=0x40000003) == errno.ENOSYS  # i386
    if machine == "x86_64":
        assert decide(machine, 0x40000000 | 39) == errno.ENOSYS  # x32


@MACHINES
def test_tracing_is_forbidden_where_asked(machine: str):
    for name in seccomp.TRACING:
        assert decide(machine, seccomp.CALLS[machine][name]) == ALLOW
        assert decide(machine, seccomp.CALLS[machine][name], tracing=False) == errno.EPERM


def test_kind_of_machine_without_a_table_gets_no_filter_and_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert seccomp.program() == b""
    assert seccomp.missing_limits() == ("system calls (no table for riscv64)",)
