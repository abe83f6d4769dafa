"""What is told of a review's checks: each reason once, and never "nothing found" where nothing was looked at."""

from pathlib import Path
from uuid import uuid4

import pytest

from orchestrator.services import checks, memos, repos, reviews
from orchestrator.services.exporting import export
from orchestrator.services.views import Checks, Evidence, ReviewState
from orchestrator.services.workshop import Workshop
from orchestrator.store.repos import Repo
from orchestrator.store.reviews import Review
from orchestrator.store.session import Sessions
from review_agents.probes.prepare import unprepared
from review_agents.records import ProbeState
from tests.factories import make_probe_result, make_repo, make_review, make_shop, make_step

PASSED, FAILED, UNABLE, IDLE = ProbeState.PASSED, ProbeState.FAILED, ProbeState.COULD_NOT_RUN, ProbeState.NOT_APPLICABLE
NO_PYTHON = "needs Python 3.99"
BARRED = (
    ("install", UNABLE, NO_PYTHON),
    ("wheel", UNABLE, f"the package could not be installed: {NO_PYTHON}"),
    ("examples", UNABLE, f"the package could not be installed: {NO_PYTHON}"),
    ("reviewer_text", PASSED, ""),
)
PARTLY = (
    ("install", PASSED, ""),
    ("options", UNABLE, "no command of the package prints a help"),
    ("tests", FAILED, ""),
    ("profile", UNABLE, "the tests could not be installed"),
    ("benchmarks", UNABLE, "the tests could not be installed"),
    ("other_languages", IDLE, ""),
)


def told(*looked: tuple[str, ProbeState, str]) -> Checks:
    return checks.checks_of([Evidence(probe, state, reason, 1.0, "", {}, uuid4()) for probe, state, reason in looked])


@pytest.fixture
def shop(each_sessions: Sessions, tmp_path: Path) -> Workshop:
    return make_shop(each_sessions, tmp_path)


def kept(shop: Workshop, *looked: tuple[str, ProbeState, str]) -> Review:
    with shop.sessions.begin() as db:
        repo: Repo = make_repo(db)
        review = make_review(db, repo, state=ReviewState.DONE)
        for probe, state, reason in looked:
            result = make_probe_result(probe, state=state, reason=reason, summary="", facts={}).model_dump(mode="json")
            make_step(db, review, f"probe:{probe}", result=result)
        return review


def test_where_the_package_could_not_be_installed_for_a_reason_outside_nothing_was_checked() -> None:
    found = told(*BARRED)
    assert found.barred == NO_PYTHON
    assert found.nothing_found == f"Nothing could be checked: {NO_PYTHON}"
    assert [(one.reason, one.probes) for one in found.unable] == [(NO_PYTHON, ("install", "wheel", "examples"))]


def test_the_reason_of_the_installation_is_told_apart_as_probes_write_it() -> None:
    lacking = unprepared(["setup.py"], lambda path: "", NO_PYTHON)
    assert lacking.not_installed == checks.NOT_INSTALLED + NO_PYTHON


def test_checks_that_could_not_run_by_themselves_are_counted_and_named_by_reason() -> None:
    found = told(*PARTLY)
    assert (found.barred, found.ran, found.idle) == ("", ("install", "tests"), ("other_languages",))
    assert found.nothing_found == "Nothing found by the 2 checks that ran; 3 could not run"
    assert [one.probes for one in found.unable] == [("options",), ("profile", "benchmarks")]


def test_a_night_in_which_all_ran_says_how_many() -> None:
    assert (
        told(("install", PASSED, ""), ("wheel", PASSED, "")).nothing_found == "Nothing found by the 2 checks that ran"
    )
    assert told(("install", PASSED, "")).nothing_found == "Nothing found by the 1 check that ran"
    assert told().nothing_found == "Nothing found by the 0 checks that ran"


def test_an_installation_that_the_repo_itself_breaks_is_a_finding_and_bars_nothing() -> None:
    broken = told(("install", FAILED, "build wheel: no setup"), ("wheel", UNABLE, "no package"), ("tests", PASSED, ""))
    assert broken.barred == ""


def test_a_download_that_failed_bars_nothing_where_the_build_passed_nevertheless() -> None:
    assert told(("install", UNABLE, "install node: no network"), ("other_languages", PASSED, "")).barred == ""


@pytest.mark.parametrize("install", [PASSED, IDLE])
def test_where_not_one_check_but_the_installation_ran_nothing_was_checked(install: ProbeState) -> None:
    found = told(("install", install, ""), ("wheel", UNABLE, "the sandbox failed"), ("tests", UNABLE, "no time"))
    assert found.barred == "the sandbox failed; no time"


@pytest.mark.parametrize(
    ("looked", "said"),
    [(BARRED, "nothing could be checked"), (PARTLY, "3 checks could not run"), (PARTLY[:1], "")],
    ids=["barred", "partly", "all"],
)
def test_lists_say_in_short_what_the_page_says(
    shop: Workshop, looked: tuple[tuple[str, ProbeState, str], ...], said: str
) -> None:
    review = kept(shop, *looked)
    assert reviews.get(shop, review.id).row.unchecked == said
    assert [one.unchecked for one in reviews.listed(shop).items] == [said]
    (repo,) = repos.listed(shop)
    assert repo.last is not None and repo.last.unchecked == said


def test_exports_and_memo_say_it_too(shop: Workshop) -> None:
    review = kept(shop, *BARRED)
    page = export(shop, review.id, "markdown")
    assert "None confirmed" not in page and "Nothing could be checked" in page
    assert page.count("- install, wheel, examples") == 1
    memo = memos.get(shop, review.id).memo
    assert memo.verdict == f"Nothing could be checked: {NO_PYTHON}; no model took part."
    assert [one for one in memo.not_looked_at if NO_PYTHON in one] == [f"install, wheel, examples: {NO_PYTHON}"]
    assert memos.names(("install", "wheel", "tests", "options", "misuse")) == "install, wheel, tests and 2 more"
    assert '"executionSuccessful": false' in export(shop, review.id, "sarif")


def test_exports_and_memo_count_what_could_not_run(shop: Workshop) -> None:
    review = kept(shop, *PARTLY)
    page = export(shop, review.id, "markdown")
    assert "None confirmed by the 2 checks that ran; 3 could not run." in page
    assert memos.get(shop, review.id).memo.verdict.startswith("Nothing was proved wrong by the 2 checks that ran; 3")
    sarif = export(shop, review.id, "sarif")
    assert '"executionSuccessful": true' in sarif
    assert sarif.count("Probes profile, benchmarks could not run: the tests could not be installed") == 1
