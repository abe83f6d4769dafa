"""Flame graphs of both sides of a change."""

from dataclasses import replace
from uuid import uuid4
from xml.etree import ElementTree

import pytest

from orchestrator.services.measurements import Profile
from orchestrator.web import flames
from orchestrator.web.flames import Frame
from review_agents.records import Verdict

BASE = {"a.py:1:main": 1.0, "a.py:1:main;a.py:5:scan": 3.0}
HEAD = {"a.py:1:main": 1.0, "a.py:1:main;a.py:7:scan": 3.0, "a.py:1:main;a.py:7:scan;b.py:2:check": 4.0}


def profile(base: dict[str, float] = BASE, head: dict[str, float] = HEAD) -> Profile:
    return Profile(uuid4(), "bench", "s", "a", "b", Verdict.SLOWER, 0.4, 0.8, base, head, ())


def boxes(above: list[Frame], side: str) -> dict[str, ElementTree.Element]:
    """The drawn frames by their words."""
    image = ElementTree.fromstring(str(flames.graph(above, side, "s", "/p?name=x")))
    return {(link[0].find("text").text or "").partition(" ")[0]: link for link in image}  # type: ignore[union-attr]


def width(link: ElementTree.Element) -> float:
    return float(link[0].get("width", "").removesuffix("%"))


def test_stacks_are_matched_by_function_and_count_in_the_figures_own_unit() -> None:
    root = flames.tree(profile())
    (main,) = root.below.values()
    (scan,) = main.below.values()
    (check,) = scan.below.values()
    assert [(one.name, round(one.base, 9), round(one.head, 9)) for one in (root, main, scan, check)] == [
        ("all", 0.4, 0.8), ("main (a.py)", 0.4, 0.8), ("scan (a.py)", 0.3, 0.7), ("check (b.py)", 0.0, 0.4),
    ]  # fmt: skip
    assert (round(scan.own_growth, 9), round(check.own_growth, 9)) == (0.0, 0.4)


def test_of_several_figures_together_frames_have_shares_of_the_time_of_all() -> None:
    root = flames.tree(replace(profile(), shares=True))
    (main,) = root.below.values()
    (scan,) = main.below.values()
    assert [(one.base, one.head) for one in (root, main, scan)] == [(1, 1), (1, 1), (0.75, 0.875)]
    assert 'aria-label="check (b.py): 0 % at the base, 50 % at the head"' in flames.graph([root], "head", "share", "/p")


def test_widths_are_times_and_the_function_that_grew_stands_out() -> None:
    root = flames.tree(profile())
    head, base = boxes([root], "head"), boxes([root], "base")
    assert [round(width(head[name]), 1) for name in ("all", "main", "scan", "check")] == [100, 100, 87.5, 50]
    assert [name for name in base] == ["all", "main", "scan"]
    colours = {name: link[0].find("rect").get("class") for name, link in head.items()}  # type: ignore[union-attr]
    assert colours == {"all": "same", "main": "same", "scan": "same", "check": "grew3"}
    assert head["check"].get("aria-label") == "check (b.py): 0 s at the base, 400 ms at the head"


def test_a_frame_is_a_link_that_makes_it_the_whole_width() -> None:
    root = flames.tree(profile())
    link = boxes([root], "head")["check"].get("href", "")
    address = link.partition("at=")[2].partition("#")[0]
    above = flames.found(root, address)
    assert [one.name for one in above] == ["all", "main (a.py)", "scan (a.py)", "check (b.py)"]
    assert {round(width(one)) for one in boxes(above, "head").values()} == {100}
    assert "does not run on this side" in flames.graph(above, "base", "s", "/p?name=x")
    assert flames.found(flames.tree(profile()), address) == above  # the same on every visit


@pytest.mark.parametrize("address", ["", "0123456789abcdef", "<script>"])
def test_an_unknown_address_shows_all(address: str) -> None:
    assert [one.name for one in flames.found(flames.tree(profile()), address)] == ["all"]


def test_what_is_too_narrow_to_see_is_left_out_and_deep_stacks_are_cut() -> None:
    deep = ";".join(f"a.py:1:f{at}" for at in range(500))
    many = {f"a.py:1:main;a.py:{at}:g{at}": 1.0 for at in range(5000)}
    root = flames.tree(profile(head={deep: 5000.0, **many}))
    image = ElementTree.fromstring(str(flames.graph([root], "head", "s", "/p?name=x")))
    assert 50 < len(list(image)) < 100


def test_a_tower_too_thin_to_read_is_drawn_once_somebody_widens_its_foot() -> None:
    thin = ";".join(f"a.py:1:f{at}" for at in range(30))
    root = flames.tree(profile(head={thin: 0.8, "a.py:1:main": 99.2}))
    foot = root.below["f0 (a.py)"]
    assert set(boxes([root], "head")) == {"all", "main", ""}
    assert len(boxes([root, foot], "head")) == 31


def test_a_hostile_frame_stays_text() -> None:
    name = '"><script>\u202e</svg>'
    text = str(flames.graph([flames.tree(profile(head={f"a.py:1:{name}": 1.0}))], "head", "s", "/p?name=x"))
    assert "<script>" not in text and "\u202e" not in text
    ElementTree.fromstring(text)
