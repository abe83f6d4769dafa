"""Recorded figures: what was measured, by which command, on which commit and machine (design.md)."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "docs" / "figures"


def record(name: str, figures: Mapping[str, float], *, libraries: tuple[str, ...] = (), **beside: Any) -> Path:
    """Write docs/figures/NAME.json. `beside` is what is no number: a model's name, a table."""
    content = {
        "name": name,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
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
    """The measured commit; "+changes" when tracked files differ from it, docs/figures aside."""
    short = git("rev-parse", "--short=12", "HEAD")
    dirty = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
    return short + ("+changes" if dirty else "")


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
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = f"python -m {spec.name.removesuffix('.__main__')}" if spec else f"python {Path(sys.argv[0]).name}"
    return " ".join([program, *sys.argv[1:]])
