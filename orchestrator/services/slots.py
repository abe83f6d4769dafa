"""When scheduled reviews come. Pure: a timetable and times in, times out.

A nightly schedule has a slot each day at a local time of its zone. A local time that does not
exist that day (clocks go forward) moves forward by as much as the clocks do; one that comes
twice (clocks go back) counts the first time. A loop has a slot a pause after its last review.

However long nobody looked, at most one slot is caught up on: the one that was planned next. A
slot's time is the planned one, never the time it was noticed, so that two tickers that notice it
mean the same row.
"""

import re
from datetime import UTC, date, datetime, time, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo

from orchestrator.store.schedules import ScheduleKind

CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
DAY = timedelta(days=1)


class Timetable(Protocol):
    """What is needed of a schedule; the table's row has it."""

    @property
    def kind(self) -> ScheduleKind: ...
    @property
    def at(self) -> str: ...  # HH:MM
    @property
    def zone(self) -> str: ...
    @property
    def pause_minutes(self) -> int: ...
    @property
    def enabled(self) -> bool: ...


def first(one: Timetable, now: datetime) -> datetime | None:
    """The first slot of a schedule that begins now: the next night, or at once for a loop."""
    if not one.enabled:
        return None
    return nightly_after(one, now) if one.kind is ScheduleKind.NIGHTLY else now


def after_review(one: Timetable, ended: datetime) -> datetime | None:
    """A loop's next slot, once its review has ended."""
    return ended + timedelta(minutes=one.pause_minutes) if one.enabled else None


def nightly_after(one: Timetable, moment: datetime) -> datetime:
    """The nightly slot that comes strictly after that moment, in UTC."""
    zone = ZoneInfo(one.zone)
    clock = parse_clock(one.at)
    day = moment.astimezone(zone).date() - DAY
    while (slot := on_day(day, clock, zone)) <= moment:
        day += DAY
    return slot


def on_day(day: date, clock: time, zone: ZoneInfo) -> datetime:
    """That local time of that day in UTC.

    With fold=0 Python reads a time that comes twice as the first one, and a time that is left out
    with the offset from before the change, which lands as far behind the gap as it was in it.
    """
    return datetime.combine(day, clock, tzinfo=zone).astimezone(UTC)


def parse_clock(text: str) -> time:
    """Raises `ValueError` unless it is HH:MM."""
    found = CLOCK.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a time of day like 02:30")
    return time(int(found[1]), int(found[2]))


def in_zone(moment: datetime, zone: str) -> str:
    """For a page: `2026-11-30 02:00 CET`."""
    return moment.astimezone(ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M %Z")
