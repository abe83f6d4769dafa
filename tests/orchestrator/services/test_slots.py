from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.services.slots import after_review, first, in_zone, nightly_after, parse_clock
from orchestrator.store.schedules import ScheduleKind

# Zones with every kind of oddity: half-hour shifts, shifts at midnight, no shifts, a skipped day, odd offsets.
ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "Asia/Kathmandu",
    "Africa/Casablanca",
    "America/Havana",
    "Pacific/Apia",
    "Antarctica/Troll",
    "UTC",
]
moments = st.datetimes(datetime(2010, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC))
clocks = st.builds("{:02}:{:02}".format, st.integers(0, 23), st.integers(0, 59))


@dataclass
class Plan:
    kind: ScheduleKind = ScheduleKind.NIGHTLY
    at: str = "02:30"
    zone: str = "Europe/Berlin"
    pause_minutes: int = 0
    enabled: bool = True


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_a_time_that_the_clocks_leave_out_moves_forward_with_them() -> None:
    slot = nightly_after(Plan(), utc("2026-03-29T00:00"))
    assert in_zone(slot, "Europe/Berlin") == "2026-03-29 03:30 CEST"


def test_a_time_that_comes_twice_fires_the_first_time_only() -> None:
    first_slot = nightly_after(Plan(), utc("2026-10-24T22:00"))
    assert in_zone(first_slot, "Europe/Berlin") == "2026-10-25 02:30 CEST"
    assert in_zone(nightly_after(Plan(), first_slot), "Europe/Berlin") == "2026-10-26 02:30 CET"


@given(moments, clocks, st.sampled_from(ZONES))
def test_the_next_slot_is_after_the_moment_and_within_two_days(moment: datetime, at: str, zone: str) -> None:
    slot = nightly_after(Plan(at=at, zone=zone), moment)
    assert moment < slot <= moment + timedelta(hours=49)  # 49: Samoa skipped a whole day once


@given(moments, clocks, st.sampled_from(ZONES))
def test_over_a_year_each_local_day_has_one_slot_at_its_time_or_later(moment: datetime, at: str, zone: str) -> None:
    plan = Plan(at=at, zone=zone)
    slots = [nightly_after(plan, moment)]
    for _ in range(366):
        slots.append(nightly_after(plan, slots[-1]))
    assert slots == sorted(set(slots))
    local = [slot.astimezone(ZoneInfo(zone)) for slot in slots]
    assert len({moment.date() for moment in local}) == len(local)
    for one, slot in zip(local, slots, strict=True):
        if one.time() != time.fromisoformat(at):
            assert not exists(one.replace(hour=int(at[:2]), minute=int(at[3:]), fold=0))
        assert slot.second == 0 or zone == "America/Sao_Paulo"
    gaps = [later - earlier for earlier, later in pairwise(slots)]
    assert all(timedelta(hours=21) <= gap <= timedelta(hours=49) for gap in gaps)


def exists(local: datetime) -> bool:
    return local.astimezone(UTC).astimezone(local.tzinfo).replace(fold=0) == local


@given(moments, clocks, st.sampled_from(ZONES), st.integers(0, 10**7))
def test_after_any_downtime_the_next_slot_is_still_to_come(planned: datetime, at: str, zone: str, down_s: int) -> None:
    now = planned + timedelta(seconds=down_s)
    assert nightly_after(Plan(at=at, zone=zone), now) > now


def test_a_disabled_schedule_has_no_slot() -> None:
    now = utc("2026-05-01T00:30")
    assert first(Plan(enabled=False), now) is None and after_review(Plan(enabled=False), now) is None


def test_a_loop_starts_at_once_and_comes_again_a_pause_after_its_review_ended() -> None:
    now = utc("2026-05-01T00:00")
    loop = Plan(kind=ScheduleKind.LOOP, pause_minutes=90)
    assert first(loop, now) == now
    assert after_review(loop, now) == now + timedelta(minutes=90)


@pytest.mark.parametrize("text", ["24:00", "1:00", "01:60", "", "01:00:00", "-1:00", "٠١:٠٠", "01:00\n"])
def test_only_hours_and_minutes_are_a_time_of_day(text: str) -> None:
    with pytest.raises(ValueError, match="02:30"):
        parse_clock(text)
