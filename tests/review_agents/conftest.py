"""Scripts of findings call `python`, as a reader would in an environment that is on."""

import os
import sys
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def python_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian has no `python` of its own."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
