"""`lamplighter measurements` over a filled database."""

import csv
import io
import json
from datetime import timedelta
from pathlib import Path

import pytest

from orchestrator.store.reviews import ReviewState
from orchestrator.store.session import open_sessions
from tests.factories import NOON, make_compared, make_measured, make_measurement, make_repo, make_review
from tests.orchestrator.cli.conftest import Command

NAME = "parse\x1b[31m"  # of a repo that would like to paint the terminal


@pytest.fixture
def filled(lamplighter: Command, tmp_path: Path) -> None:
    """Six nights with a step after the third, and a verdict in the last."""
    lamplighter("migrate")
    sessions = open_sessions(f"sqlite:///{tmp_path / 'data' / 'lamplighter.sqlite3'}")
    with sessions.begin() as db:
        repo = make_repo(db, name="tool")
        make_repo(db, name="empty")
        for day, value in enumerate([1.0, 1.01, 0.99, 1.3, 1.31, 1.29]):
            at = NOON + timedelta(days=day)
            review = make_review(db, repo, state=ReviewState.DONE, created_at=at, commit=f"{day}" * 40)
            make_measured(db, review, make_measurement(*[value] * 6, name=NAME))
        make_compared(db, review, NAME, 1.3)
        make_compared(db, review, "same", 1.0, same_code=True)
    sessions.close()


@pytest.mark.usefixtures("filled")
def test_people_read_verdicts_steps_and_the_latest_nights(lamplighter: Command) -> None:
    said = lamplighter("measurements", "tool")
    assert said.status == 0 and "\x1b" not in said.out
    text = " ".join(said.out.split())
    assert "parse\\x1b[31m slower +30 % (+27 % to +33 %) 100 ms 130 ms both blocks agree" in text
    assert "same no change, equal code" in text
    assert "after 2222222222, up to 3333333333" in text
    assert "parse\\x1b[31m 1.29 s 0 % 6" in text


@pytest.mark.usefixtures("filled")
def test_one_benchmark_is_shown_night_by_night(lamplighter: Command) -> None:
    lines = lamplighter("measurements", "tool", "--benchmark", NAME).out.splitlines()
    assert len(lines) == 7 and "3333333333" in lines[4] and "1.3 s" in lines[4]
    assert lamplighter("measurements", "tool", "--benchmark", "other").status == 2


@pytest.mark.usefixtures("filled")
def test_programs_get_json_and_spreadsheets_a_table(lamplighter: Command, tmp_path: Path) -> None:
    told = json.loads(lamplighter("measurements", "tool", "--format", "json").out)
    assert [one["name"] for one in told["benchmarks"]] == [NAME]
    rows = list(csv.DictReader(io.StringIO(lamplighter("measurements", "tool", "--format", "csv").out)))
    assert [row["commit"][0] for row in rows] == list("543210")
    file = tmp_path / "nights.csv"
    assert "Written to" in lamplighter("measurements", "tool", "--format", "csv", "--out", str(file)).err
    assert len(file.read_text().splitlines()) == 7
    nowhere = lamplighter("measurements", "tool", "--format", "csv", "--out", str(tmp_path / "no" / "such.csv"))
    assert nowhere.status == 3 and "cannot be written" in nowhere.err


@pytest.mark.usefixtures("filled")
def test_a_repo_without_numbers_says_so_and_an_unknown_one_is_wrong_use(lamplighter: Command) -> None:
    assert "No number yet" in lamplighter("measurements", "empty").err
    assert lamplighter("measurements", "nothing").status == 2
    assert lamplighter("measurements", "tool", "--out", "x").status == 2
    assert lamplighter("measurements", "tool", "--format", "csv", "--benchmark", "x").status == 2
