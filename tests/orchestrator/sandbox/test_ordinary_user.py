"""The conformance suite once more for bubblewrap, as an ordinary user: when run as root, in a process of that user."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from orchestrator.sandbox import interpreters
from tests.orchestrator.sandbox.conftest import is_root

pytestmark = pytest.mark.slow

USER = 64321  # nobody's number; the user needs no entry in passwd
HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@pytest.mark.timeout(900)
def test_everything_holds_for_an_ordinary_user_too(tmp_path_factory: pytest.TempPathFactory):
    if not is_root():
        pytest.skip("these tests run as an ordinary user already")
    # Not below pytest's own folder, which only root may enter.
    home = Path("/tmp") / f"lamplighter-user-{os.getpid()}"
    home.mkdir()
    os.chown(home, USER, USER)
    try:
        pytest_alone = ["-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
        suite = [str(HERE / "test_conformance.py"), "-k", "bubblewrap", "--basetemp", str(home / "pytest")]
        done = as_user(home, [*pytest_alone, *suite])
    finally:
        shutil.rmtree(home, ignore_errors=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) > 100, done.stdout[-2000:]


def as_user(home: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run Python with our packages as the user, by an interpreter that the user can reach."""
    environment = {
        "HOME": str(home),
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "PYTHONPATH": f"{sysconfig.get_path('purelib')}:{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }
    identity: dict[str, Any] = {"user": USER, "group": USER, "extra_groups": [], "env": environment}
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    same = [str(found.path) for found in interpreters.found() if found.minor == minor]
    for python in (sys.executable, *same):
        trial = [python, "-c", "import pydantic, pytest, docker, orchestrator.settings"]
        try:
            if subprocess.run(trial, capture_output=True, cwd="/", **identity).returncode == 0:
                return subprocess.run([python, *arguments], capture_output=True, text=True, cwd=ROOT, **identity)
        except PermissionError:
            continue
    pytest.skip("an ordinary user can reach no interpreter that runs this checkout (it lies below a closed folder)")
