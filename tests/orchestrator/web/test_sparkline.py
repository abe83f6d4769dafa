"""Series as inline SVG."""

from datetime import UTC, datetime
from uuid import uuid4
from xml.etree import ElementTree

import pytest

from orchestrator.services.views import Point
from orchestrator.web.sparkline import EDGE, HEIGHT, WIDTH, sparkline

SVG = "{http://www.w3.org/2000/svg}"


def point(median: float | None, *, spread: float | None = 0.01, contaminated: bool = False) -> Point:
    return Point(datetime(2026, 11, 30, tzinfo=UTC), "c" * 40, uuid4(), median, spread, contaminated)


def drawn(*points: Point, name: str = "tests") -> ElementTree.Element:
    return ElementTree.fromstring(str(sparkline(name, "s", points)))


def test_a_series_is_an_image_with_words() -> None:
    image = drawn(point(1.0), point(2.0))
    assert image.get("role") == "img"
    assert image.get("aria-label") == "tests: 2 measured nights, from 1 s to 2 s, between 1 s and 2 s"


@pytest.mark.parametrize("medians", [[1.0], [1.0, 1.0], [0.0, 0.0], [5.0, None, 1.0], [1e-9, 1e9]])
def test_every_point_lies_inside_the_image(medians: list[float | None]) -> None:
    image = drawn(*(point(median) for median in medians))
    for shape in image:
        coordinates = (
            [pair.split(",") for pair in shape.get("points", "").split()]
            if shape.get("points")
            else [[shape.get("cx"), shape.get("cy")]]
        )
        for x, y in coordinates:
            assert 0 <= float(x or 0) <= WIDTH
            assert EDGE - 0.1 <= float(y or 0) <= HEIGHT - EDGE + 0.1


def test_little_noise_stays_a_nearly_flat_line() -> None:
    line = next(shape for shape in drawn(point(1.0, spread=0), point(1.005, spread=0)) if shape.get("class") == "line")
    heights = [float(pair.split(",")[1]) for pair in line.get("points", "").split()]
    assert abs(heights[0] - heights[1]) < 3


def test_disturbed_nights_are_hollow_points() -> None:
    image = drawn(point(1.0), point(1.1, contaminated=True), point(None), point(1.0))
    assert sum(shape.get("class") == "void" for shape in image) == 2


def test_without_a_good_night_there_is_no_line() -> None:
    assert "no good session yet" in sparkline("tests", "s", [point(None)])
    assert "no good session yet" in sparkline("tests", "s", [])


def test_a_hostile_name_stays_text() -> None:
    image = drawn(point(1.0), name='"><script>\u202e')
    assert image.get("aria-label", "").startswith('"><script>⟨U+202E⟩')
