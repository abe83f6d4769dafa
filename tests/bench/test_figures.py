"""What is kept of a run that was interrupted is gone on with at the same commit, and at no other."""

from pathlib import Path

import pytest

from tests.bench import figures, reviewing
from tests.support.boxes import git


@pytest.fixture
def at(monkeypatch):
    """Say which commit is there."""

    def there(commit: str) -> None:
        monkeypatch.setattr(figures, "commit", lambda: commit)

    there("a")
    return there


def test_a_folder_of_results_belongs_to_the_commit_that_began_it(at, tmp_path: Path) -> None:
    figures.same_commit(tmp_path / "kept")
    figures.same_commit(tmp_path / "kept")
    for other in ("b", "a+changes"):
        at(other)
        with pytest.raises(SystemExit, match=r"were measured at a, and this is"):
            figures.same_commit(tmp_path / "kept")


def test_a_folder_of_results_that_names_no_commit_is_not_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "exports.json").write_text("{}")
    with pytest.raises(SystemExit, match="does not say at which commit"):
        figures.same_commit(tmp_path)


def test_nothing_is_counted_when_the_commit_changed_on_the_way(at, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="this is b"), reviewing.folder(tmp_path / "kept"):
        at("b")


def test_results_of_another_commit_or_of_none_do_not_count(at) -> None:
    kept = [{"case": 1, "commit": "a"}, {"case": 2, "commit": "b"}, {"case": 3}]
    assert figures.of_this_commit(kept) == [kept[0]]


def test_a_change_of_docs_alone_is_no_other_commit(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    git(tmp_path, "init", "-q")
    found = []
    for name in ("code.py", "docs/figures.json", "code.py"):
        (tmp_path / name).write_text(f"{len(found)}\n")
        found.append(figures.commit() if found else "")
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-q", "-m", name)
        found.append(figures.commit())
    _, first, first_with_docs, after_docs, changed, second = found
    assert first == first_with_docs == after_docs != second
    assert changed == f"{first}+changes"


def test_a_figures_command_does_not_say_where_results_were_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "replay", "--keep", "/somewhere/else", "--only", "rowdelta"])
    assert figures.command().endswith(" replay --only rowdelta")
