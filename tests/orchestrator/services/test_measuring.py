"""Base against head in real reviews of a repo whose history has one slow commit, in bubblewrap boxes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import delete

from orchestrator.measure.records import Comparison, Metric, Unit
from orchestrator.services import measuring, reviews, submitting, working
from orchestrator.services.measuring import STEP
from orchestrator.services.nights import COMPARISON
from orchestrator.services.submitting import Submission
from orchestrator.services.views import ReviewPage, ReviewState
from orchestrator.services.workshop import Workshop
from orchestrator.store import comparisons, measurements, migrate
from orchestrator.store.comparisons import ChangePointRow
from orchestrator.store.measurements import MeasurementRow
from orchestrator.store.reviews import Review
from orchestrator.store.session import Sessions, open_sessions
from review_agents.records import Kind, Lifecycle, Session, Verdict, VerificationState
from tests.support.boxes import bubblewrap, git, here
from tests.support.measured_repo import PLAIN, SLOW, history, measuring_shop

pytestmark = pytest.mark.slow

VERSIONS = [
    ("First", PLAIN),
    ("Say what walking is", f'"""Walks."""\n\n{PLAIN}'),
    ("Check every step with care", f'"""Walks."""\n\n{SLOW}'),
    ("Mention tortoises", f'"""Walks like a tortoise."""\n\n{SLOW}'),
]


@dataclass
class Told:
    """Reviews of the first and then the last commit, and of the last once more."""

    shop: Workshop
    commits: list[str]
    pages: list[ReviewPage]

    def compared(self, at: int) -> dict[str, Comparison]:
        with self.shop.sessions.reading() as db:
            rows = comparisons.of_review(db, self.pages[at].row.id)
            return {row.name: COMPARISON.validate_python(row.body) for row in rows}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    folder = tmp_path_factory.mktemp("measuring")
    settings = here(
        data=folder / "data", host_lock=folder / "lock", sandbox="bubblewrap", measure_patience_s=0, compare_minutes=3
    )
    sandbox = bubblewrap(settings)
    sessions = opened(settings.database)
    shop = measuring_shop(sessions, settings, sandbox)
    commits = history(folder / "repo", VERSIONS)
    pages = [reviewed(shop, folder / "repo", commit) for commit in (commits[0], commits[-1], commits[-1])]
    yield Told(shop, commits, pages)
    sessions.engine.dispose()


def opened(database: str) -> Sessions:
    migrate.upgrade(database)
    return open_sessions(database)


def reviewed(shop: Workshop, repo: Path, commit: str) -> ReviewPage:
    """The branch stays the ref: reviews of one repo and ref are one history."""
    git(repo, "checkout", "-q", "-B", "main", commit)
    review_id = submitting.submit(shop, Submission(str(repo), agents=False, force=True, from_cli=True))
    working.do_one(shop, review_id)
    page = reviews.get(shop, review_id)
    assert page.row.state is ReviewState.DONE, page.row.error
    return page


def test_the_first_review_has_nothing_to_be_held_against(told: Told) -> None:
    assert STEP not in [step.name for step in told.pages[0].steps]
    assert told.compared(0) == {}


def test_a_slower_head_is_confirmed_and_the_slow_commit_named_and_nothing_else(told: Told) -> None:
    compared = told.compared(1)
    walk = compared["walk: walk"]
    assert walk.outcome.verdict is Verdict.SLOWER
    assert walk.outcome.best is not None and walk.outcome.best.ratio > 2
    assert (walk.base_commit, walk.head_commit) == (told.commits[0], told.commits[-1])
    moved = {name: one.outcome.best.ratio for name, one in compared.items() if one.outcome.best is not None}
    assert [name for name, ratio in moved.items() if not 0.67 < ratio < 1.5] == ["walk: walk"], moved  # no gate here
    with told.shop.sessions.reading() as db:
        (step,) = comparisons.change_points(db, told.pages[1].row.repo_id)
        assert step.culprit == told.commits[2]
        assert (step.from_commit, step.to_commit) == (told.commits[1], told.commits[2])
        assert step.bisection["tried"]


def test_the_commits_between_were_really_built_and_told_apart_by_their_code(told: Told) -> None:
    walk = told.compared(1)["walk: walk"]
    assert walk.base_ran is not None and walk.head_ran is not None
    assert walk.base_ran.matches and walk.head_ran.matches and not walk.same_code
    assert walk.base_ran.digest != walk.head_ran.digest
    assert walk.head_ran.version == "1.0" and walk.head_ran.import_path.endswith("tortoise/__init__.py")


def test_the_slowdown_is_a_proved_finding_with_its_figures_commit_and_function(told: Told) -> None:
    (finding,) = [one for one in told.pages[1].findings if one.kind is Kind.PERFORMANCE]
    assert finding.verification_state is VerificationState.CONFIRMED, finding.verification_reason
    assert "Check every step with care" in finding.description and told.commits[2][:12] in finding.description
    assert "careful (tortoise/__init__.py:" in finding.description
    assert finding.places[0].file == "bench.py"
    assert {place.symbol for place in finding.places[1:]} & {"careful", "walk", "<genexpr>"}


def test_the_profile_s_difference_names_what_grew(told: Told) -> None:
    why = told.compared(1)["walk: walk"].why
    assert why is not None and why.problem == ""
    assert why.grown[0].function == "careful" and why.grown[0].base_s == 0
    assert any("careful" in stack for stack in why.head_stacks) and not any("careful" in s for s in why.base_stacks)


def test_a_profile_of_time_explains_no_memory(told: Told) -> None:
    why = told.compared(1)["walk: walk"].why
    assert measuring.why_of(why, Metric("walk", Unit.SECONDS, 0.001)) is why
    of_memory = measuring.why_of(why, Metric("peak memory", Unit.BYTES, 1.0))
    assert of_memory is not None and not (of_memory.grown or of_memory.base_stacks or of_memory.head_stacks)


def test_the_same_commit_again_is_an_a_a_pair_that_raises_no_alarm(told: Told) -> None:
    compared = told.compared(2)
    assert compared and all(one.same_code for one in compared.values())
    assert not any(one.outcome.verdict in (Verdict.SLOWER, Verdict.FASTER) for one in compared.values())
    (finding,) = [one for one in told.pages[2].findings if one.kind is Kind.PERFORMANCE]
    assert finding.lifecycle is Lifecycle.PERSISTING  # by its own reproduction, which holds it against a limit


def test_the_head_s_sessions_are_a_night_of_the_series_with_what_surrounded_them(told: Told) -> None:
    with told.shop.sessions.reading() as db:
        rows = {row.name: row for row in measurements.of_review(db, told.pages[1].row.id)}
    night = rows["walk: walk"]
    assert night.unit == "s" and night.median and night.verdict["verdict"] == "slower"
    assert night.surroundings["cpu"] and night.surroundings["kernel"] and night.surroundings["benchmark"]
    assert night.machine_key.startswith(told.shop.machine)
    assert rows["import tortoise: import"].median
    memory = rows["walk: peak memory"]
    assert memory.unit == "bytes" and memory.median and memory.median > 1 << 20


def test_nothing_of_the_base_or_the_commits_between_is_left(told: Told) -> None:
    for page in told.pages:
        for name in ("base", "middle", "good"):
            assert not told.shop.sandbox.prepared(f"{page.row.id}-{name}")  # type: ignore[union-attr]


def test_a_step_that_only_the_nights_show_is_traced_to_its_commit_too(told: Told) -> None:
    """As after a night whose verdict was contaminated: the reviews that follow see base and head alike."""
    repo_id, start = told.pages[0].row.repo_id, datetime(2026, 1, 1, tzinfo=UTC)
    with told.shop.sessions.begin() as db:
        db.execute(delete(ChangePointRow))
        for day, (at, value) in enumerate([(0, 1.0), (0, 1.01), (-1, 8.0), (-1, 8.1)]):
            review = Review(
                repo_id=repo_id, ref="old", commit=told.commits[at], state=ReviewState.DONE, requested_by="schedule",
                created_at=start + timedelta(days=day), agents=False, budget_minutes=60, max_attempts=3,
            )  # fmt: skip
            db.add(review)
            db.flush()
            sessions = [Session(value=value).model_dump(mode="json")] * 6
            db.add(
                MeasurementRow(
                    review_id=review.id, repo_id=repo_id, name="walk: walk", unit="s", machine_key="another machine",
                    commit=told.commits[at], at=review.created_at, sessions=sessions, median=value, spread=0.001,
                )
            )  # fmt: skip
    page = reviewed(told.shop, Path(told.pages[0].repo_url), told.commits[-1])
    with told.shop.sessions.reading() as db:
        (step,) = comparisons.change_points(db, repo_id)
    assert (step.culprit, step.machine_key) == (told.commits[2], "another machine")
    assert step.ratio > 7 and len(step.bisection["tried"]) == 3  # two between, and the proof against its parent
    for name in ("from", "to"):
        assert not told.shop.sandbox.prepared(f"{page.row.id}-{name}")  # type: ignore[union-attr]


def test_without_time_nothing_is_compared_and_the_review_is_as_good(told: Told, tmp_path: Path) -> None:
    shop = replace(told.shop, settings=told.shop.settings.model_copy(update={"compare_minutes": 0.0}))
    history(tmp_path / "other", VERSIONS[:2])
    page = reviewed(shop, tmp_path / "other", "main")
    again = reviewed(shop, tmp_path / "other", "main")
    assert STEP not in [step.name for step in (*page.steps, *again.steps)]
