"""Which installation a box belongs to, so that two on one machine never sweep each other's."""

import re
import secrets
from pathlib import Path

from orchestrator.sandbox.contract import SandboxError


def instance_of(data: Path) -> str:
    """The data folder's own id: 8 hex digits, made once. Survives moves of the folder."""
    path = data / "instance"
    try:
        data.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("x") as file:
                file.write(secrets.token_hex(4))
        except FileExistsError:
            pass
        instance = path.read_text().strip()
    except OSError as error:
        raise SandboxError(f"The data folder {data} cannot be used: {error}.") from None
    if not re.fullmatch(r"[0-9a-f]{8}", instance):
        raise SandboxError(f"{path} holds {instance[:40]!r}, expected 8 hex digits: remove the file.", retry=False)
    return instance
