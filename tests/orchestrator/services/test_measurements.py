"""What pages and files get of a repo's measurements."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import event

from orchestrator.measure.records import ChangePoint, Grown, Why
from orchestrator.services import measurements
from orchestrator.services.errors import UnknownRepo, UnknownReview
from orchestrator.services.measurements import NoProfile, UnknownBenchmark
from orchestrator.services.workshop import Workshop
from orchestrator.store.repos import Repo
from orchestrator.store.reviews import Review, ReviewState
from orchestrator.store.session import Sessions
from review_agents.records import Session, Verdict
from tests.factories import (
    NOON,
    fill,
    make_compared,
    make_measured,
    make_measurement,
    make_repo,
    make_review,
    make_shop,
    make_step_found,
)


@pytest.fixture
def shop(sessions: Sessions, tmp_path: Path) -> Workshop:
    return make_shop(sessions, tmp_path)


@pytest.fixture
def repo(shop: Workshop) -> Repo:
    with shop.sessions.begin() as db:
        return make_repo(db, name="tool")


def night(shop: Workshop, repo: Repo, day: int, value: float, *, key: str = "k", **around: object) -> Review:
    """A review that measured `bench`, with what was around it."""
    with shop.sessions.begin() as db:
        review = make_review(
            db, repo, state=ReviewState.DONE, created_at=NOON + timedelta(days=day), commit=f"{day:040x}"
        )
        one = make_measurement(*(value * (1 + at / 1000) for at in range(6)), name="bench")
        make_measured(db, review, one, machine_key=key, surroundings=around or None)
        return review


def compare(shop: Workshop, review: Review, *given: object, **changed: object) -> None:
    with shop.sessions.begin() as db:
        make_compared(db, review, *given, **changed)  # type: ignore[arg-type]


# A repo -------------------------------------------------------------------------------------


def test_a_benchmark_has_one_line_a_machine_key_and_says_what_changed_between_them(shop: Workshop, repo: Repo) -> None:
    for day in range(2):
        night(shop, repo, day, 1.0, key="old", machine="m", kernel="6.1", python="3.13.0", benchmark="aa")
    night(shop, repo, 2, 1.5, key="new", machine="m", kernel="6.12", python="3.13.0", benchmark="bb")
    (one,) = measurements.get(shop, repo.id).benchmarks
    assert [(line.machine_key, len(line.nights)) for line in one.lines] == [("old", 2), ("new", 1)]
    assert [line.changed for line in one.lines] == [(), ("kernel: 6.1 → 6.12", "the benchmark itself")]
    assert one.steps == ()  # numbers under two keys are not comparable
    assert one.latest.median == pytest.approx(1.5, rel=0.01) and one.nights == 3


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ("m/bwrap/3.13.0", "m/bwrap/3.13.1", ("3.13.0 → 3.13.1",)),
        ("m/bwrap", "m/bwrap/cpus 1", ("now cpus 1",)),
        ("m/bwrap/runsc/cpus 1", "m/bwrap", ("no longer runsc", "no longer cpus 1")),
    ],
)
def test_of_old_measurements_the_parts_of_the_key_say_what_changed(
    before: str, now: str, said: tuple[str, ...]
) -> None:
    assert measurements.differences((before, None), (now, {"kernel": "6.1"})) == said


def test_a_step_stands_with_its_benchmark_and_in_the_list_of_the_repo(shop: Workshop, repo: Repo) -> None:
    for day, value in enumerate([1.0, 1.01, 0.99, 1.3, 1.31, 1.29]):
        night(shop, repo, day, value)
    found = measurements.get(shop, repo.id)
    (step,) = found.steps
    assert (step.point.from_commit, step.point.to_commit) == (f"{2:040x}", f"{3:040x}")
    assert found.benchmarks[0].steps == (step,)


def test_a_bisection_that_named_no_commit_says_why(shop: Workshop, repo: Repo) -> None:
    night(shop, repo, 0, 1.0)
    point = ChangePoint("bench", "s", "k", "a", "b", NOON, NOON + timedelta(days=1), 1.0, 1.3, 1.3, 1)
    with shop.sessions.begin() as db:
        make_step_found(db, repo, point, bisection={"problem": "no commit between could be built"})
    (step,) = measurements.get(shop, repo.id).steps
    assert (step.culprit, step.problem) == ("", "no commit between could be built")


def test_verdicts_are_those_of_the_last_review_that_compared_anything(shop: Workshop, repo: Repo) -> None:
    compare(shop, night(shop, repo, 0, 1.0), "bench", 1.3)
    compare(shop, night(shop, repo, 1, 1.0), "bench", 1.0)
    last = night(shop, repo, 2, 1.0)
    compare(shop, last, "bench", 0.8)
    compare(shop, last, "other", None, void=4)
    compare(shop, last, "again", 1.0, same_code=True)
    night(shop, repo, 3, 1.0)  # compared nothing
    found = measurements.get(shop, repo.id)
    assert {one.review_id for one in found.compared} == {last.id}
    assert found.verdicts == {Verdict.FASTER: 1, Verdict.CONTAMINATED: 1}
    by_name = {one.name: one for one in found.compared}
    assert (by_name["bench"].sessions, by_name["bench"].confirmed, by_name["bench"].base) == (10, True, 0.1)
    assert (by_name["other"].ratio, by_name["other"].base, by_name["other"].void) == (None, None, 4)
    assert [one.name for one in measurements.by_weight(found.compared)] == ["other", "bench", "again"]
    assert measurements.of_review(shop, last.id) == found.compared


def test_only_those_that_moved_or_have_the_words_are_shown(shop: Workshop, repo: Repo) -> None:
    with shop.sessions.begin() as db:
        review = make_review(db, repo, state=ReviewState.DONE)
        for name in ("import tool", "tool --help", "parse"):
            make_measured(db, review, make_measurement(name=name))
        make_compared(db, review, "parse", 1.2)
        make_compared(db, review, "import tool", 1.0)
    whole = measurements.get(shop, repo.id)

    def names(**chosen: object) -> list[str]:
        return [one.name for one in measurements.only(whole, **chosen).benchmarks]  # type: ignore[arg-type]

    assert names() == ["import tool", "parse", "tool --help"]
    assert names(words="TOOL") == ["import tool", "tool --help"]
    assert names(words="tool import") == ["import tool"]
    assert names(moved=True) == ["parse"]


def test_a_repo_without_measurements_is_empty_and_an_unknown_one_an_error(shop: Workshop, repo: Repo) -> None:
    found = measurements.get(shop, repo.id)
    assert (found.benchmarks, found.compared, found.complete, found.repo_name) == ((), (), True, "tool")
    for call in (measurements.get, measurements.of_review):
        with pytest.raises((UnknownRepo, UnknownReview)):
            call(shop, uuid4())


def test_more_than_a_page_can_hold_is_said_to_be_incomplete(
    shop: Workshop, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(3):
        night(shop, repo, day, 1.0)
    monkeypatch.setattr(measurements, "NEWEST", 2)
    found = measurements.get(shop, repo.id)
    assert not found.complete and found.benchmarks[0].nights == 2


def test_the_number_of_queries_does_not_grow_with_benchmarks_or_nights(shop: Workshop) -> None:
    asked: list[str] = []
    event.listen(shop.sessions.engine, "before_cursor_execute", lambda *given: asked.append(given[2]))

    def queries(reviews: int, each: int) -> tuple[int, int]:
        ids = fill(shop.sessions, repos=1, reviews=reviews, measurements_each=each)
        with shop.sessions.begin() as db:
            review = db.get_one(Review, ids[-1])
            for number in range(each):
                make_compared(db, review, f"series {number}", 1.2)
        asked.clear()
        found = measurements.get(shop, review.repo_id)
        assert (len(found.benchmarks), len(found.compared)) == (each, each)
        assert not any("measurements.sessions," in statement for statement in asked)  # counted, not read
        return len(asked), len(found.steps)

    assert queries(5, 2) == queries(30, 40)


# One benchmark ------------------------------------------------------------------------------


def test_one_benchmark_comes_with_its_sessions_and_its_verdicts_newest_first(shop: Workshop, repo: Repo) -> None:
    reviews = [night(shop, repo, day, 1.0) for day in range(3)]
    for review, ratio in zip(reviews, (1.0, 1.2, 0.9), strict=True):
        compare(shop, review, "bench", ratio)
    with shop.sessions.begin() as db:
        make_measured(db, reviews[-1], make_measurement(name="other"))
    found = measurements.benchmark(shop, repo.id, "bench")
    assert found.benchmark.nights == 3 and found.complete
    assert [one.verdict for one in found.compared] == [Verdict.FASTER, Verdict.SLOWER, Verdict.NO_CHANGE]
    last = found.benchmark.latest
    assert last.id is not None and found.sessions[last.id] == pytest.approx([1.0, 1.001, 1.002, 1.003, 1.004, 1.005])


def test_void_sessions_are_counted_but_not_among_the_values(shop: Workshop, repo: Repo) -> None:
    with shop.sessions.begin() as db:
        review = make_review(db, repo, state=ReviewState.DONE)
        taken = (Session(value=1.0), Session(value=9.0, void=True, reason="busy"))
        make_measured(db, review, make_measurement(name="bench", sessions=taken))
    found = measurements.benchmark(shop, repo.id, "bench")
    (one,) = found.benchmark.lines[0].nights
    assert (one.good, one.void, found.sessions) == (1, 1, {one.id: (1.0,)})


def test_beside_a_step_stands_what_was_installed_in_another_version(shop: Workshop, repo: Repo) -> None:
    for day, value in enumerate([1.0, 1.01, 0.99, 1.3, 1.31, 1.29]):
        versions = {"tomli": "2.3" if day > 2 else "2.2", "idna": "3"}
        night(shop, repo, day, value, dependencies=versions)
    (beside,) = measurements.benchmark(shop, repo.id, "bench").steps
    assert beside.dependencies == {"tomli": ("2.2", "2.3")}


def test_a_very_long_name_leads_to_its_steps(shop: Workshop, repo: Repo) -> None:
    name = "bench " * 200
    with shop.sessions.begin() as db:
        make_measured(db, make_review(db, repo, state=ReviewState.DONE), make_measurement(name=name), machine_key="k")
        point = ChangePoint(name, "s", "k", "a", "b", NOON, NOON + timedelta(days=1), 1.0, 1.3, 1.3, 1)
        make_step_found(db, repo, point)
    assert len(measurements.benchmark(shop, repo.id, name).steps) == 1
    (one,) = measurements.get(shop, repo.id).benchmarks
    assert len(one.steps) == 1 and len(measurements.benchmark(shop, repo.id, one.name).steps) == 1


def test_a_benchmark_that_nobody_measured_is_unknown(shop: Workshop, repo: Repo) -> None:
    with pytest.raises(UnknownBenchmark, match="There is no benchmark bench"):
        measurements.benchmark(shop, repo.id, "bench")


# Profiles -----------------------------------------------------------------------------------

WHY = Why(
    (Grown("scan", "tool/lexer.py", 3, 0.05, 0.15),),
    {"/base/lib/site-packages/tool/a.py:1:main": 1.0, "/base/lib/site-packages/tool/a.py:1:main;b.py:9:scan": 1.0},
    {"/venv/lib/site-packages/tool/a.py:1:main": 1.0, "/venv/lib/site-packages/tool/a.py:1:main;b.py:12:scan": 3.0},
    {"tomli": ("2.2", "2.3")},
)


def test_a_confirmed_change_has_a_profile_in_the_figures_own_unit(shop: Workshop, repo: Repo) -> None:
    review = night(shop, repo, 0, 1.0)
    compare(shop, review, "bench", 2.0, why=WHY)
    (told,) = measurements.of_review(shop, review.id)
    assert told.profiled and told.dependencies == {"tomli": ("2.2", "2.3")}
    assert [(one.function, one.head) for one in told.grew] == [("scan", 0.15)]
    found = measurements.profile(shop, review.id, "bench")
    assert (found.base, found.head, found.verdict) == (0.1, 0.2, Verdict.SLOWER)
    assert [(one.function, one.file, one.line, round(one.base, 9), round(one.head, 9)) for one in found.functions] == [
        ("scan", "b.py", 12, 0.05, 0.15),
        ("main", "tool/a.py", 1, 0.05, 0.05),
    ]
    assert measurements.collapsed(found.head_stacks) == (
        "main (tool/a.py) 1000000\nmain (tool/a.py);scan (b.py) 3000000\n"
    )


def test_of_a_benchmark_with_several_figures_functions_have_shares_and_no_part_of_one(
    shop: Workshop, repo: Repo
) -> None:
    review = night(shop, repo, 0, 1.0)
    compare(
        shop, review, "bench: scan", 2.0, why=replace(WHY, grown=(Grown("scan", "b.py", 3, 0.5, 0.75),), shares=True)
    )
    (told,) = measurements.of_review(shop, review.id)
    assert told.shares and [(one.base, one.head) for one in told.grew] == [(0.5, 0.75)]
    found = measurements.profile(shop, review.id, "bench: scan")
    assert (found.base, found.head, found.unit, found.parts_unit) == (0.1, 0.2, "s", "share")
    assert [(one.function, one.base, one.head) for one in found.functions] == [
        ("scan", 0.5, 0.75), ("main", 0.5, 0.25),
    ]  # fmt: skip


def test_a_page_asks_for_the_reasons_of_the_verdicts_that_it_shows(shop: Workshop, repo: Repo) -> None:
    review = night(shop, repo, 0, 1.0)
    for name, ratio in (("steady", 1.0), ("slow", 1.5), ("slower", 2.0)):
        compare(shop, review, name, ratio)
    every = measurements.by_weight(measurements.get(shop, repo.id).compared)
    some = measurements.by_weight(measurements.get(shop, repo.id, explained=1).compared)
    assert [one.name for one in some] == [one.name for one in every] == ["slower", "slow", "steady"]
    assert some[0] == every[0] and every[0].reason and every[0].base
    assert [(one.reason, one.base, one.verdict, one.ratio) for one in some[1:]] == [
        ("", None, one.verdict, one.ratio) for one in every[1:]
    ]


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/venv/plain/lib/python3.13/site-packages/tool/core.py", "tool/core.py"),
        ("/usr/lib/python3/dist-packages/yaml/nodes.py", "yaml/nodes.py"),
        ("/opt/python/lib/python3.13/typing.py", "typing.py"),
        ("/job/repo/src/tool/core.py", "src/tool/core.py"),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
    ],
)
def test_files_are_named_without_where_they_were_installed(path: str, shown: str) -> None:
    assert measurements.shortened(path) == shown


@pytest.mark.parametrize("why", [None, Why(problem="no profile was written")])
def test_without_stacks_there_is_no_profile(shop: Workshop, repo: Repo, why: Why | None) -> None:
    review = night(shop, repo, 0, 1.0)
    compare(shop, review, "bench", 1.2, why=why)
    with pytest.raises(NoProfile):
        measurements.profile(shop, review.id, "bench")
    with pytest.raises(NoProfile):
        measurements.profile(shop, review.id, "other")
