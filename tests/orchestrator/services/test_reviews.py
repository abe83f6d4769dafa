from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import event

from orchestrator.services import reviews, steps
from orchestrator.services.errors import BadInput, NotNow, UnknownReview, UnknownStep
from orchestrator.services.workshop import Workshop
from orchestrator.store import logs
from orchestrator.store.reviews import Review, ReviewState
from orchestrator.store.session import Sessions
from orchestrator.store.steps import Step, StepState
from review_agents.records import Lifecycle, ProbeState, Severity, VerificationState
from tests.factories import (
    NOON,
    fill,
    make_candidate,
    make_chunk,
    make_measured,
    make_repo,
    make_review,
    make_schedule,
    make_shop,
    make_sighting,
    make_step,
    make_verification,
)


@pytest.fixture
def shop(sessions: Sessions, tmp_path: Path) -> Workshop:
    return make_shop(sessions, tmp_path)


# Lists --------------------------------------------------------------------------------------


def test_reviews_are_listed_newest_first_page_by_page(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        repo = make_repo(db, name="tool")
        ids = [
            make_review(db, repo, state=ReviewState.DONE, created_at=NOON + timedelta(minutes=at)).id for at in range(5)
        ]
    first = reviews.listed(shop, per_page=2)
    assert [row.id for row in first.items] == [ids[4], ids[3]]
    assert (first.total, first.pages, first.items[0].repo_name) == (5, 3, "tool")
    assert [row.id for row in reviews.listed(shop, per_page=2, page=3).items] == [ids[0]]
    assert reviews.listed(shop, per_page=2, page=4).items == ()


def test_a_list_can_be_of_one_repo_or_one_state(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        done = make_review(db, state=ReviewState.DONE)
        failed = make_review(db, state=ReviewState.FAILED)
    assert [row.id for row in reviews.listed(shop, repo=done.repo_id).items] == [done.id]
    assert [row.id for row in reviews.listed(shop, state=ReviewState.FAILED).items] == [failed.id]
    assert reviews.listed(shop, repo=done.repo_id, state=ReviewState.FAILED).total == 0


@pytest.mark.parametrize("wrong", [{"page": 0}, {"page": 10**30}, {"per_page": 0}, {"per_page": 501}])
def test_pages_that_cannot_be_are_refused(shop: Workshop, wrong: dict[str, int]) -> None:
    with pytest.raises(BadInput):
        reviews.listed(shop, **wrong)


def test_only_confirmed_faults_that_are_there_count(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        review = make_review(db, state=ReviewState.DONE)
        high = make_candidate(severity=Severity.HIGH, shape="high")
        make_sighting(db, review, candidate=high)
        make_sighting(db, review, lifecycle=Lifecycle.PERSISTING)
        make_sighting(db, review, lifecycle=Lifecycle.REGRESSED)
        make_sighting(db, review, seen_late=True)
        make_sighting(db, review, lifecycle=Lifecycle.FIXED)
        make_sighting(db, review, lifecycle=Lifecycle.IGNORED)
        for state in (VerificationState.FLAKY, VerificationState.NOT_REPRODUCED, VerificationState.UNVERIFIED):
            make_sighting(db, review, verification=make_verification(state))
    (row,) = reviews.listed(shop).items
    assert row.counts.by_severity == {Severity.HIGH: 1, Severity.MEDIUM: 3}
    assert list(row.counts.by_severity) == [Severity.HIGH, Severity.MEDIUM]
    assert (row.counts.confirmed, row.counts.new, row.counts.unproved) == (4, 1, 3)
    assert row.counts.worst is Severity.HIGH


# One ----------------------------------------------------------------------------------------


def test_the_page_of_a_review_has_all_that_it_found_worst_first(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        review = make_review(db, state=ReviewState.DONE)
        make_step(db, review, "checkout", position=1)
        readme = make_step(db, review, "probe:readme", position=2)
        make_step(db, review, "probe:tests", position=3, state=StepState.FAILED, reason="a bug")
        low = make_sighting(db, review, candidate=make_candidate(severity=Severity.LOW, shape="low"))
        high = make_sighting(db, review, candidate=make_candidate(severity=Severity.HIGH, shape="high"))
        ignored = make_sighting(db, review, lifecycle=Lifecycle.IGNORED, ignored_by="operator: r")
        claimed = make_sighting(
            db,
            review,
            candidate=make_candidate(severity=Severity.CRITICAL, shape="claimed"),
            verification=make_verification(VerificationState.UNVERIFIED, reason="no box"),
        )
        fixed = make_sighting(db, review, lifecycle=Lifecycle.FIXED)
        make_measured(db, review)
    page = reviews.get(shop, review.id)
    assert [step.name for step in page.steps] == ["checkout", "probe:readme", "probe:tests"]
    assert page.steps[0].seconds == 2.0
    assert [(one.probe, one.state, one.step_id) for one in page.evidence] == [("readme", ProbeState.PASSED, readme.id)]
    assert page.fact("readme") == {"examples": 3} and page.fact("tests") == {}
    assert [one.id for one in page.findings] == [one.finding_id for one in (high, low, claimed, fixed, ignored)]
    assert page.findings[2].verification_reason == "no box"
    assert page.measurements[0].samples[:2] == (0.10, 0.11)
    assert page.row.seconds == 295.0


def test_a_review_that_is_not_there_is_said_so(shop: Workshop) -> None:
    missing = uuid4()
    for ask in (reviews.get, reviews.progress, reviews.cancel):
        with pytest.raises(UnknownReview, match=str(missing)):
            ask(shop, missing)


# Progress -----------------------------------------------------------------------------------


def test_progress_names_the_step_that_runs_and_goes_on_where_the_reader_is(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        review = make_review(db, state=ReviewState.RUNNING)
        make_step(db, review, "checkout", position=1)
        step = make_step(db, review, "prepare", position=2, state=StepState.RUNNING, ended_at=None)
        ids = [make_chunk(db, step, f"line {at}\n").id for at in range(3)]
    shop.clock.forward(seconds=65)
    found = reviews.progress(shop, review.id)
    assert (found.state, found.current and found.current.name, found.elapsed_s) == (ReviewState.RUNNING, "prepare", 60)
    assert [line.text for line in found.lines] == ["line 0\n", "line 1\n", "line 2\n"]
    assert found.lines[0].step == "prepare" and found.last_seq == ids[2]
    later = reviews.progress(shop, review.id, ids[0])
    assert [line.seq for line in later.lines] == ids[1:]
    end = reviews.progress(shop, review.id, ids[2])
    assert (end.lines, end.last_seq) == ((), ids[2])


def test_a_step_that_a_lost_worker_left_does_not_run_while_its_review_waits(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        review = make_review(db, state=ReviewState.QUEUED, started_at=NOON)
        make_step(db, review, state=StepState.RUNNING, ended_at=None)
    (left,) = reviews.get(shop, review.id).steps
    assert left.state is StepState.PENDING and "interrupted" in left.reason
    assert reviews.progress(shop, review.id).current is None


def test_a_reader_from_the_start_gets_everything_in_parts_and_a_new_one_the_tail(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        review = make_review(db, state=ReviewState.RUNNING)
        step = make_step(db, review, "prepare")
        for at in range(1200):
            make_chunk(db, step, f"{at}\n")
    seen, texts = 0, []
    while (part := reviews.progress(shop, review.id, seen)).lines:
        texts += [line.text for line in part.lines]
        seen = part.last_seq
    assert texts == [f"{at}\n" for at in range(1200)]
    assert [line.text for line in reviews.progress(shop, review.id).lines] == texts[-200:]


def test_a_waiting_review_knows_how_many_go_before_it(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        make_review(db, state=ReviewState.RUNNING)
        make_review(db, state=ReviewState.DONE)
        make_review(db, created_at=NOON - timedelta(minutes=1))
        make_review(db, created_at=NOON + timedelta(minutes=1))
        make_review(db, created_at=NOON + timedelta(minutes=1), priority=20)
        mine = make_review(db).id
    assert reviews.progress(shop, mine).ahead == 3


# Logs ---------------------------------------------------------------------------------------


def test_a_steps_log_is_there_while_it_runs_and_when_it_was_packed(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        step = make_step(db, make_review(db, state=ReviewState.RUNNING), "prepare")
        make_chunk(db, step, "one\n")
        make_chunk(db, step, "two\n")
    assert steps.log(shop, step.id) == "one\ntwo\n"
    with shop.sessions.begin() as db:
        logs.pack(db, step.id)
    assert steps.log(shop, step.id) == "one\ntwo\n"
    found = steps.get(shop, step.id)
    assert (found.name, found.review_id, found.seconds) == ("prepare", step.review_id, 2.0)


def test_a_step_that_is_not_there_is_said_so(shop: Workshop) -> None:
    for ask in (steps.get, steps.log):
        with pytest.raises(UnknownStep):
            ask(shop, uuid4())


# Cancelling ---------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [ReviewState.QUEUED, ReviewState.WAITING_FOR_NODE])
def test_a_waiting_review_is_cancelled_at_once(each_sessions: Sessions, tmp_path: Path, state: ReviewState) -> None:
    shop = make_shop(each_sessions, tmp_path)
    with shop.sessions.begin() as db:
        review_id = make_review(db, state=state).id
        fence = db.get_one(Review, review_id).fence
        pending = make_step(db, db.get_one(Review, review_id), "prepare", state=StepState.PENDING).id
    reviews.cancel(shop, review_id)
    with shop.sessions.reading() as db:
        review = db.get_one(Review, review_id)
        assert (review.state, review.finished_at, review.fence) == (ReviewState.CANCELLED, NOON, fence + 1)
        assert db.get_one(Step, pending).state is StepState.SKIPPED


def test_a_running_review_is_told_to_stop_and_telling_it_twice_is_no_error(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        review_id = make_review(db, state=ReviewState.RUNNING).id
    reviews.cancel(shop, review_id)
    reviews.cancel(shop, review_id)
    with shop.sessions.reading() as db:
        review = db.get_one(Review, review_id)
    assert (review.state, review.cancel_requested, review.finished_at) == (ReviewState.CANCELLING, True, None)


@pytest.mark.parametrize("state", [ReviewState.DONE, ReviewState.FAILED, ReviewState.CANCELLED])
def test_a_review_that_has_ended_cannot_be_cancelled(shop: Workshop, state: ReviewState) -> None:
    with shop.sessions.begin() as db:
        review_id = make_review(db, state=state).id
    with pytest.raises(NotNow, match=f"ended already \\({state}\\)"):
        reviews.cancel(shop, review_id)


def test_a_loop_whose_waiting_review_is_cancelled_comes_round_again(shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        loop = make_schedule(db, kind="loop", pause_minutes=30, next_at=None)
        review_id = make_review(db, repo=None, repo_id=loop.repo_id, schedule_id=loop.id, slot=NOON).id
    reviews.cancel(shop, review_id)
    with shop.sessions.reading() as db:
        assert db.get_one(type(loop), loop.id).next_at == NOON + timedelta(minutes=30)


# Speed --------------------------------------------------------------------------------------


def test_the_number_of_queries_does_not_grow_with_the_number_of_rows(shop: Workshop) -> None:
    asked = []
    event.listen(shop.sessions.engine, "before_cursor_execute", lambda *given: asked.append(given[2]))

    def queries(call: object) -> int:
        asked.clear()
        call()  # type: ignore[operator]
        return len(asked)

    few = fill(shop.sessions, repos=2, reviews=12, findings_each=3, measurements_each=1)
    before = queries(lambda: reviews.listed(shop)), queries(lambda: reviews.get(shop, few[-1]))
    many = fill(shop.sessions, repos=10, reviews=100, findings_each=60, measurements_each=3)
    after = queries(lambda: reviews.listed(shop)), queries(lambda: reviews.get(shop, many[-1]))
    assert before == after
    assert max(after) <= 10
