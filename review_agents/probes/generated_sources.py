"""Sources that a build misses because developers generate them first, and the one generator that is run for them.

A fresh clone of such a project does not build, which its developers know: that is no fault. Where the generator is
Cython the preparation does what they do; for the others it says what is missing.
"""

import re
import shlex
from collections.abc import Collection, Iterable

from review_agents.probes.manifest import Manifest, ReadText, valid_requirement
from review_agents.records import Record

MISSING = re.compile(r"fatal error: ([\w./+-]+\.(?:c|cc|cpp|cxx|h|hpp)): No such file")
GENERATED_FROM = (".pyx", ".pyx.in", ".y", ".l", ".in", ".proto", ".rl")
PLACES = re.compile(r"(?:requirements?[\w./-]*|[\w./-]*-requirements?)\.(?:txt|in)")
TOOLS = "/tmp/lamplighter-cython"


class Generated(Record):
    """A file that the compiler misses and the tracked file that it is made from."""

    missing: str  # as the compiler names it
    source: str  # tracked path

    @property
    def by_cython(self) -> bool:
        return self.source.endswith(".pyx") and not self.missing.endswith((".h", ".hpp"))


def generated(output: str, tracked: Collection[str]) -> Generated | None:
    """What the build misses that a tool makes from a file of the repo."""
    missing = MISSING.search(output)
    if missing is None:
        return None
    stem = missing[1].rpartition("/")[2].rpartition(".")[0]
    sources = sorted(path for path in tracked if path.rpartition("/")[2].partition(".")[0] == stem)
    source = next((path for path in sources if path.endswith(GENERATED_FROM)), "")
    return Generated(missing=missing[1], source=source) if source else None


def cython_command(found: Generated, tracked: Collection[str], requirement: str, pip: str, python: str) -> str:
    """Translate the missing one, and each .pyx beside it that can be: some are only included in others."""
    folder, ending = found.source.rpartition("/")[0], found.missing.rpartition(".")[2]
    others = [
        path
        for path in sorted(tracked)
        if path.endswith(".pyx") and path.rpartition("/")[0] == folder and f"{path[:-4]}.{ending}" not in tracked
    ]
    cython = f"PYTHONPATH={TOOLS} {python} -m cython -3{'' if ending == 'c' else ' --cplus'}"
    lines = [
        f"{python} {pip} install --target {TOOLS} {shlex.quote(requirement)} || exit 1",
        f"{cython} {shlex.quote(found.source)} || exit 1",
        *(f"{cython} {shlex.quote(path)} || true" for path in others if path != found.source),
    ]
    return "\n".join(lines)


def cython_wanted(files: Iterable[str], read: ReadText, manifests: Iterable[Manifest]) -> str:
    """The Cython that the repo asks for, in its build requirements or in a requirements file; else the newest."""
    said = [need for manifest in manifests for need in manifest.build_requires]
    for path in files:
        if PLACES.fullmatch(path):
            said += [line.split("#")[0].strip() for line in (read(path) or "").splitlines()]
    return next((need for need in said if re.match(r"cython\b", need, re.I) and valid_requirement(need)), "cython")
