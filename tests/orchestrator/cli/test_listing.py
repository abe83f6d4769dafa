"""Lists and changes on the command line, over a filled database."""

import json
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from orchestrator.services.views import ReviewState, StepState
from orchestrator.store.reviews import Review
from orchestrator.store.session import open_sessions
from review_agents.records import Lifecycle, ProbeState
from tests.factories import (
    NOON,
    make_finding,
    make_measured,
    make_probe_result,
    make_repo,
    make_review,
    make_sighting,
    make_step,
)
from tests.orchestrator.cli.conftest import Command


@pytest.fixture
def filled(lamplighter: Command, tmp_path: Path) -> dict[str, UUID]:
    """A repo with two finished reviews and a waiting one; its names are hostile."""
    lamplighter("migrate")
    sessions = open_sessions(f"sqlite:///{tmp_path / 'data' / 'lamplighter.sqlite3'}")
    with sessions.begin() as db:
        repo = make_repo(db, name="lib\x1b[31m")
        first = make_review(db, repo, state=ReviewState.DONE)
        second = make_review(db, repo, state=ReviewState.DONE, commit="f" * 40, created_at=NOON + timedelta(days=1))
        make_step(db, second, "probe:readme")
        lacking = make_probe_result("options", state=ProbeState.COULD_NOT_RUN, reason="no command prints a help")
        make_step(db, second, "probe:options", result=lacking.model_dump(mode="json"))
        make_measured(db, second)
        finding = make_finding(db, first)
        make_sighting(db, first, finding, lifecycle=Lifecycle.NEW)
        make_sighting(db, second, finding)
        make_sighting(db, second)
        waiting = make_review(db, repo)
        ids = {"repo": repo.id, "first": first.id, "second": second.id, "waiting": waiting.id}
    sessions.close()
    return ids


def test_an_empty_database_is_said_on_stderr_and_is_valid_json(lamplighter: Command) -> None:
    assert "No repos yet" in lamplighter("repos").err
    assert lamplighter("repos", "--format", "json").out.strip() == "[]"
    assert lamplighter("reviews", "list", "--format", "json").out.strip() == "[]"
    assert lamplighter("schedules", "list", "--format", "json").out.strip() == "[]"


def test_nothing_that_a_terminal_would_obey_is_printed(lamplighter: Command, filled: dict[str, UUID]) -> None:
    for command in (("repos",), ("reviews", "list"), ("reviews", "show", str(filled["second"]))):
        said = lamplighter(*command)
        assert said.status == 0 and "lib\\x1b[31m" in said.out and "\x1b" not in said.out


def test_repos_and_reviews_are_listed_for_people_and_programs(lamplighter: Command, filled: dict[str, UUID]) -> None:
    assert str(filled["second"])[:8] in lamplighter("reviews", "list").out
    listed = json.loads(lamplighter("reviews", "list", "--state", "done", "--format", "json").out)
    assert {one["id"] for one in listed} == {str(filled["first"]), str(filled["second"])}
    (repo,) = json.loads(lamplighter("repos", "--format", "json").out)
    assert repo["id"] == str(filled["repo"])
    by_repo = lamplighter("reviews", "list", "--repo", str(filled["repo"]), "--format", "json")
    assert len(json.loads(by_repo.out)) == 3


def test_lists_and_the_page_count_the_checks_that_could_not_run(lamplighter: Command, filled: dict[str, UUID]) -> None:
    assert lamplighter("reviews", "list").out.count("; 1 check could not run") == 1
    page = lamplighter("reviews", "show", str(filled["second"])).out
    assert "not checked: options: no command prints a help\n" in page
    assert page.endswith("2 findings; 1 check ran, 1 could not run.\n")


def test_a_review_is_shown_by_the_beginning_of_its_id(lamplighter: Command, filled: dict[str, UUID]) -> None:
    said = lamplighter("reviews", "show", str(filled["second"])[:10])
    assert said.status == 0 and "The first example of README prints 3, not 4" in said.out
    assert "python -c 'print(1 + 2)'" in said.out
    page = json.loads(lamplighter("reviews", "show", str(filled["second"]), "--format", "json").out)
    assert len(page["findings"]) == 2
    assert lamplighter("reviews", "show", str(filled["waiting"])).out.startswith("queued")


def test_two_reviews_are_compared(lamplighter: Command, filled: dict[str, UUID]) -> None:
    said = lamplighter("reviews", "compare", str(filled["first"]), str(filled["second"]))
    assert said.status == 0 and "new: medium" in said.out and "persisting: medium" in said.out
    assert json.loads(
        lamplighter("reviews", "compare", str(filled["first"]), str(filled["second"]), "--format", "json").out
    )


@pytest.mark.parametrize("format", ["json", "markdown", "sarif"])
def test_a_review_is_exported_to_stdout_or_a_file(
    lamplighter: Command, filled: dict[str, UUID], tmp_path: Path, format: str
) -> None:
    said = lamplighter("reviews", "export", str(filled["second"]), "--format", format)
    assert said.status == 0 and said.err == ""
    if format != "markdown":
        assert json.loads(said.out)
    out = tmp_path / "out"
    assert lamplighter("reviews", "export", str(filled["second"]), "--format", format, "--out", str(out)).out == ""
    assert out.read_text().strip() == said.out.strip()
    assert lamplighter("reviews", "export", str(filled["second"]), "--out", "/no/such/folder/x").status == 3


def test_a_review_that_waits_for_its_node_says_so(
    lamplighter: Command, filled: dict[str, UUID], tmp_path: Path
) -> None:
    sessions = open_sessions(f"sqlite:///{tmp_path / 'data' / 'lamplighter.sqlite3'}")
    with sessions.begin() as db:
        review = db.get_one(Review, filled["waiting"])
        review.state, review.outcome_note = ReviewState.WAITING_FOR_NODE, "waits for the node: no route"
        make_step(db, review, "focus:taste", state=StepState.WAITING_FOR_NODE, reason="no route", summary="")
    sessions.close()
    assert "waiting for node" in lamplighter("reviews", "list").out
    assert "waiting for node" in lamplighter("schedules", "tonight").out
    said = lamplighter("reviews", "show", str(filled["waiting"])).out
    assert said.startswith("waiting for node waits for the node: no route")
    assert "~ focus:taste" in said and "waiting for node: no route" in said


def test_a_waiting_review_is_cancelled_once(lamplighter: Command, filled: dict[str, UUID]) -> None:
    assert lamplighter("reviews", "cancel", str(filled["waiting"])).status == 0
    assert lamplighter("reviews", "show", str(filled["waiting"])).out.startswith("cancelled")
    said = lamplighter("reviews", "cancel", str(filled["waiting"]))
    assert said.status == 2 and "ended already" in said.err


def test_schedules_are_made_listed_and_removed(lamplighter: Command, filled: dict[str, UUID]) -> None:
    repo = str(filled["repo"])
    assert "next at" in lamplighter("schedules", "add", repo, "--at", "02:30", "--zone", "Europe/Vienna").err
    assert lamplighter("schedules", "add", repo, "--loop", "90", "--always").status == 0
    assert lamplighter("schedules", "add", repo, "--at", "02:30", "--zone", "Mars/Olympus").status == 2
    said = lamplighter("schedules", "list")
    assert "nightly at 02:30 Europe/Vienna" in said.out and "90 min after the last" in said.out
    assert "comes" in lamplighter("schedules", "tonight").out
    found = json.loads(lamplighter("schedules", "list", "--format", "json").out)
    for one in found:
        assert lamplighter("schedules", "remove", one["id"]).status == 0
    assert "No schedules" in lamplighter("schedules", "list").err
