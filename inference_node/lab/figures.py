"""Recorded figures: a JSON file per question, written by the script that measured. Tables in docs come from these."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inference_node.train.provenance import commit, machine, versions

__all__ = ["commit", "machine", "record"]


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
