"""A benchmark over its nights as SVG made on the server, as wide as its place: small in a list, tall on its own page.

Positions across are per cents, so that points and words keep their size on a phone; only lines and bands are stretched.
Points are spaced evenly by night, oldest left. Each machine key has a line of its own, because numbers of two keys are
not comparable, and a dashed line where it begins. A step is a line with an arrow and, on a tall plot, its share.
"""

import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import NamedTuple
from uuid import UUID

from markupsafe import Markup, escape

from orchestrator.services.histories import Step
from orchestrator.services.measurements import Benchmark, Line, Night
from orchestrator.web.text import quantity, visible

EDGE = 1.5  # per cent that stay free left and right
TOP, BOTTOM = 14.0, 90.0  # per cent of the height between which values lie
LEAST_SPAN = 0.1  # of the value: noise does not look like a mountain range
MOST_DOTS = {False: 150, True: 400}  # across a plot; more nights are put together
GRID = 4
FINE = 100  # steps of a per cent in which lines and bands are drawn


class Dot(NamedTuple):
    """One night, or several neighbours together. A plot of a repo with many benchmarks has thousands."""

    at: int  # position, counted from 0
    nights: Sequence[Night]
    low: float  # of the band; like the others nothing without a good session
    middle: float | None
    high: float
    void: bool  # some sessions were


def plot(
    one: Benchmark, *, tall: bool = False, sessions: Mapping[UUID | None, Sequence[float]] | None = None
) -> Markup:
    """`sessions`: values of single sessions, by measurement, to be drawn behind."""
    times = sorted({night.at for line in one.lines for night in line.nights})
    places = Places(times, max(1, math.ceil(len(times) / MOST_DOTS[tall])))
    numbers = {at: number // places.each for number, at in enumerate(times)}
    lines = [dots(line, numbers, together=places.each > 1) for line in one.lines]
    good = [[dot for dot in line if dot.middle is not None] for line in lines]
    if not any(good):
        return Markup('<span class="none">no good session yet</span>')
    raw = [value for values in (sessions or {}).values() for value in values]
    low = min([*[dot.low for line in good for dot in line], *raw])
    scale = Scale.around(low, max([*[dot.high for line in good for dot in line], *raw]))
    parts = [
        *(grid(scale) if tall else ()),
        *keys(one.lines, places, tall),
        *(stretched(line, places, scale) for line in good if line),
        *single_sessions(sessions or {}, one.lines, places, scale),
        *(part for line in lines for part in marks(line, places, scale, one.unit)),
        *(part for step in one.steps for part in step_marks(step, places, tall)),
        *((*heights(scale, one.unit), *dates(times)) if tall else ()),
    ]
    return Markup(
        f'<svg class="plot{" tall" if tall else ""}" role="img" aria-label="{escape(in_words(one))}">'
        f"{Markup('').join(parts)}</svg>"
    )


# Where things are --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scale:
    low: float
    high: float

    @classmethod
    def around(cls, low: float, high: float) -> "Scale":
        least = max(abs(high), abs(low)) * LEAST_SPAN or 1.0
        missing = max(0.0, least - (high - low))
        return cls(low - missing / 2, high + missing / 2)

    def y(self, value: float) -> float:
        return round(BOTTOM - (value - self.low) / (self.high - self.low) * (BOTTOM - TOP), 2)


@dataclass(frozen=True, slots=True)
class Places:
    """Per cent across of a night."""

    times: Sequence[datetime]
    each: int  # nights that share a place

    @property
    def last(self) -> int:
        return (len(self.times) - 1) // self.each

    @property
    def starts(self) -> Sequence[str]:
        return starts(self.last)

    def x(self, place: int) -> float:
        return per_cents(self.last)[place]

    def of(self, at: datetime) -> int:
        return min(bisect_left(self.times, at), len(self.times) - 1) // self.each


@cache
def per_cents(last: int) -> tuple[float, ...]:
    """Per cent of each place, counted from 0 to `last`. Two hundred plots of a page have the same."""
    return tuple(round(EDGE + at / last * (100 - 2 * EDGE), 2) for at in range(last + 1)) if last else (50.0,)


@cache
def starts(last: int) -> tuple[str, ...]:
    """For each place "x,%d" on the fine grid; the height is to be filled in."""
    return tuple(f"{across * FINE:.0f},%d" for across in per_cents(last))


def dots(line: Line, numbers: Mapping[datetime, int], *, together: bool) -> list[Dot]:
    """`together`: nights may share a place."""
    if not together:
        return [dot_of_one(numbers[night.at], night) for night in line.nights]
    found: dict[int, list[Night]] = {}
    for night in line.nights:
        found.setdefault(numbers[night.at], []).append(night)
    return [dot_of_many(at, nights) for at, nights in found.items()]


def dot_of_one(at: int, night: Night) -> Dot:
    median = night.median
    if median is None:
        return Dot(at, (night,), 0.0, None, 0.0, night.void > 0)
    half = median * (night.spread or 0.0)
    return Dot(at, (night,), median - half, median, median + half, night.void > 0)


def dot_of_many(at: int, nights: Sequence[Night]) -> Dot:
    good = [(night.median, night.median * (night.spread or 0.0)) for night in nights if night.median is not None]
    void = any(night.void for night in nights)
    if not good:
        return Dot(at, nights, 0.0, None, 0.0, void)
    low, high = min(median - half for median, half in good), max(median + half for median, half in good)
    return Dot(at, nights, low, statistics.median(median for median, _ in good), high, void)


# What is drawn ---------------------------------------------------------------------------------


def stretched(good: Sequence[Dot], places: Places, scale: Scale) -> Markup:
    """Band and line, in a picture of their own that is pulled to the width of the plot."""
    low, bottom = scale.low, FINE * BOTTOM + 0.5  # whole numbers of a fine grid: half of the time of decimals
    per_unit = FINE * (BOTTOM - TOP) / (scale.high - scale.low)
    starts = places.starts
    pairs = [starts[one.at] for one in good]
    there, back = " ".join(pairs), " ".join(reversed(pairs))
    upper = there % tuple([bottom - (one.high - low) * per_unit for one in good])
    lower = back % tuple([bottom - (one.low - low) * per_unit for one in reversed(good)])
    middle = there % tuple([bottom - ((one.middle or 0.0) - low) * per_unit for one in good])
    return Markup(
        f'<svg class="lines" width="100%" height="100%" viewBox="0 0 {100 * FINE} {100 * FINE}" '
        'preserveAspectRatio="none">'
        f'<polygon class="band" points="{upper} {lower}"/>'
        f'<polyline class="line" points="{middle}"/></svg>'
    )


def marks(line: Sequence[Dot], places: Places, scale: Scale, unit: str) -> Iterator[Markup]:
    """Void nights hollow, and the last one lit."""
    last = next((one.at for one in reversed(line) if one.middle is not None), None)
    for one in line:
        if one.void or one.middle is None or one.at == last:
            kind = "void none" if one.middle is None else "last" if one.at == last else "void"
            height = BOTTOM + 4 if one.middle is None else scale.y(one.middle)
            yield Markup(
                f'<circle class="{kind}" cx="{places.x(one.at)}%" cy="{height}%" r="{4 if kind == "last" else 3}">'
                f"<title>{escape(of_night(one, unit))}</title></circle>"
            )


def of_night(one: Dot, unit: str) -> str:
    nights = f"{one.nights[0].at:%d %b %Y}"
    if len(one.nights) > 1:
        nights += f" to {one.nights[-1].at:%d %b %Y}"
    if one.middle is None:
        return f"{nights}: every session void"
    void = sum(night.void for night in one.nights)
    return f"{nights}: {quantity(one.middle, unit)}{f', {void} void sessions' if void else ''}"


def single_sessions(
    sessions: Mapping[UUID | None, Sequence[float]], lines: Iterable[Line], places: Places, scale: Scale
) -> Iterator[Markup]:
    if not sessions:
        return
    for night in (night for line in lines for night in line.nights if night.id in sessions):
        across = places.x(places.of(night.at))
        for value in sessions[night.id]:
            yield Markup(f'<circle class="session" cx="{across}%" cy="{scale.y(value)}%" r="2"/>')


def keys(lines: Sequence[Line], places: Places, tall: bool) -> Iterator[Markup]:
    """Where another machine key begins."""
    for line in lines[1:]:
        across = places.x(places.of(line.nights[0].at))
        said = f"{line.nights[0].at:%d %b %Y}: {visible('; '.join(line.changed) or 'another machine key')}"
        yield Markup(
            '<g class="key"><line x1="{0}%" x2="{0}%" y1="{1}" y2="{2}%"/><title>{3}</title>{4}</g>'
        ).format(
            across, "1.4em" if tall else "0", BOTTOM + 6, said,
            label(across, "1em", "new series") if tall else Markup(""),
        )  # fmt: skip


def step_marks(step: Step, places: Places, tall: bool) -> Iterator[Markup]:
    across = places.x(places.of(step.point.to_at))
    slower = step.point.ratio > 1
    arrow = "▲" if slower else "▼"
    words = f"{arrow} {share(step.point.ratio)}" if tall else arrow
    yield Markup('<g class="step {}"><line x1="{}%" x2="{}%" y1="{}" y2="{}%"/><title>{}</title>{}</g>').format(
        "worse" if slower else "better", across, across, "2.7em" if tall else "1em", BOTTOM, step_words(step),
        label(across, "2.2em" if tall else "0.8em", words),
    )  # fmt: skip


def label(across: float, down: str, words: str) -> Markup:
    anchor = "start" if across < 12 else "end" if across > 88 else "middle"
    return Markup('<text x="{}%" y="{}" text-anchor="{}">{}</text>').format(across, down, anchor, words)


def grid(scale: Scale) -> Iterator[Markup]:
    for value in ticks(scale.low, scale.high):
        yield Markup('<line class="grid" x1="0" x2="100%" y1="{0}%" y2="{0}%"/>').format(scale.y(value))


def heights(scale: Scale, unit: str) -> Iterator[Markup]:
    """The grid's values, drawn last so that nothing lies over them."""
    for value in ticks(scale.low, scale.high):
        yield Markup('<text x="2" y="{}%" dy="-3">{}</text>').format(scale.y(value), quantity(value, unit))


def ticks(low: float, high: float) -> list[float]:
    """Round numbers between the two, about `GRID` of them."""
    rough = (high - low) / GRID
    power = 10.0 ** math.floor(math.log10(rough))
    width = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = math.ceil(low / width)
    return [number * width for number in range(first, math.floor(high / width) + 1)]


def dates(times: Sequence[datetime]) -> Iterator[Markup]:
    shown = {0: "start", len(times) - 1: "end"} if len(times) > 1 else {0: "middle"}
    for place, anchor in shown.items():
        across = {"start": 0, "middle": 50, "end": 100}[anchor]
        yield Markup(f'<text class="date" x="{across}%" y="99%" text-anchor="{anchor}">{times[place]:%-d %b %Y}</text>')


# In words -----------------------------------------------------------------------------------------


def in_words(one: Benchmark) -> str:
    """What the picture shows, for those who do not see it."""
    values = [night.median for line in one.lines for night in line.nights if night.median is not None]
    said = (
        f"{visible(one.name)}: {one.nights} {'night' if one.nights == 1 else 'nights'}, "
        f"last {quantity(one.latest.median, one.unit)}, "
        f"between {quantity(min(values), one.unit)} and {quantity(max(values), one.unit)}"
    )
    if len(one.lines) > 1:
        said += f", on {len(one.lines)} machine keys"
    return "; ".join([said, *map(step_words, one.steps)])


def step_words(step: Step) -> str:
    word = "slower" if step.point.unit == "s" else "more"
    if step.point.ratio < 1:
        word = "faster" if step.point.unit == "s" else "less"
    named = f" at {visible(step.culprit[:10])}" if step.culprit else ""
    return (
        f"{word} by {share(abs(step.point.ratio - 1) + 1).removeprefix('+')} since {step.point.to_at:%d %b %Y}{named}"
    )


def share(ratio: float | None) -> str:
    """By how much a ratio of 1.13 is more: "+13 %"."""
    if ratio is None:
        return "–"
    moved = (ratio - 1) * 100
    return f"{moved:+.0f} %" if abs(moved) >= 10 else f"{moved:+.1f} %"
