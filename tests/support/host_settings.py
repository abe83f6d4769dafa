"""The settings with which installs work on this machine, as the environment of a process of ours.

A machine behind a mirror needs them (package index, CA file, private ranges); they are derived, never written down.
"""

from pathlib import Path

from tests.support.boxes import own_settings


def sandbox_environment() -> dict[str, str]:
    """LAMPLIGHTER_ variables for a child process; empty where the defaults do."""
    return {f"LAMPLIGHTER_{name.upper()}": written(value) for name, value in own_settings().items()}


def isolated(folder: Path) -> dict[str, str]:
    """As above, with a data folder, host lock and machine of its own: such processes disturb nobody's."""
    return {
        **sandbox_environment(),
        "LAMPLIGHTER_DATA": str(folder / "data"),
        "LAMPLIGHTER_HOST_LOCK": str(folder / "host.lock"),
        "LAMPLIGHTER_MACHINE": f"test-{abs(hash(str(folder))) % 10**8}",
        "LAMPLIGHTER_MEASURE_PATIENCE_S": "0",
        "LAMPLIGHTER_COMPARE_WITH": "none",
    }


def written(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)
