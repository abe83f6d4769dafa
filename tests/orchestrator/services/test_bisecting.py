"""Steps that the nights show and no review confirmed: each is traced once, however many reviews see it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from orchestrator.services import histories
from orchestrator.services.workshop import Workshop
from orchestrator.store import comparisons, measurements
from orchestrator.store.measurements import MeasurementRow
from orchestrator.store.repos import Repo as RepoRow
from orchestrator.store.reviews import Review, ReviewState
from orchestrator.store.session import Sessions
from review_agents.ports import Workspace
from review_agents.probes import Prepared, Probe
from review_agents.records import Environment, ProbeResult, ProbeState, Repo, Session
from tests.orchestrator.services.test_measuring_failures import MIDDLE, measured, reviewed, slowed
from tests.support.tiny import FIRST, SECOND

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def shop(sessions: Sessions, tmp_path: Path) -> Workshop:
    return measured(sessions, tmp_path)


def nights(shop: Workshop, *told: tuple[str, float], start: datetime = START) -> None:
    """Reviews of those commits on one machine, a night each, with what the benchmark took."""
    with shop.sessions.begin() as db:
        repo_id = db.scalars(select(RepoRow.id)).one()
        for day, (commit, value) in enumerate(told):
            at = start + timedelta(days=day)
            review = Review(repo_id=repo_id, ref="old", commit=commit, state=ReviewState.DONE, created_at=at,
                            requested_by="schedule", agents=False, budget_minutes=60, max_attempts=3)  # fmt: skip
            db.add(review)
            db.flush()
            taken = [Session(value=value).model_dump(mode="json")] * 6
            db.add(
                MeasurementRow(review_id=review.id, repo_id=repo_id, name="first", unit="s", machine_key="old machine",
                               commit=commit, at=at, sessions=taken, median=value, spread=0.001)
            )  # fmt: skip


def stepped(shop: Workshop) -> Workshop:
    """Equal commits were reviewed tonight; on another machine, long ago, the second was slower than the first."""
    reviewed(shop, FIRST)
    nights(shop, (FIRST, 1.0), (FIRST, 1.01), (SECOND, 2.0), (SECOND, 2.01))
    return slowed(shop)


def builds(shop: Workshop) -> int:
    return sum("middle" in about for method, about in shop.sandbox.calls if method == "prepare")  # type: ignore[union-attr]


def test_a_step_that_was_traced_is_not_built_and_timed_again_the_next_night(shop: Workshop) -> None:
    shop = stepped(shop)
    page = reviewed(shop, FIRST)
    with shop.sessions.reading() as db:
        (row,) = comparisons.change_points(db, page.row.repo_id)
    assert (row.culprit, row.from_commit, row.to_commit, row.machine_key) == (MIDDLE, FIRST, MIDDLE, "old machine")
    first_night = builds(shop)
    assert first_night > 0
    reviewed(shop, FIRST)
    assert builds(shop) == first_night


def test_a_traced_step_stands_in_the_history_once_with_its_commit_and_its_own_nights(shop: Workshop) -> None:
    shop = stepped(shop)
    page = reviewed(shop, FIRST)
    (step,) = [one for one in histories.steps(shop, page.row.repo_id) if one.point.machine_key == "old machine"]
    assert (step.culprit, step.point.from_at, step.point.to_at) == (
        MIDDLE,
        START + timedelta(days=1),
        START + timedelta(days=2),
    )


def test_a_later_step_of_the_same_series_is_traced_too(shop: Workshop) -> None:
    shop = stepped(shop)
    reviewed(shop, FIRST)
    nights(shop, (FIRST, 2.0), (FIRST, 2.01), (SECOND, 5.0), (SECOND, 5.01), start=START + timedelta(days=10))
    before = builds(shop)
    page = reviewed(shop, FIRST)
    assert builds(shop) > before
    with shop.sessions.reading() as db:
        rows = comparisons.change_points(db, page.row.repo_id)
    assert histories.read(rows[0]).to_at == START + timedelta(days=12)


def test_a_confirmed_step_is_one_of_the_series_that_a_probe_has_taken_the_night_of(shop: Workshop) -> None:
    def times(workspace: Workspace, repo: Repo, prepared: Prepared) -> ProbeResult:
        taken = workspace.measure("first", "bench first", sessions=1, warmup=0, environment=Environment.TEST)
        return ProbeResult(probe="benchmarks", state=ProbeState.PASSED, measurements=(taken,))

    ticks = iter(range(100_000))
    shop = replace(
        slowed(shop), probes=(Probe("benchmarks", times),), clock=lambda: START + timedelta(seconds=next(ticks))
    )
    reviewed(shop, FIRST)
    page = reviewed(shop, SECOND)
    with shop.sessions.reading() as db:
        night = measurements.named(db, page.row.id, "first")
        (row,) = comparisons.change_points(db, page.row.repo_id)
    assert night is not None and night.verdict["verdict"] == "slower"
    assert (row.name, row.machine_key, histories.read(row).to_at) == ("first", night.machine_key, night.at)


def test_an_operator_who_wants_no_bisection_gets_none(shop: Workshop) -> None:
    shop = stepped(shop)
    reviewed(replace(shop, settings=shop.settings.model_copy(update={"bisect_minutes": 0.0})), FIRST)
    assert builds(shop) == 0
