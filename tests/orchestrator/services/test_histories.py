"""Series, steps and false alarms out of stored nights."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from orchestrator.measure.records import Bisection, ChangePoint
from orchestrator.services import histories
from orchestrator.services.bisecting import BISECTION
from orchestrator.services.histories import CHANGE_POINT
from orchestrator.services.workshop import Workshop
from orchestrator.store.comparisons import ChangePointRow, ComparisonRow
from orchestrator.store.measurements import MeasurementRow
from orchestrator.store.repos import Repo, RepoKind
from orchestrator.store.reviews import Review, ReviewState
from orchestrator.store.session import Sessions
from review_agents.records import Session, Verdict
from tests.factories import make_shop

START = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture
def shop(sessions: Sessions, tmp_path: Path) -> Workshop:
    return make_shop(sessions, tmp_path)


@pytest.fixture
def repo_id(shop: Workshop) -> UUID:
    with shop.sessions.begin() as db:
        repo = Repo(name="r", url="https://example.org/r.git", kind=RepoKind.GIT, created_at=START)
        db.add(repo)
        db.flush()
        return repo.id


def night(shop: Workshop, repo_id: UUID, day: int, value: float | None, *, key: str = "k", **beside: Any) -> UUID:
    """A review that measured `bench` once, on the commit of that day."""
    at = START + timedelta(days=day)
    with shop.sessions.begin() as db:
        review = Review(repo_id=repo_id, ref="main", commit=f"c{day}", state=ReviewState.DONE, created_at=at,
                        requested_by="schedule", agents=False, budget_minutes=60, max_attempts=3)  # fmt: skip
        db.add(review)
        db.flush()
        good = [Session(value=value) for _ in range(6)] if value is not None else []
        taken = [*good, Session(value=9.0, void=True, reason="busy")]
        db.add(
            MeasurementRow(
                review_id=review.id, repo_id=repo_id, name="bench", unit="s", machine_key=key, commit=f"c{day}", at=at,
                sessions=[one.model_dump(mode="json") for one in taken], median=value,
                spread=0.002 if value is not None else None, contaminated=1,
            )
        )  # fmt: skip
        for name, verdict in beside.items():
            db.add(
                ComparisonRow(
                    review_id=review.id, repo_id=repo_id, name=name, kind="script", unit="s", machine_key=key,
                    base_commit="a", head_commit="b", same_code=True, at=at, verdict=verdict, void=0, body={},
                )
            )  # fmt: skip
        return review.id


def test_a_series_is_one_name_on_one_machine_key_oldest_first(shop: Workshop, repo_id: UUID) -> None:
    for day, value in enumerate([1.0, 1.01, None, 0.99]):
        night(shop, repo_id, day, value)
    night(shop, repo_id, 4, 2.0, key="new kernel")
    first, second = histories.series(shop, repo_id)
    assert [point.median for point in first.points] == [1.0, 1.01, None, 0.99]
    assert (first.points[0].good, first.points[0].void) == (6, 1)
    assert (first.points[2].good, first.points[2].void) == (0, 1)
    assert (second.machine_key, len(second.points)) == ("new kernel", 1)
    assert histories.named((first, second), "bench") == (first, second)
    assert histories.steps(shop, repo_id) == ()  # another machine is no step


def test_a_step_lies_between_the_commits_of_two_nights(shop: Workshop, repo_id: UUID) -> None:
    for day, value in enumerate([1.0, 1.01, 0.99, 1.3, 1.31, 1.29]):
        night(shop, repo_id, day, value)
    (step,) = histories.steps(shop, repo_id)
    assert (step.point.from_commit, step.point.to_commit, step.culprit) == ("c2", "c3", "")
    assert step.point.ratio == pytest.approx(1.3, rel=0.02)


def test_the_commit_that_a_bisection_named_stands_at_the_series_own_step(shop: Workshop, repo_id: UUID) -> None:
    for day, value in enumerate([1.0, 1.01, 0.99, 1.3, 1.31, 1.29]):
        night(shop, repo_id, day, value)
    at = START + timedelta(days=3)
    point = ChangePoint("bench", "s", "k", "c2b", "c2c", at, at, 1.0, 1.3, 1.3, 1)
    confirmed(shop, repo_id, point)
    (step,) = histories.steps(shop, repo_id)
    assert (step.point.from_commit, step.point.to_commit, step.culprit) == ("c2b", "c2c", "c2c")
    assert step.point.points_after == 3


def test_what_a_review_confirmed_last_night_is_a_step_before_the_series_shows_it(shop: Workshop, repo_id: UUID) -> None:
    night(shop, repo_id, 0, 1.0)
    night(shop, repo_id, 1, 1.3)
    at = START + timedelta(days=1)
    confirmed(shop, repo_id, ChangePoint("bench", "s", "k", "c0", "c1", at, at, 1.0, 1.3, 1.3, 1))
    (step,) = histories.steps(shop, repo_id)
    assert (step.culprit, step.point.to_at) == ("c1", at)


def test_a_step_confirmed_earlier_stays_when_a_later_one_is(shop: Workshop, repo_id: UUID) -> None:
    for day in (1, 8):
        at = START + timedelta(days=day)
        confirmed(shop, repo_id, ChangePoint("bench", "s", "k", f"c{day}a", f"c{day}b", at, at, 1.0, 1.3, 1.3, 1))
    assert [step.culprit for step in histories.steps(shop, repo_id)] == ["c8b", "c1b"]
    for day, value in enumerate([1.0, 1.01, 0.99, 1.0, 1.3, 1.31, 1.29, 1.3, 1.7, 1.69, 1.71]):
        night(shop, repo_id, day, value)
    found = [(step.culprit, step.point.to_at) for step in histories.steps(shop, repo_id)]
    days = [START + timedelta(days=day) for day in (8, 4, 1)]
    assert found == list(zip(["c8b", "", "c1b"], days, strict=True))


def test_a_step_found_long_after_it_came_is_known_by_its_own_nights(shop: Workshop, repo_id: UUID) -> None:
    for day, value in enumerate([1.0, 1.01, 0.99, 1.3, 1.31, 1.29]):
        night(shop, repo_id, day, value)
    nights = (START + timedelta(days=2), START + timedelta(days=3))
    confirmed(shop, repo_id, ChangePoint("bench", "s", "k", "c2a", "c2b", *nights, 1.0, 1.3, 1.3, 3), found=9)
    (step,) = histories.steps(shop, repo_id)
    assert (step.culprit, step.point.to_at) == ("c2b", nights[1])


def confirmed(shop: Workshop, repo_id: UUID, point: ChangePoint, *, found: int | None = None) -> None:
    """A row of it, made on that day; on the night of the step if none is given."""
    at = point.to_at if found is None else START + timedelta(days=found)
    search = Bisection(point.name, point.from_commit, point.to_commit, culprit=point.to_commit)
    with shop.sessions.begin() as db:
        db.add(
            ChangePointRow(
                repo_id=repo_id, name=point.name, machine_key=point.machine_key, from_commit=point.from_commit,
                to_commit=point.to_commit, found_at=at, ratio=point.ratio, culprit=search.culprit,
                body=CHANGE_POINT.dump_python(point, mode="json"), bisection=BISECTION.dump_python(search, mode="json"),
            )
        )  # fmt: skip


def test_our_own_false_alarms_are_counted_over_the_last_thirty_nights(shop: Workshop, repo_id: UUID) -> None:
    assert histories.false_alarms(shop).rate is None
    now = shop.clock()
    today = (now - START).days
    night(shop, repo_id, today - 40, 1.0, a=Verdict.SLOWER)  # too long ago
    night(shop, repo_id, today - 2, 1.0, a=Verdict.NO_CHANGE, b=Verdict.NO_CHANGE, c=Verdict.CONTAMINATED)
    night(shop, repo_id, today - 1, 1.0, a=Verdict.NO_CHANGE, b=Verdict.FASTER, c=Verdict.INCONCLUSIVE)
    found = histories.false_alarms(shop)
    assert (found.pairs, found.alarms, found.without, found.rate) == (4, 1, 2, 0.25)
