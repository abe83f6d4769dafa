"""Reading a failed installation: is it the repo's fault, the network's, or something this sandbox lacks?

Only what is surely the repo's own is a fault. A missing compiler, header, interpreter or network says nothing about
the repo, and neither does a dependency that does not build here.
"""

import re

from review_agents.records import Ran, Record

NETWORK = re.compile(
    r"NewConnectionError|ProxyError|ConnectTimeout|ReadTimeout|Read timed out|Temporary failure in name resolution"
    r"|Network is unreachable|Connection refused|Connection reset by peer|ConnectionResetError"
    r"|Name or service not known|Could not resolve host|SSLError|CERTIFICATE_VERIFY_FAILED|HTTPError: 5\d\d"
    r"|5\d\d Server Error|403 Forbidden|Could not fetch URL|Tunnel connection failed|HTTPSConnectionPool"
    r"|IncompleteRead|RemoteDisconnected|getaddrinfo (?:EAI_AGAIN|ENOTFOUND)|ECONNREFUSED|ETIMEDOUT|ENOTFOUND"
    r"|spurious network error",
)
# How pip, git, cargo and npm say that the egress proxy refused.
REFUSED = re.compile(r"[Tt]unnel(?:ing)? (?:connection |socket )?(?:failed|could not)|Refused by the egress proxy")
UNTRUSTED = re.compile(r"CERTIFICATE_VERIFY_FAILED|(?:unable to get local|self[- ]signed).{0,30}certificate")
NO_INDEX = re.compile(r"No matching distribution found|Could not find a version that satisfies")
HINT = "`lamplighter doctor` prints the settings for this machine"
COMPILER = r"(?:[\w.-]*-)?(?:gcc|g\+\+|cc|c\+\+|clang|clang\+\+)(?:-\d+)?"
# What the output says, and what to ask for; the first group, where there is one, completes the answer.
NEEDS = (
    (r"requires a different Python: \S+ not in ['\"]?([^'\"\n]+)['\"]?", "Python {}"),
    (r"No module named '?ensurepip|ensurepip is not\s+available", "Python's venv module (Debian: python3-venv)"),
    (r"Python\.h: No such file|Python\.h.* not found", "Python's headers (Debian: python3-dev)"),
    (r"(?:can't find|requires|install) (?:the )?Rust compiler", "a Rust toolchain (cargo)"),
    (r"(?:cargo|rustc)[^\n]{0,40}not (?:found|installed)", "a Rust toolchain (cargo)"),
    (r"No such file or directory: 'cargo'|Cargo, the Rust package manager", "a Rust toolchain (cargo)"),
    (rf"No such file or directory: '{COMPILER}'|unable to execute '{COMPILER}'", "a C compiler"),
    (rf"error: command '(?:\S*/)?{COMPILER}' failed: No such file", "a C compiler"),
    (r"gfortran[^\n]{0,20}not found|No Fortran compiler|Unable to find GNU Fortran", "a Fortran compiler"),
    (r"Unknown compiler\(s\)|No CMAKE_CX*_COMPILER could be found", "a C or C++ compiler"),
    (r"fatal error: ([\w/.+-]+\.(?:h|hpp)): No such file", "the header {}"),
    (r"cannot find -l(\w+)", "the library lib{}"),
    (r"(pg_config|mysql_config)[^\n]{0,40}(?:not found|is required)", "{}"),
    (r"([\w]+[_-]config)(?: executable)?(?:: command)? not found", "{}"),
    (r"CMake must be installed|No such file or directory: 'cmake'", "cmake"),
    (r"Dependency lookup for (\S+) with method .* failed", "the library {}"),
    (r"Dependency \"([^\"]+)\" not found", "the library {}"),
    (r"Package '?([\w.+-]+)'?,? (?:was not|not) found in the pkg-config", "the library {}"),
    (r"No such file or directory: '(git|go|node|npm|swig|make|ninja|nvcc|java|pkg-config)'", "the program {}"),
    (r"(?:^|\s)(\w[\w+-]*): (?:command )?not found", "the program {}"),
    (r"make(?:\[\d+\])?: ([\w.+/-]+): (?:No such file or directory|Permission denied)", "the program {}"),
    (r"No space left on device", "more disk space"),
    (r"not a supported wheel on this platform|Unsupported platform", "another operating system"),
)


class Failure(Record):
    kind: str  # "network", "needs", "time", "memory" or "fault"
    reason: str  # one sentence part: what is needed, or the error itself

    @property
    def is_fault(self) -> bool:
        return self.kind == "fault"


def read_failure(ran: Ran) -> Failure:
    """Why the command failed. `fault` only when nothing points at the surroundings."""
    output = ran.output
    if ran.timed_out:
        return Failure(kind="time", reason=f"the command was still running after {ran.seconds:.0f} s")
    if ran.oom or ran.signal is not None or ran.exit == 137:
        return Failure(kind="memory", reason=f"the command {ran.ending}")
    if ran.refusals and REFUSED.search(output):
        return Failure(kind="network", reason=f"{ran.refusals[0]}. {HINT}")
    if UNTRUSTED.search(output):
        reason = "nobody in the sandbox trusts the certificate of the package index (LAMPLIGHTER_SANDBOX_CA_FILE)"
        return Failure(kind="network", reason=f"{reason}. {HINT}")
    needed = _needed(output)
    if needed:
        return Failure(kind="needs", reason=f"needs {needed}")
    if NETWORK.search(output):
        return Failure(
            kind="network", reason=f"the network or the package index did not answer: {_line(NETWORK, output)}"
        )
    return Failure(kind="fault", reason=error_line(output) or ran.ending)


def index_is_barred(ran: Ran) -> bool:
    """Whether pip found nothing because the proxy let it through to nowhere: then each further try ends alike."""
    return bool(ran.refusals and REFUSED.search(ran.output) and NO_INDEX.search(ran.output))


def _needed(output: str) -> str:
    for pattern, answer in NEEDS:
        found = re.search(pattern, output, re.M)
        if found:
            return answer.format(next((group for group in found.groups() if group), "")).strip()
    return ""


def _line(pattern: re.Pattern[str], output: str) -> str:
    line = next(line for line in output.splitlines() if pattern.search(line))
    return line.strip()[:200]


EXCEPTION = re.compile(
    r"^[\s│╰─>×|]*((?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|NotFound|Missing|Invalid\w*)\b:? .*)$"
)
SAID = re.compile(r"^[\s│╰─>×|]*(?:[\w./+-]+:(?:\d+:)*\s+)?(?:ERROR|error|Error|fatal|fatal error):\s*(.+)$")
NOT_THE_CAUSE = (
    "subprocess-exited-with-error",
    "Failed building",
    "Failed to build",
    "Could not build wheels",
    "metadata-generation-failed",
    "CalledProcessError",
    "Command '[",
    "command '/",
    "dependency-conflicts",
)


def error_line(output: str) -> str:
    """The line that names the error: the last exception, else the last line marked as an error."""
    lines = output.splitlines()
    for pattern in (EXCEPTION, SAID):
        for line in reversed(lines):
            found = pattern.match(line)
            if found and not any(text in line for text in NOT_THE_CAUSE):
                return found[1].strip()[:300]
    return ""
