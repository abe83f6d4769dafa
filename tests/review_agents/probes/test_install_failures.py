import pytest

from review_agents.probes.install_failures import error_line, read_failure
from review_agents.records import Ran


@pytest.mark.parametrize(
    ("output", "kind", "reason"),
    [
        ("error: command 'gcc' failed: No such file or directory", "needs", "needs a C compiler"),
        ("unable to execute 'x86_64-linux-gnu-gcc': No such file or directory", "needs", "needs a C compiler"),
        ("src/x.c:1:10: fatal error: Python.h: No such file or directory", "needs", "needs Python's headers"),
        ("fatal error: zlib.h: No such file or directory", "needs", "needs the header zlib.h"),
        ("/usr/bin/ld: cannot find -lxml2", "needs", "needs the library libxml2"),
        ("error: can't find Rust compiler", "needs", "needs a Rust toolchain"),
        ("ERROR: Package 'a' requires a different Python: 3.11.2 not in '>=3.13'", "needs", "needs Python >=3.13"),
        ("Error: pg_config executable not found.", "needs", "needs pg_config"),
        ("sh: 1: protoc: not found", "needs", "needs the program protoc"),
        ("WARNING: Retrying ... NewConnectionError('...: Failed to establish a new connection')", "network", "network"),
        (
            "ProxyError('Cannot connect to proxy.', OSError('Tunnel connection failed: 403 Forbidden'))",
            "network",
            "network",
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'requirements.txt'", "fault", "FileNotFoundError"),
        (
            "      ModuleNotFoundError: No module named 'numpy'\n  error: subprocess-exited-with-error",
            "fault",
            "No module named",
        ),
    ],
)
def test_only_what_is_surely_the_repos_own_is_a_fault(output: str, kind: str, reason: str):
    failure = read_failure(Ran(exit=1, head=output))
    assert failure.kind == kind
    assert reason in failure.reason


def test_a_timeout_or_a_kill_is_never_a_fault():
    assert read_failure(Ran(exit=None, signal=9, timed_out=True, seconds=900)).kind == "time"
    assert read_failure(Ran(exit=None, signal=9, oom=True)).kind == "memory"
    assert read_failure(Ran(exit=137)).kind == "memory"


def test_the_error_line_is_the_last_exception_and_not_pips_wrapper():
    output = "  ValueError: first\n  RuntimeError: second\nERROR: Failed building wheel for x\n"
    output += "error: subprocess-exited-with-error"
    assert error_line(output) == "RuntimeError: second"
    assert (
        error_line("ERROR: Cannot install a and b because they conflict")
        == "Cannot install a and b because they conflict"
    )
    assert error_line("nothing here") == ""


def test_a_compilers_error_is_told_and_not_the_command_line():
    output = "  cc1: fatal error: pkg/_fast.c: No such file or directory\n  compilation terminated.\n"
    output += "  error: Command '['gcc', '-c']' returned non-zero exit status 1.\n"
    assert error_line(output) == "pkg/_fast.c: No such file or directory"
    assert (
        error_line("src/a.c:3:1: error: unknown type name 'x'\nerror: command '/usr/bin/gcc' failed")
        == "unknown type name 'x'"
    )
