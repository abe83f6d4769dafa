"""Verdicts of base against head as small SVGs: ratio and interval on one axis for all rows of a table."""

import math
from collections.abc import Iterable

from markupsafe import Markup

from orchestrator.services.measurements import Compared

WIDTH, HEIGHT, EDGE = 150, 16, 5
LEAST_SIDE, MOST_SIDE = math.log(1.1), math.log(2)  # how far from "no change" the axis reaches


def side_of(every: Iterable[Compared]) -> float:
    """Half the length of an axis that has room for all of them, within reason."""
    reach = [abs(math.log(edge)) for one in every for edge in (one.low, one.high) if edge and edge > 0]
    return min(MOST_SIDE, max([LEAST_SIDE, *reach]))


def interval(one: Compared, side: float) -> Markup:
    """Left of the middle is less, right of it more. Nothing without a number."""
    if one.ratio is None or one.low is None or one.high is None:
        return Markup("")
    low, ratio, high, same = (place(value, side) for value in (one.low, one.ratio, one.high, 1.0))
    down = HEIGHT // 2
    return Markup(
        f'<svg class="interval {one.verdict}" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'aria-hidden="true"><line class="same" x1="{same}" x2="{same}" y1="0" y2="{HEIGHT}"/>'
        f'<line x1="{low}" x2="{high}" y1="{down}" y2="{down}"/><circle cx="{ratio}" cy="{down}" r="4"/></svg>'
    )


def place(ratio: float, side: float) -> float:
    share = math.log(ratio) / side if ratio > 0 else -1.0
    return round(EDGE + (1 + min(1.0, max(-1.0, share))) / 2 * (WIDTH - 2 * EDGE), 1)
