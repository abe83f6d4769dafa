"""The host's Python interpreters, for sandboxes whose image is the host's own /usr.

An interpreter counts when it is a final release that can make virtual environments with pip (venv,
ensurepip, ssl) and run the step runner (ctypes). It may live outside /usr (pyenv, uv): then just
its prefix is bound, read-only, at its own path.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from orchestrator.sandbox.contract import NeedsMissing

ASK_TIMEOUT_S = 20
OLDEST = (3, 8)  # what the step runner needs

QUESTION = """
import ctypes, ensurepip, json, ssl, sys, venv
print(json.dumps({
    "version": sys.version.split()[0], "prefix": sys.base_prefix, "final": sys.version_info.releaselevel == "final",
    "flags": getattr(sys, "abiflags", ""),
}))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    path: Path  # the real program, links followed
    version: str  # full, for example 3.12.1
    prefix: Path

    @property
    def outside_usr(self) -> bool:
        return not self.prefix.is_relative_to("/usr")

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])


def choose(requires_python: str) -> Interpreter:
    """The newest that satisfies the specifier. Raises `NeedsMissing`."""
    try:
        wanted = SpecifierSet(requires_python)
    except InvalidSpecifier:
        raise NeedsMissing(
            f"needs a Python that satisfies {requires_python!r}, which is no version specifier"
        ) from None
    for interpreter in found():
        if interpreter.version in wanted:
            return interpreter
    there = ", ".join(interpreter.version for interpreter in found()) or "none"
    raise NeedsMissing(f"needs Python {requires_python}; this sandbox has {there}")


@cache
def found() -> tuple[Interpreter, ...]:
    """All usable ones, the newest first; of equal versions those in /usr first."""
    real = {path.resolve() for path in candidates()}
    usable = [answer for path in real if (answer := ask(path))]
    return tuple(sorted(usable, key=lambda one: (Version(one.version), not one.outside_usr), reverse=True))


def candidates() -> Iterator[Path]:
    name = re.compile(r"python3(\.\d+)?")
    home = Path.home()
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(":") if folder.startswith("/")]
    folders += [Path("/usr/bin"), Path("/usr/local/bin"), Path(getattr(sys, "_base_executable", sys.executable)).parent]
    for pattern in (".pyenv/versions/*/bin", ".local/share/uv/python/*/bin"):
        folders += home.glob(pattern)
    for folder in dict.fromkeys(folders):
        try:
            yield from (path for path in folder.iterdir() if name.fullmatch(path.name) and path.is_file())
        except OSError:
            continue


def ask(path: Path) -> Interpreter | None:
    """What the interpreter says about itself; None when it is a script, broken, too old or a pre-release."""
    try:
        with path.open("rb") as file:
            if file.read(4) != b"\x7fELF":
                return None
        said = subprocess.run(
            [path, "-I", "-c", QUESTION], capture_output=True, timeout=ASK_TIMEOUT_S, env={}, stdin=subprocess.DEVNULL
        )
        answer = json.loads(said.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    version = Version(answer["version"])
    prefix = Path(answer["prefix"])
    if not answer["final"] or "t" in answer["flags"] or version.release[:2] < OLDEST:
        return None
    if Path.home().is_relative_to(prefix) or not others_can_read(path):
        return None
    return Interpreter(path, answer["version"], prefix)


def others_can_read(path: Path) -> bool:
    """Whether a user without rights could run it, once the folders above it can be entered."""
    return path.stat().st_mode & 0o005 == 0o005
