"""Recorded figures: a JSON file per question, written by the script that measured. Tables in docs come from these."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "triton", "safetensors", "tokenizers")


def record(folder: Path, name: str, command: str, figures: Mapping[str, float], **more: Any) -> Path:
    """Write folder/name.json with date, commit, machine and versions. Returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    body = {
        "name": name,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "versions": {"python": platform.python_version(), **_versions()},
        "command": command,
        **more,
        "figures": dict(figures),
    }
    path.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
    return path


def commit() -> str:
    """The checkout's commit, marked when files differ from it; "unknown" outside a checkout."""
    here = Path(__file__).parent
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True)
    if head.returncode:
        return "unknown"
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--", "."], cwd=here.parent, capture_output=True, text=True
    )
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


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
