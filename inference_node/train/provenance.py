"""Where a result comes from: the commit, the machine, the versions, the command. It stands in everything written."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "triton", "safetensors", "tokenizers")


def provenance(**more: Any) -> dict[str, Any]:
    """Of what is being written now."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        **more,
    }


def commit() -> str:
    """SOURCE_COMMIT, which whoever copies a checkout elsewhere names; else the checkout's commit, marked when files
    differ from it; else "unknown"."""
    return os.environ.get("SOURCE_COMMIT") or _of_checkout() or "unknown"


def _of_checkout() -> str:
    here = Path(__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True)
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--", "."], cwd=here.parent, capture_output=True, text=True
        )
    except OSError:  # no git on this machine
        return ""
    if head.returncode:
        return ""
    return head.stdout.strip() + ("+changes" if changed.stdout.strip() else "")


def machine() -> str:
    """What computes here, in words."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = f"{names[0]}, {len(names)} CPUs" if names else cpu
    import torch

    return f"{torch.cuda.get_device_name()} beside {cpu}" if torch.cuda.is_available() else cpu


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
