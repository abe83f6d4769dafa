"""Tests do not depend on who runs them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.docker_engine import unmount_below

ROOT = Path(__file__).parents[1]


def test_what_somebody_adopted_on_this_machine_is_not_what_tests_install_with(tmp_path: Path) -> None:
    """After `lamplighter doctor --adopt` nothing is left to advise, and seventy tests went without a package index."""
    folder = tmp_path / "adopted" / ".local" / "share" / "lamplighter"
    folder.mkdir(parents=True)
    adopted = {"sandbox_env": ["ADOPTED=1"], "egress_allow_ranges": ["0.0.0.0/0", "::/0"]}
    (folder / "config.toml").write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in adopted.items()))
    assert own_settings_at(tmp_path / "adopted") == own_settings_at(tmp_path / "new")


def own_settings_at(home: Path) -> str:
    """In a process of its own, because they are asked for once in each."""
    ask = "from tests.support.boxes import own_settings; print(own_settings())"
    environment = {**os.environ, "HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-c", ask], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_a_folder_that_a_killed_engine_left_mounted_on_itself_can_be_removed(tmp_path: Path) -> None:
    """A test run ended with `Device or resource busy` where an engine was killed while its data root was one."""
    root = tmp_path / "engine"
    (root / "netns").mkdir(parents=True)
    for place in (root, root / "netns"):
        made = subprocess.run(["mount", "--bind", place, place], capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"nothing can be mounted here: {made.stderr.strip()}")
    unmount_below(root)
    shutil.rmtree(root)
    assert not root.exists()
