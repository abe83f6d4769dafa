"""What this machine is, as far as numbers depend on it."""

import os
import platform
import re
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


def cpu_model(text: str | None = None) -> str:
    return field("model name", text) or platform.machine()


def microcode(text: str | None = None) -> str:
    return field("microcode", text)


def kernel() -> str:
    return os.uname().release


def field(name: str, text: str | None) -> str:
    """The first processor's; empty where the kernel does not tell (on many ARM machines)."""
    if text is None:
        try:
            text = CPU_INFO.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
    match = re.search(rf"^{re.escape(name)}\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else ""
