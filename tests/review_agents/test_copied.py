"""Whether the text that a proof was made of still stands."""

import pytest

from review_agents.copied import down_to, piece, stands

PAGE = "# Use\n\n```python\ncache = Cache(ttl=1500)\n```\n\nThen look:\n\n```\n$ inspect\n1.4 s\n```\n\nThe end.\n"
EXAMPLE_ENDS = 12


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("ttl=1500", "ttl=1.5"),
        ("1.4 s", "1500.0 s"),
        ("# Use\n", "# Use\n\nFirst make the file.\n"),
        ("```python\n", "```python\nimport cache\n"),
        ("1.4 s\n", "1.4 s\n2 entries\n"),
        ("Then look:", "Then look again:"),
    ],
)
def test_whatever_changes_above_the_end_of_an_example_makes_it_another(was: str, now: str) -> None:
    copied = down_to("README.md", PAGE, EXAMPLE_ENDS)
    assert stands(copied, PAGE) and not stands(copied, PAGE.replace(was, now, 1))


@pytest.mark.parametrize(
    ("was", "now"), [("The end.", "More."), ("\n\n", "\n\n\n"), ("    ", "  "), ("\n", "\r\n"), ("Cache(", "Cache(")]
)
def test_what_stands_below_and_white_space_are_no_difference(was: str, now: str) -> None:
    assert stands(down_to("README.md", PAGE, EXAMPLE_ENDS), PAGE.replace(was, now))


def test_a_passage_stands_wherever_it_is_in_the_file() -> None:
    copied = piece("README.md", "Then  look:\n")
    assert stands(copied, PAGE) and stands(copied, "Then\nlook: there\n" + PAGE.replace("Then look", "See"))
    assert not stands(copied, PAGE.replace("Then look", "See"))


def test_nothing_stands_in_a_file_that_is_gone() -> None:
    assert not stands(down_to("README.md", PAGE, EXAMPLE_ENDS), None) and not stands(piece("README.md", "x"), None)
    assert not stands(down_to("README.md", PAGE, EXAMPLE_ENDS), "# Use\n")
