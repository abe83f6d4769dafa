"""A throw-away environment with z-lab's package `dflash` and the transformers it pins.

It shares torch and everything else with the environment that the tests run in, and has its own transformers in front.
Kept under the user's cache folder, made again when the pins here change.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

PINS = ("dflash==0.1.0", "transformers==5.15.0", "tokenizers==0.22.2", "huggingface-hub==1.27.0")


def oracle_python() -> Path:
    """The environment's interpreter; made on the first call, which needs a package index."""
    name = "-".join(pin.replace("==", "-") for pin in PINS) + f"-py{sys.version_info.major}{sys.version_info.minor}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "lamplighter-tests" / name
    python = folder / "bin" / "python"
    if (folder / "ready").is_file() and (folder / "ready").read_text() == sysconfig.get_path("purelib"):
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
    own = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", *PINS], check=True
    )
    Path(own, "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (folder / "ready").write_text(sysconfig.get_path("purelib"))
    return python
