"""Recorded figures: a JSON file per question, written by the script that measured. Tables in docs come from these."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inference_node.train.provenance import commit, machine, versions

__all__ = ["command", "commit", "machine", "record"]

WHERE = ("out", "name", "commit")
"""Options that say where figures go and what they are called, not what is measured."""


def command(module: str, parser: argparse.ArgumentParser, options: argparse.Namespace) -> str:
    """What was called, with every option that is not at its default; of a path the last part."""
    words = ["python", "-m", f"inference_node.lab.{module}"]
    for name, value in vars(options).items():
        if name in WHERE or value == parser.get_default(name):
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(value.name if isinstance(value, Path) else str(value))
    return shlex.join(words)


def record(folder: Path, name: str, command: str, figures: Mapping[str, float], **more: Any) -> Path:
    """Write folder/name.json with date, commit, machine and versions. Returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    body = {
        "name": name,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "command": command,
        **more,
        "figures": dict(figures),
    }
    path.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
    return path
