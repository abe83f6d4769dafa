"""A review's steps as lamps."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from orchestrator.services.views import StepRow, StepState
from orchestrator.web.round import stops, title_of

NOW = datetime(2026, 11, 30, 2, 0, tzinfo=UTC)


def step(name: str, state: StepState = StepState.DONE, seconds: float = 2.0, **changed: object) -> StepRow:
    ended = state in (StepState.DONE, StepState.FAILED)
    values: dict[str, object] = {
        "id": uuid4(),
        "name": name,
        "state": state,
        "attempt": 1,
        "started_at": None if state is StepState.PENDING else NOW - timedelta(seconds=seconds),
        "ended_at": NOW if ended else None,
        "summary": "all well",
        "reason": "",
    }
    return StepRow(**{**values, **changed})  # type: ignore[arg-type]


def test_names_are_put_into_words() -> None:
    assert title_of("checkout") == "Check out"
    assert title_of("probe:entry_points") == "Probe entry points"
    assert title_of("verify:0123456789abcdef") == "Prove 01234567"
    assert title_of("something") == "Something"


def test_many_proofs_are_one_stop_in_the_place_of_the_first() -> None:
    steps = [
        step("checkout"),
        step("verify:a"),
        step("verify:b", StepState.RUNNING, 3),
        step("merge", StepState.PENDING),
    ]
    found = stops(steps, NOW)
    assert [(one.title, one.state, one.said) for one in found] == [
        ("Check out", StepState.DONE, "all well"),
        ("Prove findings in fresh sandboxes", StepState.RUNNING, "1 of 2"),
        ("Compare with earlier nights", StepState.PENDING, "all well"),
    ]
    assert found[1].seconds == 5.0
    assert found[1].step_id is None


def test_a_single_proof_keeps_its_own_log() -> None:
    assert stops([step("verify:a")], NOW)[0].step_id is not None


def test_gathered_steps_fail_together_only_when_all_have_ended() -> None:
    failed, pending = step("verify:a", StepState.FAILED), step("verify:b", StepState.PENDING)
    assert stops([failed, pending], NOW)[0].state is StepState.RUNNING
    assert stops([failed, step("verify:b")], NOW)[0].state is StepState.FAILED
    assert stops([pending, step("verify:c", StepState.PENDING)], NOW)[0].state is StepState.PENDING


def test_a_failed_step_says_why_and_a_repeated_one_says_so() -> None:
    failed = step("probe:tests", StepState.FAILED, reason="needs a compiler", attempt=2)
    assert stops([failed], NOW)[0].said == "needs a compiler (attempt 2)"


def test_a_step_that_waits_for_the_node_says_so_and_counts_no_seconds() -> None:
    (found,) = stops([step("focus:taste", StepState.WAITING_FOR_NODE, reason="no route", summary="", attempt=7)], NOW)
    assert (found.state, found.said, found.seconds) == (
        StepState.WAITING_FOR_NODE,
        "waiting for node: no route",
        None,
    )


def test_a_running_step_counts_its_seconds_until_now() -> None:
    assert stops([step("prepare", StepState.RUNNING, 7)], NOW)[0].seconds == 7.0
