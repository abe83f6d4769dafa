"""Recorded figures: what was measured, by which command, on which commit and machine (design.md)."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "docs" / "figures"


def record(
    name: str, figures: Mapping[str, float], *, libraries: tuple[str, ...] = (), measured_at: str = "", **beside: Any
) -> Path:
    """Write docs/figures/NAME.json. `beside` is what is no number: a model's name, a table, a note.

    measured_at     the commit, where what is there now only counts what an earlier one did
    """
    content = {
        "name": name,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": measured_at or commit(),
        "machine": machine(),
        "versions": {"python": platform.python_version(), **{lib: metadata.version(lib) for lib in libraries}},
        "command": command(),
        "figures": dict(figures),
        **beside,
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def commit() -> str:
    """The last one that changed more than docs; "+changes" when tracked files differ from it, docs aside."""
    short = git("log", "-1", "--format=%h", "--abbrev=12", "--", ".", ":!docs")
    dirty = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
    return short + ("+changes" if dirty else "")


def same_commit(folder: Path) -> None:
    """Stamp a folder of kept results with the commit. What another commit left there is not gone on with.

    Called again before anything is recorded: what was measured must be what is there still.
    """
    stamp, now = folder / "commit", commit()
    folder.mkdir(parents=True, exist_ok=True)
    if not stamp.exists():
        if any(folder.iterdir()):
            raise SystemExit(f"{folder} does not say at which commit its results were measured. Keep them elsewhere.")
        stamp.write_text(now, encoding="utf-8")
    if (measured := stamp.read_text(encoding="utf-8")) != now:
        raise SystemExit(
            f"The results in {folder} were measured at {measured}, and this is {now}. Keep them elsewhere."
        )


def of_this_commit(kept: Collection[dict[str, Any]]) -> list[dict[str, Any]]:
    """The kept results that were measured at the commit that is there now; the others are to be measured again."""
    now = commit()
    same = [one for one in kept if one.get("commit") == now]
    if len(same) < len(kept):
        print(f"{len(kept) - len(same)} results of another commit do not count.", flush=True)
    return same


def git(*args: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, check=True).stdout.strip()


def machine() -> str:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{cpu_model()}, {os.cpu_count()} CPUs, {memory_gib:.0f} GiB, Linux {platform.release()}"


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def command() -> str:
    """As it was typed, but for where results are kept, which is a matter of that machine."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = f"python -m {spec.name.removesuffix('.__main__')}" if spec else f"python {Path(sys.argv[0]).name}"
    words = sys.argv[1:]
    while "--keep" in words:
        at = words.index("--keep")
        words = words[:at] + words[at + 2 :]
    return " ".join([program, *words])
