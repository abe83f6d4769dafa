"""The bench of repos with a performance history: what it counts as named, and that it goes on where it was cut off."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench import figures, history
from tests.support.boxes import git

MAKE_REPOS = """
import subprocess, sys
for name in ("fast", "slow"):
    folder = f"{sys.argv[1]}/{name}"
    subprocess.run(["git", "init", "-q", "-b", "main", folder], check=True)
    for number in range(3):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", folder, *who, "commit", "-q", "--allow-empty", "-m", str(number)], check=True)
"""


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    folder = tmp_path / "bench"
    for name, truth in (("fast", {}), ("slow", {"history": {"bad_commit": "bad"}})):
        (folder / name).mkdir(parents=True)
        (folder / name / "truth.json").write_text(json.dumps(truth))
    (folder / "make_repos.py").write_text(MAKE_REPOS)
    return folder


def test_it_goes_on_where_it_was_cut_off_even_if_a_review_left_its_repo_on_another_commit(
    bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: list[tuple[str, int]] = []

    def reviewed(repo: Path, data: Path, tolerant: bool) -> dict[str, Any]:
        commits.append((repo.name, len(git(repo, "rev-list", "HEAD").split())))
        git(repo, "checkout", "-q", "-B", "main", "HEAD~2")
        if len(commits) == 2:
            raise KeyboardInterrupt
        return {"named": {"bad"} if repo.name == "slow" else set(), "slower": 1, "contaminated": 0, "summary": "told"}

    monkeypatch.setattr(history, "reviewed", reviewed)
    recorded: list[dict[str, float]] = []
    monkeypatch.setattr(figures, "record", lambda name, result: recorded.append(result))
    with pytest.raises(KeyboardInterrupt):
        history.run(bench, tmp_path / "kept")
    result = history.run(bench, tmp_path / "kept")
    assert commits == [("fast", 3), ("slow", 3), ("slow", 3)]
    assert recorded == [result]
    assert result == {"repos": 2, "slow_commits": 1, "named": 1, "named_wrongly": 0, "contaminated": 0}
    assert history.run(bench, tmp_path / "kept", only=("slow",))["named"] == 1 and len(commits) == 3
    assert sorted(one.name for one in (tmp_path / "kept").iterdir()) == ["commit", "fast.json", "repos", "slow.json"]


def test_answers_of_a_run_that_took_disturbed_sessions_are_not_taken_for_others(
    bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {"named": {"good"}, "slower": 1, "contaminated": 0, "summary": "told"}
    monkeypatch.setattr(history, "reviewed", lambda repo, data, tolerant: answer)
    assert history.run(bench, tmp_path / "kept", only=("slow",), tolerant=True)["named_wrongly"] == 1
    monkeypatch.setattr(history, "reviewed", lambda repo, data, tolerant: {**answer, "named": set()})
    assert history.run(bench, tmp_path / "kept", only=("slow",))["named_wrongly"] == 0
