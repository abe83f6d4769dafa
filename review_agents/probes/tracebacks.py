"""Python tracebacks in a program's output: which exception, from which line, and the shape that tells its cause."""

import re

from review_agents.records import Record

START = "Traceback (most recent call last):"
FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+), in (.+)$')
SYNTAX_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)$')
RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?$")

# Messages that speak of the surroundings (sandbox, machine), not of the repo. Matched against "Type: message".
SURROUNDINGS = re.compile(
    r"Temporary failure in name resolution|Name or service not known|Network is unreachable|Connection refused"
    r"|nodename nor servname|Max retries exceeded|ConnectError|ConnectTimeout|getaddrinfo|gaierror|No route to host"
    r"|Cannot assign requested address|Address family not supported|Errno 101\b|Errno -[23]\b|Errno 99\b|Errno 97\b"
    r"|no display name|couldn't connect to display|could not connect to display|DISPLAY|cannot open display"
    r"|Read-only file system|Errno 30\b|No space left on device|Cannot allocate memory|MemoryError"
    r"|Inappropriate ioctl|termios|curses\.error|setupterm|cbreak\(\) returned ERR|not a terminal|not a tty"
    r"|Operation not permitted|unsupported locale setting|No time zone found|ZoneInfoNotFoundError|tzlocal"
    r"|Please tell me who you are|dubious ownership|Too many open files|can't start new thread"
    r"|Resource temporarily unavailable|/dev/(?:tty|shm|kvm|video|snd|input)|dbus|DBus|org\.freedesktop"
    r"|libGL|CUDA|nvidia|xcb|BrowserType\.launch|chromedriver|geckodriver",
)
MISSING_PROGRAM = re.compile(r"FileNotFoundError: \[Errno 2\] No such file or directory: '([\w.+-]+)'$")


class Frame(Record):
    file: str
    line: int
    function: str


class Raised(Record):
    """One uncaught exception as Python printed it."""

    type: str  # without its module
    message: str
    frames: tuple[Frame, ...] = ()

    @property
    def text(self) -> str:
        """Type and message, without the place of an installed file that Python adds to some import errors."""
        message = re.sub(r" \(/[^()]*\)$", "", self.message)
        return f"{self.type}: {message}" if message else self.type

    @property
    def surroundings(self) -> str:
        """See `surroundings`."""
        ran_program = bool(self.frames) and self.frames[-1].file.endswith("subprocess.py")
        return surroundings(self.text, ran_program=ran_program)

    @property
    def shape(self) -> str:
        return shape_of(self.type, self.message)


def last_traceback(output: str) -> Raised | None:
    """The last traceback of the output, with the exception that ended it. None when there is none."""
    lines = output.splitlines()
    starts = [at for at, line in enumerate(lines) if line.strip().endswith(START)]
    if not starts:
        return None
    frames: list[Frame] = []
    for line in lines[starts[-1] + 1 :]:
        frame = FRAME.match(line) or SYNTAX_FRAME.match(line)
        if frame:
            function = frame[3] if frame.re is FRAME else "<module>"
            frames.append(Frame(file=frame[1], line=int(frame[2]), function=function))
        elif line and not line[0].isspace():
            found = RAISED.match(line)
            if found:
                return Raised(type=found[1].split(".")[-1], message=(found[2] or "").strip(), frames=tuple(frames))
            return None
    return None


def shape_of(kind: str, message: str) -> str:
    """Exception type and message with everything replaced that differs from run to run or place to place."""
    first = message.strip().splitlines()[0] if message.strip() else ""
    first = re.sub(r"0x[0-9a-fA-F]+", "ADDRESS", first)
    first = re.sub(r"""'[^']*'|"[^"]*"|`[^`]*`""", "QUOTED", first)
    first = re.sub(r"(?<!\w)(?:/[\w.@+-]+)+/?", "PATH", first)
    first = re.sub(r"\d+(?:\.\d+)?", "N", first)
    return f"{kind}: {first[:160]}" if first else kind


def surroundings(text: str, *, ran_program: bool = False) -> str:
    """What the text says is missing around the program ("" when it says nothing of the kind).

    `ran_program` says whether the error rose while another program was being started: only then is a bare name that was
    not found a missing program and not a missing file.
    """
    program = MISSING_PROGRAM.search(text) if ran_program else None
    if program:
        return f"needs the program {program[1]}"
    found = SURROUNDINGS.search(text)
    return f"needs what the sandbox does not have: {found[0]}" if found else ""
