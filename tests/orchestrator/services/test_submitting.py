import threading
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, select

from orchestrator.services.errors import BadInput, BadTarget, OutsideError
from orchestrator.services.submitting import Submission, submit
from orchestrator.services.workshop import Workshop
from orchestrator.store.repos import Repo, RepoKind
from orchestrator.store.reviews import PRIORITY_ASKED, PRIORITY_SCHEDULED, Review, ReviewState
from orchestrator.store.session import Sessions
from review_agents.ports import EmptyRepo, UnreachableRepo
from tests.factories import COMMIT, KnownRemotes, make_repo, make_review, make_shop

URL = "https://git.example/team/tool"


@pytest.fixture
def shop(sessions: Sessions, tmp_path: Path) -> Workshop:
    return make_shop(sessions, tmp_path)


def rows(shop: Workshop, table: type) -> int:
    with shop.sessions.reading() as db:
        return db.scalar(select(func.count()).select_from(table)) or 0


def review(shop: Workshop, review_id: UUID) -> Review:
    with shop.sessions.reading() as db:
        return db.get_one(Review, review_id)


def test_a_submission_queues_a_review_of_what_the_ref_names_now_and_wakes_a_worker(shop: Workshop) -> None:
    review_id = submit(shop, Submission(URL, focuses=("docs", "docs"), budget_minutes=10, budget_tokens=1000))
    row = review(shop, review_id)
    assert (row.state, row.ref, row.commit) == (ReviewState.QUEUED, "main", COMMIT)
    assert (row.focuses, row.budget_minutes, row.budget_tokens) == (["docs"], 10, 1000)
    assert (row.requested_by, row.priority, row.agents, row.force) == ("web", PRIORITY_ASKED, True, False)
    assert shop.nudge.woken == [review_id]
    with shop.sessions.reading() as db:
        repo = db.get_one(Repo, row.repo_id)
    assert (repo.url, repo.kind, repo.name, repo.default_ref) == (URL, RepoKind.GIT, "tool", "main")


def test_no_more_are_taken_while_too_many_wait_and_one_that_waits_is_still_found(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.store.reviews.MOST_WAITING", 2)
    first = submit(shop, Submission(URL))
    submit(shop, Submission(f"{URL}2"))
    with pytest.raises(OutsideError, match="2 reviews wait already") as caught:
        submit(shop, Submission(f"{URL}3"))
    assert caught.value.retry and rows(shop, Review) == 2 and rows(shop, Repo) == 2
    assert submit(shop, Submission(URL)) == first
    with shop.sessions.begin() as db:
        db.get_one(Review, first).state = ReviewState.DONE
    assert submit(shop, Submission(f"{URL}3"))


def test_budgets_are_the_operators_unless_given(sessions: Sessions, tmp_path: Path) -> None:
    shop = make_shop(sessions, tmp_path, settings={"budget_minutes": 7, "max_attempts": 2})
    row = review(shop, submit(shop, Submission(URL)))
    assert (row.budget_minutes, row.budget_tokens, row.max_attempts) == (7, None, 2)


def test_asking_again_while_one_waits_leads_to_the_same_review_with_the_newer_wishes(shop: Workshop) -> None:
    first = submit(shop, Submission(URL, focuses=("docs",), budget_minutes=10))
    again = submit(shop, Submission(URL + ".git/", ref="main", budget_minutes=20, agents=False, force=True))
    assert again == first
    row = review(shop, first)
    assert (row.focuses, row.budget_minutes, row.agents, row.force) == (["docs"], 20, False, True)
    assert (rows(shop, Review), rows(shop, Repo)) == (1, 1)


def test_another_ref_or_one_that_was_started_is_another_review(sessions: Sessions, tmp_path: Path) -> None:
    shop = make_shop(sessions, tmp_path, git=KnownRemotes({URL: {"main": COMMIT, "v1": "f" * 40}}))
    first = submit(shop, Submission(URL))
    assert submit(shop, Submission(URL, ref="v1")) != first
    with shop.sessions.begin() as db:
        started = db.get_one(Review, first)
        started.state, started.started_at = ReviewState.RUNNING, shop.clock()
    assert submit(shop, Submission(URL)) != first


def test_somebody_who_asks_moves_the_waiting_nightly_review_forward(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        repo = make_repo(db, url=URL)
        nightly = make_review(db, repo, priority=PRIORITY_SCHEDULED, requested_by="schedule").id
    assert submit(shop, Submission(URL)) == nightly
    assert review(shop, nightly).priority == PRIORITY_ASKED


def test_a_local_folder_is_reviewed_when_the_command_line_asks(shop: Workshop, tmp_path: Path) -> None:
    folder = tmp_path / "tool"
    folder.mkdir()
    row = review(shop, submit(shop, Submission(str(folder), from_cli=True)))
    assert row.requested_by == "cli"
    with shop.sessions.reading() as db:
        assert db.get_one(Repo, row.repo_id).kind is RepoKind.PATH
    with pytest.raises(BadTarget, match="not below"):
        submit(shop, Submission(str(folder)))


# Refused: with the field's name, at once, and without a trace --------------------------------


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("target", {"target": ""}),
        ("target", {"target": "file:///etc"}),
        ("target", {"target": "ext::sh"}),
        ("target", {"target": "https://10.0.0.1/x"}),
        ("ref", {"ref": "--upload-pack=x"}),
        ("ref", {"ref": "no-such-branch"}),
        ("focuses", {"focuses": ("Not A Focus",)}),
        ("focuses", {"focuses": ("docs\n",)}),
        ("focuses", {"focuses": tuple(f"f{n}" for n in range(21))}),
        ("budget_minutes", {"budget_minutes": 0}),
        ("budget_minutes", {"budget_minutes": 7 * 24 * 60 + 1}),
        ("budget_tokens", {"budget_tokens": -1}),
        ("budget_tokens", {"budget_tokens": 2**31}),
    ],
)
def test_bad_input_names_its_field_and_leaves_no_rows(shop: Workshop, field: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as refused:
        submit(shop, Submission(**{"target": URL, **wrong}))
    assert refused.value.field == field
    assert (rows(shop, Repo), rows(shop, Review), shop.nudge.woken) == (0, 0, [])


@pytest.mark.parametrize("problem", [UnreachableRepo("no answer", retry=True), EmptyRepo("no commit")])
def test_a_repo_that_cannot_be_read_is_refused_in_the_words_of_the_look_at_it(
    sessions: Sessions, tmp_path: Path, problem: Any
) -> None:
    shop = make_shop(sessions, tmp_path, git=KnownRemotes(problem=problem))
    with pytest.raises(BadTarget, match=str(problem)) as refused:
        submit(shop, Submission(URL))
    assert refused.value.field == "target"
    assert (rows(shop, Repo), rows(shop, Review)) == (0, 0)


def test_what_is_wrong_in_itself_is_refused_before_anybody_is_asked(shop: Workshop) -> None:
    with pytest.raises(BadInput):
        submit(shop, Submission(URL, budget_minutes=0))
    assert shop.git.asked == []


def test_a_worker_is_woken_only_for_a_review_that_is_there(sessions: Sessions, tmp_path: Path) -> None:
    found = []

    def nudge(review_id: UUID) -> None:
        with sessions.reading() as db:
            found.append(db.get(Review, review_id))

    submit(make_shop(sessions, tmp_path, nudge=nudge), Submission(URL))
    assert found[0] is not None


# Together ------------------------------------------------------------------------------------


def test_people_who_press_the_button_together_get_one_review(each_sessions: Sessions, tmp_path: Path) -> None:
    shop = make_shop(each_sessions, tmp_path)
    together = threading.Barrier(6)
    got: list[Any] = []

    def press() -> None:
        together.wait()
        try:
            got.append(submit(shop, Submission(URL)))
        except BaseException as error:
            got.append(error)

    people = [threading.Thread(target=press) for _ in range(6)]
    for one in people:
        one.start()
    for one in people:
        one.join()
    assert len(set(got)) == 1 and isinstance(got[0], UUID), got
    assert (rows(shop, Repo), rows(shop, Review)) == (1, 1)
