"""Ratios with their intervals on one axis."""

import math
from uuid import uuid4
from xml.etree import ElementTree

from orchestrator.services.measurements import Compared
from orchestrator.web.intervals import MOST_SIDE, WIDTH, interval, side_of
from review_agents.records import Verdict
from tests.factories import NOON


def compared(ratio: float | None, low: float | None = None, high: float | None = None) -> Compared:
    return Compared(
        review_id=uuid4(), name="bench", kind="script", unit="s", machine_key="k", base_commit="a", head_commit="b",
        same_code=False, at=NOON, verdict=Verdict.SLOWER, ratio=ratio, low=low, high=high, void=0,
    )  # fmt: skip


def places(one: Compared, side: float) -> list[float]:
    image = ElementTree.fromstring(str(interval(one, side)))
    same, line, dot = image
    return [float(shape.get(name, "")) for shape, name in ((same, "x1"), (line, "x1"), (dot, "cx"), (line, "x2"))]


def test_no_change_stands_in_the_middle_and_slower_right_of_it() -> None:
    same, low, ratio, high = places(compared(1.2, 1.1, 1.3), math.log(1.3))
    assert same == WIDTH / 2 and same < low < ratio < high == WIDTH - 5
    same, low, ratio, high = places(compared(1 / 1.2, 1 / 1.3, 1 / 1.1), math.log(1.3))
    assert 5 == low < ratio < high < same


def test_an_axis_has_room_for_all_rows_within_reason() -> None:
    assert side_of([compared(1.01, 0.99, 1.03)]) == math.log(1.1)
    assert side_of([compared(1.01, 0.99, 1.03), compared(1.3, 1.2, 1.4), compared(None)]) == math.log(1.4)
    assert side_of([compared(9.0, 8.0, 10.0)]) == MOST_SIDE
    assert places(compared(9.0, 8.0, 10.0), MOST_SIDE)[1:] == [WIDTH - 5] * 3
    assert places(compared(0.0, 0.0, 1.0), MOST_SIDE)[1] == 5


def test_without_a_number_nothing_is_drawn() -> None:
    assert interval(compared(None), 1.0) == ""
