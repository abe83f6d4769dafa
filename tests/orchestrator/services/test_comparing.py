from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator.services.comparing import compare
from orchestrator.services.errors import BadInput, UnknownReview
from orchestrator.services.workshop import Workshop
from orchestrator.store.findings import FindingRow
from orchestrator.store.reviews import Review, ReviewState
from orchestrator.store.session import Sessions
from review_agents.records import Lifecycle, ProbeState
from tests.factories import (
    NOON,
    make_finding,
    make_measured,
    make_measurement,
    make_probe_result,
    make_repo,
    make_review,
    make_shop,
    make_sighting,
    make_step,
)


@pytest.fixture
def shop(each_sessions: Sessions, tmp_path: Path) -> Workshop:
    return make_shop(each_sessions, tmp_path)


@pytest.fixture
def three(shop: Workshop) -> list[Review]:
    """Three reviews of one repo, a day apart."""
    with shop.sessions.begin() as db:
        repo = make_repo(db)
        return [
            make_review(db, repo, state=ReviewState.DONE, created_at=NOON + timedelta(days=day)) for day in range(3)
        ]


def seen(db: Any, finding: FindingRow, *reviews: tuple[Review, Lifecycle]) -> None:
    for review, lifecycle in reviews:
        make_sighting(db, review, finding, lifecycle=lifecycle)


def test_findings_have_appeared_stayed_been_fixed_or_were_not_seen(shop: Workshop, three: list[Review]) -> None:
    one, between, other = three
    with shop.sessions.begin() as db:
        stayed, fixed, fixed_between, vanished, back, appeared, flash = (make_finding(db, one) for _ in range(7))
        seen(db, stayed, (one, Lifecycle.NEW), (other, Lifecycle.PERSISTING))
        seen(db, fixed, (one, Lifecycle.NEW), (other, Lifecycle.FIXED))
        seen(db, fixed_between, (one, Lifecycle.NEW), (between, Lifecycle.FIXED))
        seen(db, vanished, (one, Lifecycle.NEW), (between, Lifecycle.PERSISTING))
        seen(db, back, (one, Lifecycle.FIXED), (other, Lifecycle.REGRESSED))
        seen(db, appeared, (other, Lifecycle.NEW))
        seen(db, flash, (between, Lifecycle.NEW), (other, Lifecycle.FIXED))
    found = compare(shop, other.id, one.id)
    assert (found.one.id, found.other.id) == (one.id, other.id)
    assert {row.id for row in found.stayed} == {stayed.id}
    assert {row.id for row in found.fixed} == {fixed.id, fixed_between.id}
    assert {row.id for row in found.not_seen} == {vanished.id}
    assert {row.id for row in found.appeared} == {appeared.id}
    assert {row.id for row in found.regressed} == {back.id}


def test_what_was_there_before_comes_back_as_what_it_is(shop: Workshop, three: list[Review]) -> None:
    before, one, other = three
    with shop.sessions.begin() as db:
        ignored, late, back, unseen = (make_finding(db, before) for _ in range(4))
        seen(db, ignored, (one, Lifecycle.PERSISTING), (other, Lifecycle.IGNORED))
        make_sighting(db, other, late, lifecycle=Lifecycle.NEW, seen_late=True)
        seen(db, back, (before, Lifecycle.FIXED), (other, Lifecycle.PERSISTING))
        seen(db, unseen, (before, Lifecycle.NEW), (other, Lifecycle.PERSISTING))
    found = compare(shop, one.id, other.id)
    groups = {
        name: [row.id for row in getattr(found, name)] for name in found.__slots__ if "ed" in name or "late" in name
    }
    assert (groups["ignored"], groups["seen_late"], groups["regressed"]) == ([ignored.id], [late.id], [back.id])
    assert groups["appeared"] == [] and groups["stayed"] == [unseen.id]


def test_probes_that_ended_differently_are_named(shop: Workshop, three: list[Review]) -> None:
    one, _, other = three
    with shop.sessions.begin() as db:
        for review, state in ((one, ProbeState.PASSED), (other, ProbeState.FAILED)):
            make_step(db, review, "probe:same")
            result = make_probe_result("tests", state=state).model_dump(mode="json")
            make_step(db, review, "probe:tests", result=result)
        make_step(db, other, "probe:more")
    found = {probe.probe: probe for probe in compare(shop, one.id, other.id).probes}
    assert set(found) == {"tests", "more"}
    assert found["more"].one is None


def test_medians_are_compared_only_on_one_machine(shop: Workshop, three: list[Review]) -> None:
    one, _, other = three
    with shop.sessions.begin() as db:
        make_measured(db, one, make_measurement(2.0, name="same"))
        make_measured(db, other, make_measurement(3.0, name="same"))
        make_measured(db, one, make_measurement(2.0, name="moved"))
        make_measured(db, other, make_measurement(3.0, name="moved"), machine_key="another")
        make_measured(db, one, make_measurement(2.0, name="void"))
        make_measured(db, other, make_measurement(name="void"), median=None)
        make_measured(db, one, make_measurement(2.0, name="gone"))
    found = {row.name: row for row in compare(shop, one.id, other.id).measurements}
    assert {name: (row.ratio, row.same_machine) for name, row in found.items()} == {
        "same": (1.5, True),
        "moved": (None, False),
        "void": (None, True),
        "gone": (None, False),
    }


def test_two_different_reviews_of_one_repo_are_needed(shop: Workshop, three: list[Review]) -> None:
    with shop.sessions.begin() as db:
        foreign = make_review(db, state=ReviewState.DONE)
    with pytest.raises(BadInput, match="same review"):
        compare(shop, three[0].id, three[0].id)
    with pytest.raises(BadInput, match="two of one repo"):
        compare(shop, three[0].id, foreign.id)
    with pytest.raises(UnknownReview):
        compare(shop, three[0].id, foreign.repo_id)
