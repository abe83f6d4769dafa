"""Reviews from claim to end, in a sandbox that fails at every call, beside rivals, and up to a used-up budget."""

import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select, update

from orchestrator.sandbox.contract import Box, BoxGone, Limits, NeedsMissing, Patience, SandboxError
from orchestrator.sandbox.workspace import BoxWorkspace
from orchestrator.services import claiming, reviews, running, submitting, working
from orchestrator.services.submitting import Submission
from orchestrator.services.views import ReviewPage, ReviewState, StepState
from orchestrator.services.workshop import Workshop
from orchestrator.store import claims, logs
from orchestrator.store.findings import FindingRow
from orchestrator.store.measurements import MeasurementRow
from orchestrator.store.repos import Repo, RepoKind
from orchestrator.store.session import Sessions
from orchestrator.store.steps import Step
from review_agents.ports import UnreachableRepo
from review_agents.probes import Probe
from review_agents.records import FindingState, Lifecycle, ProbeResult, ProbeState, Ran, VerificationState
from tests.support.tiny import FILES, FIRST, GREET, INSTALL, PROBES, SECOND, Script, TinyGit, counts, tiny_shop
from tests.support.waiting import wait_for

STEPS = ["checkout", "prepare", "probe:install", "probe:greets", "probe:counts", "verify", "merge", "record"]


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def shop(sessions: Sessions, tmp_path: Path, script: Script) -> Workshop:
    return tiny_shop(sessions, tmp_path, script=script)


def asked(shop: Workshop, **given: Any) -> UUID:
    return submitting.submit(shop, Submission("https://git.example/team/tiny", agents=False, **given))


def reviewed(shop: Workshop) -> ReviewPage:
    review_id = asked(shop)
    working.do_one(shop, review_id)
    return reviews.get(shop, review_id)


def nothing_is_left(shop: Workshop) -> bool:
    return not shop.sandbox.boxes and not shop.sandbox.volumes  # type: ignore[union-attr]


def families(page: ReviewPage) -> list[str]:
    return [step.name.split(":")[0] if step.name.startswith("verify") else step.name for step in page.steps]


def test_a_review_goes_through_its_steps_and_files_what_it_proved(shop: Workshop) -> None:
    page = reviewed(shop)
    assert (page.row.state, page.row.error) == (ReviewState.DONE, "")
    assert families(page) == STEPS and all(step.state is StepState.DONE for step in page.steps)
    assert "evidence only" in page.row.outcome_note
    (finding,) = page.findings
    assert (finding.lifecycle, finding.verification_state) == (Lifecycle.NEW, VerificationState.CONFIRMED)
    assert [one.probe for one in page.evidence] == ["install", "greets", "counts"]
    assert page.measurements[0].name == "count" and page.sandbox["name"] == "fake"
    assert (page.row.commit, page.commit_date) == (FIRST, "2026-11-29T10:00:00+01:00")
    assert nothing_is_left(shop)


def test_the_next_review_of_the_same_commit_says_nothing_new(shop: Workshop) -> None:
    reviewed(shop)
    page = reviewed(shop)
    assert [finding.lifecycle for finding in page.findings] == [Lifecycle.PERSISTING]
    assert page.row.counts.new == 0


def test_commands_and_their_output_are_in_the_steps_log(shop: Workshop) -> None:
    page = reviewed(shop)
    step = next(step for step in page.steps if step.name == "probe:greets")
    with shop.sessions.reading() as db:
        text = logs.text_of(db, step.id)
    assert f"$ {GREET}" in text and "good morning" in text and "exit status 0" in text


def test_a_fault_that_is_gone_on_a_new_commit_is_proved_fixed(shop: Workshop, script: Script) -> None:
    reviewed(shop)
    assert isinstance(shop.git, TinyGit)
    shop.git.commits[SECOND] = FILES
    shop.git.head = SECOND
    script.says[GREET] = Ran(exit=0, head="hello\n")
    page = reviewed(shop)
    (finding,) = page.findings
    assert finding.lifecycle is Lifecycle.FIXED
    assert [step.summary for step in page.steps if step.name.startswith("verify:")] == [
        "not_reproduced again: greet does not say hello"
    ]
    with shop.sessions.reading() as db:
        assert db.scalars(select(FindingRow.state)).all() == [FindingState.FIXED]


def test_uncommitted_changes_are_named(shop: Workshop) -> None:
    shop.git.dirty = ("a.py", "b\nc.py")  # type: ignore[attr-defined]
    review_id = asked(shop)
    with shop.sessions.begin() as db:
        db.scalars(select(Repo)).one().kind = RepoKind.PATH
    working.do_one(shop, review_id)
    (step,) = [step for step in reviews.get(shop, review_id).steps if step.name == "checkout"]
    assert "not reviewed, because not committed: a.py, 'b\\nc.py'" in step.summary


# Failures ----------------------------------------------------------------------------------

METHODS = ["describe", "prepare", "prepared", "open", "run", "destroy", "drop", "sweep"]


@pytest.mark.parametrize("method", METHODS)
def test_a_sandbox_that_always_fails_ends_the_review_with_the_reason(
    shop: Workshop, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "DROP_AGAIN_S", (0.0,))
    shop.sandbox.fail[method] = SandboxError("the disk is full")  # type: ignore[union-attr]
    page = reviewed(shop)
    if method in ("describe", "prepare", "prepared", "open", "run"):
        assert page.row.state is ReviewState.FAILED and "the disk is full" in page.row.error
    else:  # cleaning up is the sweep's business where it fails
        assert page.row.state is ReviewState.DONE
    assert not any(step.state in (StepState.RUNNING, StepState.PENDING) for step in page.steps)


def test_an_engine_that_is_away_for_a_moment_at_the_end_leaves_nothing(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "DROP_AGAIN_S", (0.0, 0.0))
    shop.sandbox.fail["drop"] = [SandboxError("nobody answers")] * 2  # type: ignore[union-attr]
    assert reviewed(shop).row.state is ReviewState.DONE
    assert nothing_is_left(shop)
    assert [name for name, _ in shop.sandbox.calls].count("drop") == 4  # type: ignore[union-attr]


@pytest.mark.parametrize("method", ["describe", "prepare", "open", "run"])
def test_a_passing_failure_puts_the_review_back_and_it_succeeds_later(shop: Workshop, method: str) -> None:
    shop.sandbox.fail[method] = [SandboxError("the engine restarts", retry=True)]  # type: ignore[union-attr]
    page = reviewed(shop)
    assert page.row.state is ReviewState.QUEUED and "the engine restarts" in page.row.outcome_note
    assert working.work(shop) == 0  # not at once
    shop.clock.forward(minutes=2)  # type: ignore[attr-defined]
    assert working.work(shop) == 1
    page = reviews.get(shop, page.row.id)
    assert page.row.state is ReviewState.DONE and page.attempt == 2 and len(page.findings) == 1
    assert nothing_is_left(shop)


def test_passing_failures_end_some_day(shop: Workshop) -> None:
    shop.sandbox.fail["prepare"] = SandboxError("the engine restarts", retry=True)  # type: ignore[union-attr]
    page = reviewed(shop)
    for _ in range(5):
        shop.clock.forward(hours=1)  # type: ignore[attr-defined]
        working.work(shop)
    page = reviews.get(shop, page.row.id)
    assert (page.row.state, page.attempt) == (ReviewState.FAILED, 3)


def test_a_box_that_dies_costs_one_probe_and_not_the_review(shop: Workshop) -> None:
    shop.sandbox.fail["run"] = [None, BoxGone("killed")]  # type: ignore[union-attr]
    page = reviewed(shop)
    assert page.row.state is ReviewState.DONE
    states = {one.probe: (one.state, one.reason) for one in page.evidence}
    assert states["greets"] == (ProbeState.COULD_NOT_RUN, "the sandbox failed: killed")
    assert states["counts"][0] is ProbeState.PASSED


RUNS_BEFORE = {
    "probe:greets": 1,
    "probe:counts": 2,
    "verify": 4,
}  # commands of the tiny review before that step's first


@pytest.mark.parametrize("step", RUNS_BEFORE)
def test_a_step_whose_box_was_ended_from_outside_is_done_again(shop: Workshop, step: str) -> None:
    """An engine that was restarted says nothing about the repo, neither about a check nor about a claim."""
    shop.sandbox.fail["run"] = [*[None] * RUNS_BEFORE[step], BoxGone("the engine restarted", retry=True)]  # type: ignore[union-attr]
    page = reviewed(shop)
    assert page.row.state is ReviewState.QUEUED
    shop.clock.forward(minutes=2)  # type: ignore[attr-defined]
    working.work(shop)
    page = reviews.get(shop, page.row.id)
    assert (page.row.state, page.attempt) == (ReviewState.DONE, 2)
    assert [one.name.partition(":")[0] if one.name.startswith("verify") else one.name for one in page.steps
            if one.attempt > 1] == [step]  # fmt: skip
    assert [finding.verification_state for finding in page.findings] == [VerificationState.CONFIRMED]
    assert all(one.state is not ProbeState.COULD_NOT_RUN for one in page.evidence)


def test_boxes_that_are_ended_from_outside_each_time_cost_their_probes_in_the_last_attempt(shop: Workshop) -> None:
    shop.sandbox.fail["run"] = [None, *[BoxGone("restarted", retry=True)] * 3]  # type: ignore[union-attr]
    page = reviewed(shop)
    for _ in range(2):
        shop.clock.forward(minutes=5)  # type: ignore[attr-defined]
        working.work(shop)
    page = reviews.get(shop, page.row.id)
    assert (page.row.state, page.attempt) == (ReviewState.DONE, 3)
    assert [one.probe for one in page.evidence if one.state is ProbeState.COULD_NOT_RUN] == ["greets"]


def test_what_the_sandbox_lacks_is_no_failure(shop: Workshop) -> None:
    shop.sandbox.fail["open"] = NeedsMissing("needs Python 3.99")  # type: ignore[union-attr]
    page = reviewed(shop)
    assert page.row.state is ReviewState.DONE
    assert {(one.state, one.reason) for one in page.evidence} == {(ProbeState.COULD_NOT_RUN, "needs Python 3.99")}


def test_where_the_wanted_python_is_lacking_probes_that_only_read_still_run_and_know_why(shop: Workshop) -> None:
    seen: list[tuple[Any, str]] = []

    def reads(workspace: Any, repo: Any, prepared: Any) -> ProbeResult:
        (box,) = shop.sandbox.boxes.values()  # type: ignore[union-attr]
        seen.append((prepared, box.order.requires_python))
        return ProbeResult(probe="reads", state=ProbeState.PASSED)

    assert isinstance(shop.git, TinyGit)
    shop.git.commits[FIRST] = {"pyproject.toml": '[project]\nname = "greet"\nrequires-python = ">=3.99"\n'}
    shop.sandbox.fail["open"] = [NeedsMissing("needs Python >=3.99")]  # type: ignore[union-attr]
    page = reviewed(replace(shop, probes=(Probe("reads", reads),)))
    assert [(one.probe, one.state) for one in page.evidence] == [
        ("install", ProbeState.COULD_NOT_RUN),
        ("reads", ProbeState.PASSED),
    ]
    ((prepared, wanted),) = seen
    assert prepared.manifests[0].name == "greet" and wanted == ""
    assert prepared.not_installed == "the package could not be installed: needs Python >=3.99"


def test_a_repo_that_is_away_is_tried_again(shop: Workshop) -> None:
    shop.git.problem = [UnreachableRepo("no answer", retry=True)]  # type: ignore[attr-defined]
    page = reviewed(shop)
    assert page.row.state is ReviewState.QUEUED
    shop.clock.forward(minutes=2)  # type: ignore[attr-defined]
    working.work(shop)
    assert reviews.get(shop, page.row.id).row.state is ReviewState.DONE


def test_a_repo_that_cannot_be_used_fails_at_once(shop: Workshop) -> None:
    shop.git.problem = [UnreachableRepo("no such repo")]  # type: ignore[attr-defined]
    page = reviewed(shop)
    assert (page.row.state, page.row.error) == (ReviewState.FAILED, "no such repo")


def test_an_exception_in_a_probe_is_our_bug_and_costs_that_probe(shop: Workshop) -> None:
    def broken(*_: Any) -> ProbeResult:
        raise ZeroDivisionError("oops")

    shop = replace(shop, probes=(Probe("broken", broken), Probe("counts", counts)))
    page = reviewed(shop)
    assert page.row.state is ReviewState.DONE
    assert "our bug: ZeroDivisionError" in next(one.reason for one in page.evidence if one.probe == "broken")


def test_an_exception_of_ours_elsewhere_fails_the_review_and_rises(shop: Workshop) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("oops")

    shop = replace(shop, prepare=broken)
    review_id = asked(shop)
    with pytest.raises(ZeroDivisionError):
        working.do_one(shop, review_id)
    page = reviews.get(shop, review_id)
    assert page.row.state is ReviewState.FAILED and "bug of Lamplighter" in page.row.error
    assert nothing_is_left(shop)


def test_without_a_sandbox_reviews_are_refused(shop: Workshop) -> None:
    page = reviewed(replace(shop, sandbox=None))
    assert page.row.state is ReviewState.FAILED and "never runs outside" in page.row.error


def test_a_used_up_budget_is_said_by_each_probe(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.services.job.Job.time_left", lambda self: -1.0)
    page = reviewed(shop)
    assert page.row.state is ReviewState.DONE
    assert all("budget of 60 minutes" in one.reason for one in page.evidence if one.probe != "install")


def test_a_repo_may_lower_its_budget_and_never_raise_it(shop: Workshop) -> None:
    seen: list[float] = []

    def limits(step_s: float) -> Limits:
        seen.append(step_s)
        return Limits(step_s=step_s)

    shop = replace(shop, limits=limits)
    shop.git.commits = {FIRST: {**FILES, ".lamplighter.toml": "budget_minutes = 5\n"}}  # type: ignore[attr-defined]
    reviewed(shop)
    assert max(seen) <= 300
    seen.clear()
    shop.git.commits = {FIRST: {**FILES, ".lamplighter.toml": "budget_minutes = 500\nx = 1"}}  # type: ignore[attr-defined]
    page = reviewed(shop)
    assert 300 < max(seen) <= 3600
    assert ".lamplighter.toml: x is ignored" in page.steps[0].summary


def test_no_command_may_take_longer_than_the_operator_allows(shop: Workshop) -> None:
    quick = replace(shop, settings=shop.settings.model_copy(update={"command_timeout_s": 7.0}))
    reviewed(quick)
    assert set(quick.sandbox.timeouts) == {7.0}  # type: ignore[union-attr]


def test_the_last_step_says_where_the_time_went(shop: Workshop, script: Script) -> None:
    script.says |= {INSTALL: Ran(exit=0, seconds=30.0), GREET: Ran(exit=0, seconds=2.0, head="good morning\n")}
    page = reviewed(shop)
    with shop.sessions.reading() as db:
        spent = db.scalars(select(Step.result).where(Step.review_id == page.row.id, Step.name == "record")).one()
    assert spent["commands_s"] == pytest.approx(30 + 2 + 2 * 0.01)  # install, one probe, two timings
    assert spent["verify_commands_s"] == pytest.approx(2 * 2 + 2 * 0.01)  # with two controls
    assert spent["verify_boxes"] == 4 and spent["waited_s"] == 0
    assert 0 < spent["verify_s"] < spent["wall_s"]


def test_all_probes_of_a_review_share_its_patience_with_a_busy_machine(shop: Workshop) -> None:
    handed: list[Patience] = []

    def workspace(box: Box, patience: Patience) -> BoxWorkspace:
        handed.append(patience)
        return BoxWorkspace(box, patience=patience)

    settings = shop.settings.model_copy(update={"measure_patience_s": 33.0})
    reviewed(replace(shop, workspace=workspace, settings=settings))
    assert len(handed) == 3  # prepare and two probes
    assert all(one is handed[0] for one in handed) and handed[0].left_s <= 33
    first = handed[0]
    handed.clear()
    reviewed(replace(shop, workspace=workspace, settings=settings))
    assert handed[0] is not first


# Cancelling, losing, resuming --------------------------------------------------------------


def in_background(shop: Workshop, review_id: UUID) -> threading.Thread:
    thread = threading.Thread(target=working.do_one, args=(shop, review_id))
    thread.start()
    return thread


def is_running(shop: Workshop, review_id: UUID, step: str) -> bool:
    return any(one.name == step and one.state is StepState.RUNNING for one in reviews.get(shop, review_id).steps)


class Patient:
    """A probe whose command runs until it is told to end."""

    def __init__(self) -> None:
        self.ended_by: BaseException | None = None

    def __call__(self, workspace: Any, repo: Any, prepared: Any) -> ProbeResult:
        while True:
            try:
                workspace.run("sleep 0.1")
            except Exception as error:
                self.ended_by = error
                raise
            time.sleep(0.05)


def test_a_running_review_is_cancelled_within_two_seconds(shop: Workshop) -> None:
    patient = Patient()
    shop = replace(shop, probes=(Probe("patient", patient),))
    review_id = asked(shop)
    thread = in_background(shop, review_id)
    wait_for(lambda: is_running(shop, review_id, "probe:patient"))
    started = time.monotonic()
    reviews.cancel(shop, review_id)
    thread.join(timeout=10)
    assert time.monotonic() - started < 2.0
    page = reviews.get(shop, review_id)
    assert page.row.state is ReviewState.CANCELLED
    states = {step.name: step.state for step in page.steps}
    assert states["probe:patient"] is StepState.FAILED and states["record"] is StepState.SKIPPED
    assert nothing_is_left(shop)


def test_a_waiting_review_that_was_cancelled_is_never_begun(shop: Workshop) -> None:
    review_id = asked(shop)
    reviews.cancel(shop, review_id)
    assert not working.do_one(shop, review_id)
    assert reviews.get(shop, review_id).row.state is ReviewState.CANCELLED


def test_a_worker_that_is_told_to_end_gives_the_review_back(shop: Workshop) -> None:
    ending = threading.Event()
    patient = Patient()
    stopping = replace(shop, probes=(Probe("patient", patient), *PROBES), stopping=ending.is_set)
    review_id = asked(shop)
    thread = in_background(stopping, review_id)
    wait_for(lambda: is_running(shop, review_id, "probe:patient"))
    ending.set()
    thread.join(timeout=10)
    page = reviews.get(shop, review_id)
    assert (page.row.state, page.attempt) == (ReviewState.QUEUED, 0)  # that was no attempt
    assert shop.sandbox.volumes == {str(review_id)}  # type: ignore[union-attr]
    shop.sandbox.calls.clear()  # type: ignore[union-attr]
    assert working.work(replace(shop, probes=PROBES)) == 1
    assert reviews.get(shop, review_id).row.state is ReviewState.DONE
    assert ("prepare", str(review_id)) not in shop.sandbox.calls  # type: ignore[union-attr]


def test_a_runner_whose_lease_ran_out_writes_nothing_more(shop: Workshop, sessions: Sessions, tmp_path: Path) -> None:
    """It was suspended; another machine took the review over and finished it."""
    patient = Patient()
    review_id = asked(shop)
    thread = in_background(replace(shop, probes=(Probe("patient", patient),)), review_id)
    wait_for(lambda: is_running(shop, review_id, "probe:patient"))
    now = shop.clock() + timedelta(hours=1)
    with shop.sessions.begin() as db:
        taken = claims.claim(db, review_id, machine="other", owner="other", now=now, lease_s=60)
    assert taken is not None
    with shop.sessions.begin() as db:
        claims.hold(db, taken, now)
        claims.end(db, taken, state=ReviewState.DONE, now=now, note="by the other")
    thread.join(timeout=10)
    assert isinstance(patient.ended_by, claims.LostClaim)
    page = reviews.get(shop, review_id)
    assert (page.row.state, page.row.outcome_note) == (ReviewState.DONE, "by the other")
    assert next(step for step in page.steps if step.name == "probe:patient").state is StepState.RUNNING
    assert not shop.sandbox.volumes  # type: ignore[union-attr]


def test_a_review_that_was_lost_to_a_long_cut_is_not_prepared_again_on_its_machine(shop: Workshop) -> None:
    patient = Patient()
    review_id = asked(shop)
    thread = in_background(replace(shop, probes=(Probe("patient", patient), *PROBES)), review_id)
    wait_for(lambda: is_running(shop, review_id, "probe:patient"))
    later = shop.clock() + timedelta(hours=1)
    with shop.sessions.begin() as db:
        (lost,) = claims.held_on(db, shop.machine)
        claims.give_up(db, lost, later)
    thread.join(timeout=10)
    assert isinstance(patient.ended_by, claims.LostClaim)
    assert shop.sandbox.volumes == {str(review_id)}  # type: ignore[union-attr]
    shop.sandbox.calls.clear()  # type: ignore[union-attr]
    assert working.work(replace(shop, probes=PROBES, clock=lambda: later)) == 1
    page = reviews.get(shop, review_id)
    assert page.row.state is ReviewState.DONE
    assert {step.name: step.attempt for step in page.steps}["prepare"] == 1
    assert ("prepare", str(review_id)) not in shop.sandbox.calls  # type: ignore[union-attr]
    assert not shop.sandbox.volumes  # type: ignore[union-attr]


def test_a_stale_lease_is_refused_at_every_write(shop: Workshop) -> None:
    review_id = asked(shop)
    lease = claiming.take(shop, review_id)
    assert lease is not None
    hold = claiming.Hold(shop, replace(lease, fence=lease.fence - 1))
    with pytest.raises(claims.LostClaim):
        hold.write(lambda db: None)
    with pytest.raises(claims.LostClaim):
        hold.check()


def test_steps_that_are_done_are_not_done_again(shop: Workshop, script: Script) -> None:
    """As after kill -9 in the middle: rows say what is done, the volumes are still there."""

    class Killed(BaseException):
        pass

    def kill(*_: Any) -> ProbeResult:
        raise Killed

    review_id = asked(shop)
    dying = replace(shop, probes=(PROBES[0], Probe("counts", kill)))
    drop, shop.sandbox.drop = shop.sandbox.drop, lambda review: None  # type: ignore[union-attr, method-assign]
    with pytest.raises(Killed):
        working.do_one(dying, review_id)
    shop.sandbox.drop = drop  # type: ignore[union-attr, method-assign]
    assert reviews.get(shop, review_id).row.state is ReviewState.RUNNING
    script.ran.clear()
    assert working.work(shop) == 1  # the host lock is free, so whoever held the review is dead
    page = reviews.get(shop, review_id)
    assert (page.row.state, page.attempt) == (ReviewState.DONE, 2)
    assert INSTALL not in script.ran and len(page.findings) == 1
    attempts = {step.name: step.attempt for step in page.steps if not step.name.startswith("verify")}
    assert attempts == {
        "checkout": 1, "prepare": 1, "probe:install": 1, "probe:greets": 1, "probe:counts": 2, "merge": 1, "record": 1
    }  # fmt: skip


def test_volumes_that_are_gone_are_made_again(shop: Workshop, script: Script) -> None:
    review_id = asked(shop)
    shop.sandbox.fail["open"] = [None, SandboxError("away", retry=True)]  # type: ignore[union-attr]
    working.do_one(shop, review_id)
    shop.sandbox.volumes.clear()  # type: ignore[union-attr]
    shop.clock.forward(minutes=5)  # type: ignore[attr-defined]
    working.work(shop)
    page = reviews.get(shop, review_id)
    assert page.row.state is ReviewState.DONE
    assert next(step for step in page.steps if step.name == "prepare").attempt == 2


def test_measurements_of_a_repeated_step_are_kept_once(shop: Workshop) -> None:
    shop.sandbox.fail["open"] = [None, None, None, SandboxError("away", retry=True)]  # type: ignore[union-attr]
    page = reviewed(shop)
    with shop.sessions.begin() as db:  # as if the worker had been killed before the step's end was written
        db.execute(update(Step).where(Step.name == "probe:counts").values(state=StepState.RUNNING))
    shop.clock.forward(minutes=5)  # type: ignore[attr-defined]
    working.work(shop)
    assert reviews.get(shop, page.row.id).row.state is ReviewState.DONE
    with shop.sessions.reading() as db:
        assert len(db.scalars(select(MeasurementRow)).all()) == 1


def test_a_second_delivery_does_nothing(shop: Workshop) -> None:
    page = reviewed(shop)
    before = list(shop.sandbox.calls)  # type: ignore[union-attr]
    assert not running.execute(shop, page.row.id)
    assert working.work(shop) == 0
    assert shop.sandbox.calls == before  # type: ignore[union-attr]
