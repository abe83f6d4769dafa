"""What is asked about real repos: the inputs are sound, and a clone stands as the review needs it."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.bench import slowdowns
from tests.support.boxes import git

KNOWN: list[dict[str, Any]] = tomllib.loads(slowdowns.KNOWN.read_text(encoding="utf-8"))["repo"]


@pytest.mark.parametrize("one", KNOWN, ids=lambda one: one["name"])
def test_a_program_runs_on_any_python_3_and_prints_one_figure_in_seconds(one: dict[str, Any]) -> None:
    compile(one["program"], one["name"], "exec")
    assert len(re.findall(r'print\("\w+: %\.9f s"', one["program"])) == 1
    assert all(re.fullmatch(r"[0-9a-f]{7,40}", one[end]) for end in ("good", "slow", "bad"))


def test_the_program_stands_on_top_of_the_last_commit_and_the_others_are_the_project_s_own(tmp_path: Path) -> None:
    mirror = tmp_path / "mirrors" / "some+tool"
    mirror.mkdir(parents=True)
    git(mirror, "init", "-q", "-b", "trunk")
    ids = []
    for subject in ("good", "slow", "bad", "later"):
        (mirror / "tool.py").write_text(f"# {subject}\n")
        git(mirror, "add", "tool.py")
        git(mirror, "commit", "-q", "-m", subject)
        ids.append(git(mirror, "rev-parse", "HEAD").strip())
    one = {"name": "some/tool", "good": ids[0][:8], "slow": ids[1][:8], "bad": ids[2][:8], "program": "\nprint(1)\n"}
    good, slow, bad = slowdowns.prepared(one, tmp_path / "mirrors", tmp_path / "tool")
    assert (good, slow) == (ids[0], ids[1])
    assert git(tmp_path / "tool", "rev-list", "--reverse", bad).split() == [*ids[:3], bad]
    assert git(tmp_path / "tool", "show", f"{bad}:{slowdowns.PROGRAM}") == "print(1)\n"
    assert "known" in tomllib.loads(git(tmp_path / "tool", "show", f"{bad}:.lamplighter.toml"))["benchmark"]
