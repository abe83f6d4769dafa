import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import StatementError

from orchestrator.store.base import NAME_CHARS, UNSTORABLE, short, storable, storable_json
from orchestrator.store.reviews import Review
from orchestrator.store.session import Sessions
from orchestrator.store.steps import Step
from tests.factories import NOON, make_measured, make_measurement, make_repo, make_review, make_step

AWKWARD = [
    "NUL\x00inside",
    "lone \ud800 surrogate",
    "\udcff from a file name",
    "emoji 👩‍🚀 and 𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    "controls \x01\x1b[31m\x7f",
    "line\r\nends\u2028\u2029",
    "quotes ' \" ` \\ %s :name ?",
    "\ufeff\ufffe\uffff",
    "",
    " ",
]


def roundtrip(sessions: Sessions, text: str) -> Step:
    with sessions.begin() as db:
        step = make_step(db, make_review(db), summary=text, result={"probe": text, text: [text, {"a": text}]})
        step_id = step.id
    with sessions.reading() as db:
        found = db.get_one(Step, step_id)
        _ = found.result
    return found


@pytest.mark.parametrize("text", AWKWARD)
def test_any_text_can_be_stored_and_comes_back_readable(each_sessions: Sessions, text: str) -> None:
    found = roundtrip(each_sessions, text)
    expected = storable(text)
    assert found.summary == expected
    assert found.result == {"probe": expected, expected: [expected, {"a": expected}]}
    assert (expected == text) == (UNSTORABLE.search(text) is None)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(), max_size=50))
def test_no_text_is_refused_by_either_database(each_sessions: Sessions, text: str) -> None:
    assert roundtrip(each_sessions, text).summary == storable(text)


def test_a_text_of_three_million_characters_is_kept_whole(each_sessions: Sessions) -> None:
    text = "ünïcode " * 400_000
    assert roundtrip(each_sessions, text).summary == text


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=10),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    )
)
def test_any_json_is_stored_with_what_no_database_takes_replaced(each_sessions: Sessions, value: Any) -> None:
    with each_sessions.begin() as db:
        step_id = make_step(db, make_review(db), result={"value": value}).id
    with each_sessions.reading() as db:
        assert db.get_one(Step, step_id).result == {"value": storable_json(value)}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_has_not_become_null(each_sessions: Sessions, value: float) -> None:
    with each_sessions.begin() as db:
        step_id = make_step(db, make_review(db), result={"value": value}).id
    with each_sessions.reading() as db:
        assert db.get_one(Step, step_id).result == {"value": None}


def test_no_result_is_no_result_and_not_the_json_null(each_sessions: Sessions) -> None:
    with each_sessions.begin() as db:
        make_step(db, make_review(db), "prepare", result=None)
    with each_sessions.reading() as db:
        assert db.query(Step).where(Step.result.is_(None)).count() == 1


# Times --------------------------------------------------------------------------------------


def test_times_come_back_in_utc_whatever_zone_they_went_in_with(each_sessions: Sessions) -> None:
    local = datetime(2026, 11, 30, 14, 0, 0, 123456, tzinfo=timezone(timedelta(hours=5, minutes=45)))
    with each_sessions.begin() as db:
        review_id = make_review(db, created_at=local).id
    with each_sessions.reading() as db:
        found = db.get_one(Review, review_id).created_at
    assert found == local and found.tzinfo is UTC


def test_a_time_without_zone_is_refused(each_sessions: Sessions) -> None:
    with pytest.raises(StatementError, match="no time zone"), each_sessions.begin() as db:
        make_repo(db, created_at=datetime(2026, 11, 30))


def test_times_compare_in_the_database_as_they_do_here(each_sessions: Sessions) -> None:
    east = timezone(timedelta(hours=14))
    with each_sessions.begin() as db:
        make_review(db, created_at=NOON)
        make_review(db, created_at=(NOON + timedelta(microseconds=1)).astimezone(east))
    with each_sessions.reading() as db:
        later = db.query(Review).where(Review.created_at > NOON.astimezone(east)).count()
    assert later == 1


# Names --------------------------------------------------------------------------------------


def test_a_name_that_an_index_cannot_hold_is_shortened_and_still_found_and_told_apart(each_sessions: Sessions) -> None:
    long, other = "ü" * 5000 + "a", "ü" * 5000 + "b"
    with each_sessions.begin() as db:
        review = make_review(db)
        make_step(db, review, long)
        make_step(db, review, other)
        make_measured(db, review, make_measurement(name=long), machine_key="𝔘" * 5000)
        make_measured(db, review, make_measurement(name=other), machine_key="𝔘" * 5000)
    with each_sessions.reading() as db:
        found = db.query(Step).where(Step.name == long).one()
    assert found.name == short(long) and len(found.name) == NAME_CHARS
    assert short(long) != short(other) and short(short(long)) == short(long)
