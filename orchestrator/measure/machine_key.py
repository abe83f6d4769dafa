"""The key of a series: two numbers are put on one line only if all of this was equal when they were taken."""

import hashlib
from collections.abc import Mapping

from orchestrator.measure.records import Surroundings


def machine_key(one: Surroundings) -> str:
    """Readable, and equal only where numbers are comparable. Dependencies are the repo's own, so no part of it."""
    parts = (
        one.machine,
        one.sandbox,
        one.image,
        one.python,
        one.cpu,
        one.kernel,
        one.microcode,
        one.runtime,
        f"cpus {one.pinned}" if one.pinned else "",
        f"benchmark {one.benchmark}" if one.benchmark else "",
    )
    return "/".join(part.replace("/", "|") for part in parts if part)


def digest(command: str, files: Mapping[str, str]) -> str:
    """Which version of a benchmark it is: its command and its files, each with git's id of its content."""
    found = hashlib.sha256(command.encode("utf-8", "surrogateescape"))
    for path in sorted(files):
        for part in (path, files[path]):
            encoded = part.encode("utf-8", "surrogateescape")
            found.update(len(encoded).to_bytes(8, "big") + encoded)
    return found.hexdigest()[:12]


def changed_dependencies(base: Mapping[str, str], head: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Name -> version at base and at head, of those that differ; empty text where one side has none."""
    return {
        name: (base.get(name, ""), head.get(name, ""))
        for name in sorted(base.keys() | head.keys())
        if base.get(name) != head.get(name)
    }
