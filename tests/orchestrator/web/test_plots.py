"""Benchmarks over their nights as SVG."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from uuid import UUID, uuid4
from xml.etree import ElementTree

import pytest

from orchestrator.measure.records import ChangePoint
from orchestrator.services.histories import Step
from orchestrator.services.measurements import Benchmark, Line, Night
from orchestrator.web.plots import FINE, MOST_DOTS, plot, share, step_words, ticks
from tests.factories import NOON


def night(day: int, median: float | None, *, spread: float = 0.01, void: int = 0) -> Night:
    at = NOON + timedelta(days=day)
    return Night("bench", "s", "k", at, "c" * 40, median, spread, 6 if median else 0, void, "", uuid4(), uuid4())


def made(*lines: Sequence[Night], steps: tuple[Step, ...] = (), changed: str = "kernel: 1 → 2") -> Benchmark:
    return Benchmark(
        "bench",
        "s",
        tuple(Line(f"key {at}", (changed,) if at else (), tuple(one)) for at, one in enumerate(lines)),
        steps,
    )


def nights(*medians: float | None, start: int = 0) -> list[Night]:
    return [night(start + day, median) for day, median in enumerate(medians)]


def step(ratio: float = 1.13, *, day: int = 2, culprit: str = "") -> Step:
    edges = NOON + timedelta(days=day - 1), NOON + timedelta(days=day)
    return Step(ChangePoint("bench", "s", "k", "a" * 40, "b" * 40, *edges, 1.0, ratio, ratio, 2), culprit)


def drawn(one: Benchmark, *, tall: bool = False, sessions: dict[UUID | None, tuple[float, ...]] | None = None):  # type: ignore[no-untyped-def]
    return ElementTree.fromstring(str(plot(one, tall=tall, sessions=sessions)))


def with_class(image: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [one for one in image.iter() if name in one.get("class", "").split()]


def points(one: ElementTree.Element) -> list[tuple[float, float]]:
    """Per cent across and down."""
    pairs = [pair.split(",") for pair in one.get("points", "").split()]
    return [(int(across) / FINE, int(down) / FINE) for across, down in pairs]


def coordinates(image: ElementTree.Element) -> Iterator[float]:
    for one in image.iter():
        for pair in points(one):
            yield from pair
        for name in ("cx", "cy", "x1", "x2"):
            if one.get(name, "").endswith("%"):
                yield float(one.get(name, "").removesuffix("%"))


def test_a_plot_is_an_image_with_words_for_those_who_do_not_see_it() -> None:
    image = drawn(made(nights(1.0, 2.0), nights(3.0, start=2), steps=(step(day=1, culprit="d" * 40),)))
    assert image.get("role") == "img"
    assert image.get("aria-label") == (
        "bench: 3 nights, last 3 s, between 1 s and 3 s, on 2 machine keys; "
        "slower by 13 % since 01 Dec 2026 at dddddddddd"
    )


@pytest.mark.parametrize("tall", [False, True])
@pytest.mark.parametrize("medians", [[1.0], [1.0, 1.0], [5.0, None, 1.0], [1e-9, 1e9], [3e-9, 3.1e-9]])
def test_everything_lies_inside_the_picture(medians: list[float | None], tall: bool) -> None:
    found = list(coordinates(drawn(made(nights(*medians), steps=(step(),)), tall=tall)))
    assert found and all(0 <= place <= 100 for place in found)


def test_little_noise_stays_a_nearly_flat_line() -> None:
    (line,) = with_class(drawn(made([night(0, 1.0, spread=0), night(1, 1.005, spread=0)])), "line")
    (_, first), (_, second) = points(line)
    assert 0 < first - second < 5


def test_each_machine_key_has_a_line_of_its_own_and_its_beginning_says_what_changed() -> None:
    image = drawn(made(nights(1.0, 1.0), nights(5.0, 5.0, start=2)), tall=True)
    first, second = with_class(image, "line")
    assert len(first.get("points", "").split()) == len(second.get("points", "").split()) == 2
    (key,) = with_class(image, "key")
    assert [one.text for one in key if one.tag == "title"] == ["02 Dec 2026: kernel: 1 → 2"]
    assert [one.text for one in key if one.tag == "text"] == ["new series"]


def test_a_step_is_marked_where_it_came_with_an_arrow_and_its_share() -> None:
    for ratio, arrow, kind in ((1.13, "▲ +13 %", "worse"), (0.8, "▼ -20 %", "better")):
        image = drawn(made(nights(1.0, 1.0, ratio, ratio, ratio), steps=(step(ratio),)), tall=True)
        (mark,) = with_class(image, kind)
        assert [one.text for one in mark if one.tag == "text"] == [arrow]
        assert mark[0].get("x1") == "50.0%"


def test_disturbed_nights_are_hollow_and_those_without_a_number_lie_at_the_bottom() -> None:
    image = drawn(made([night(0, 1.0), night(1, 1.1, void=2), night(2, None, void=6), night(3, 1.0)]))
    disturbed, lost = with_class(image, "void")
    assert disturbed[0].text == "01 Dec 2026: 1.1 s, 2 void sessions"
    assert lost[0].text == "02 Dec 2026: every session void"
    assert float(lost.get("cy", "").removesuffix("%")) > float(disturbed.get("cy", "").removesuffix("%"))
    (line,) = with_class(image, "line")
    assert len(line.get("points", "").split()) == 3


def test_single_sessions_are_drawn_and_make_room_for_themselves() -> None:
    every = nights(1.0, 1.0)
    image = drawn(made(every), tall=True, sessions={every[0].id: (0.5, 1.5)})
    assert len(with_class(image, "session")) == 2
    assert all(0 <= place <= 100 for place in coordinates(image))


def test_many_nights_are_put_together_so_that_a_picture_stays_small() -> None:
    every = [night(day, 1.0 if day != 7777 else 2.0) for day in range(10_000)]
    for tall in (False, True):
        text = plot(made(every), tall=tall)
        (line,) = with_class(ElementTree.fromstring(str(text)), "line")
        assert MOST_DOTS[tall] / 2 < len(line.get("points", "").split()) <= MOST_DOTS[tall]
        assert len(text) < 40_000
        (band,) = with_class(ElementTree.fromstring(str(text)), "band")
        assert min(down for _, down in points(band)) < 20  # the wild night is there


def test_without_a_good_night_there_is_no_picture() -> None:
    assert "no good session yet" in plot(made(nights(None)))


def test_a_hostile_text_stays_text() -> None:
    one = made(nights(1.0), nights(1.0, start=1), changed='"><script>\u202e')
    for tall in (False, True):
        text = str(plot(one, tall=tall))
        assert "<script>" not in text and "\u202e" not in text
        ElementTree.fromstring(text)


def test_a_grid_has_round_numbers_within_its_range() -> None:
    assert ticks(0.0, 1.0) == [0.0, 0.5, 1.0]
    assert [round(value, 9) for value in ticks(41.2e-3, 47.1e-3)] == [0.042, 0.044, 0.046]


def test_changes_are_said_in_words_that_fit_the_unit() -> None:
    assert step_words(step(0.8)) == "faster by 20 % since 02 Dec 2026"
    point = ChangePoint("m", "bytes", "k", "a", "b", NOON, NOON, 1.0, 1.031, 1.031, 2)
    assert step_words(Step(point)) == "more by 3.1 % since 30 Nov 2026"
    assert [share(ratio) for ratio in (1.5, 0.998, None)] == ["+50 %", "-0.2 %", "–"]
