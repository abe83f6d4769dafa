"""A bench whose sandbox or browser is missing says so and records nothing."""

from pathlib import Path

import pytest

from tests.bench import __main__ as bench
from tests.bench import attacks, figures, injection, overhead, web_attacks


@pytest.fixture
def recorded(monkeypatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(figures, "FOLDER", tmp_path / "figures")
    return tmp_path / "figures"


def is_missing(*_: object, **__: object) -> None:
    pytest.skip("it is not installed")


@pytest.mark.parametrize(
    ("module", "what", "command"),
    [
        (attacks, "ground", ["attacks"]),
        (overhead, "own_seconds", ["overhead"]),
        (overhead, "docker_engine", ["overhead"]),
        (web_attacks, "chromium", ["web-attacks"]),
    ],
    ids=lambda value: getattr(value, "__name__", " ".join(value) if isinstance(value, list) else value),
)
def test_what_is_missing_is_named_and_nothing_recorded(module, what, command, recorded, monkeypatch, tmp_path) -> None:
    (tmp_path / "score.py").touch()
    for costly in {"docker_engine": [(overhead, "own_seconds")], "chromium": [(web_attacks, "markup")]}.get(what, []):
        monkeypatch.setattr(*costly, lambda *given, **named: {})
    monkeypatch.setattr(module, what, is_missing)
    where = ["--repos", str(tmp_path)] if command == ["overhead"] else []
    monkeypatch.setattr("sys.argv", ["bench", *command, *where])
    with pytest.raises(SystemExit, match=r"Nothing is recorded: .*it is not installed"):
        bench.main()
    assert not recorded.exists()


@pytest.mark.parametrize(
    ("suite", "not_tried"),
    [
        ("import pytest\n@pytest.mark.skip\ndef test_one(): pass\ndef test_two(): pass\n", "test_skipped.py::test_one"),
        ("import nothing_of_the_sort\n", "test_broken.py"),
    ],
    ids=["skipped", "broken"],
)
def test_attacks_on_agents_that_were_not_tried_are_not_counted_as_withstood(
    suite, not_tried, recorded, monkeypatch, tmp_path
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    file = tmp_path / not_tried.partition("::")[0]
    file.write_text(suite)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(injection, "SUITES", (file.name,))
    with pytest.raises(SystemExit, match=f"not tried were .*{not_tried}"):
        injection.run()
    assert not recorded.exists()
