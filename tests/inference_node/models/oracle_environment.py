"""Throw-away environments: z-lab's package `dflash` with the transformers it pins, and Speculators.

They share torch and everything else with the environment that the tests run in, and have their own packages in front.
Kept under the user's cache folder, made again when the pins here change.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

PINS = ("dflash==0.1.0", "transformers==5.15.0", "tokenizers==0.22.2", "huggingface-hub==1.27.0")
SPECULATORS = (
    "speculators==0.9.0", "aiohappyeyeballs==2.7.1", "aiohttp==3.14.5", "aiosignal==1.4.0", "attrs==26.1.0",
    "datasets==5.1.0", "dill==0.4.1", "distro==1.9.0", "frozenlist==1.8.0", "hs-connectors==0.9.0",
    "jiter==0.19.0", "loguru==0.7.3", "multidict==7.2.1", "multiprocess==0.70.19", "openai==3.57.0",
    "pandas==3.1.1", "propcache==0.5.4", "pyarrow==26.0.1", "python-dateutil==4.0.0", "pytz==2026.6",
    "six==1.17.0", "sniffio==1.3.1", "xxhash==4.1.0", "yarl==1.25.1",
)  # fmt: skip
"""With what it imports when its drafters are imported."""


def oracle_python(pins: Sequence[str] = PINS) -> Path:
    """The environment's interpreter; made on the first call, which needs a package index."""
    held = hashlib.sha256(" ".join(pins).encode()).hexdigest()[:8]
    name = f"{pins[0].replace('==', '-')}-{held}-py{sys.version_info.major}{sys.version_info.minor}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "lamplighter-tests" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{name}.lock").open("w") as lock:  # another process of the tests may want it too
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _made(folder, pins)


def _made(folder: Path, pins: Sequence[str]) -> Path:
    python = folder / "bin" / "python"
    if (folder / "ready").is_file() and (folder / "ready").read_text() == sysconfig.get_path("purelib"):
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
    own = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", *pins], check=True
    )
    Path(own, "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (folder / "ready").write_text(sysconfig.get_path("purelib"))
    return python
