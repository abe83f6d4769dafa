"""Shown output against real output: what is tolerated, what is doubtful, what is a difference."""

import datetime

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from review_agents.probes.comparing import Verdict, compare, parse_value, raised_in, same_number

AGREES = {
    "white space": ("a  b\n\nc  ", "a b\nc"),
    "wrapped lines": ("usage: tool [-h]\n            [--all]", "usage: tool [-h] [--all]"),
    "colours": ("ok", "\x1b[32mok\x1b[0m"),
    "a progress line": ("done", "10%\r50%\rdone"),
    "no-break spaces": ("a\u00a0b", "a b"),
    "typographic quotes": ("it’s “fine”", 'it\'s "fine"'),
    "addresses": ("<A object at 0x7f0011223344>", "<A object at 0x55aa11bbccdd>"),
    "an address with dots": ("<A object at 0x...>", "<A object at 0x55aa11bbccdd>"),
    "paths": ("wrote /home/me/x/out.txt", "wrote /tmp/reader/out.txt"),
    "temporary names": ("made tmpab12cd34", "made tmpzz99yy88"),
    "versions": ("tool 1.2.3", "tool 2.0.1.dev3"),
    "placeholders for versions": ("tool 3.X.X", "tool 3.2.4"),
    "durations": ("3 passed in 0.12s", "3 passed in 1.98s"),
    "a time of day": ("started 12:30:01", "started 07:01:59"),
    "a date": ("today is 2019-05-01", "today is 2026-11-30"),
    "a date in words": ("Mon, 5 May 2019 ok", "Tue, 6 Jun 2023 ok"),
    "identifiers": ("id 123e4567-e89b-12d3-a456-426614174000", "id 00000000-e89b-12d3-a456-426614174999"),
    "dots for lines": ("first\n...\nlast", "first\nsecond\nthird\nlast"),
    "dots in a line": ("[1, 2, ..., 9]", "[1, 2, 3, 4, 9]"),
    "dots in a word": ("loaded mod...le", "loaded module"),
    "digits left out": ("0.333", "0.3333333333333333"),
    "last digits": ("0.30000000000000004", "0.3000000000000001"),
    "order in a set": ("{'b', 'a'}", "{'a', 'b'}"),
    "order in a dict": ("{'b': 1, 'a': [1, 2]}", "{'a': [1, 2], 'b': 1}"),
    "kinds of quotes": ('"it\'s"', "'it\\'s'"),
    "text of Python 2": ("[u'a', 1L]", "['a', 1]"),
    "ordered dictionaries": ("OrderedDict([('a', 1), ('b', 2)])", "OrderedDict({'a': 1, 'b': 2})"),
    "numpy's scalars": ("[1.5, 2]", "[np.float64(1.5), np.int64(2)]"),
    "the main module": ("<class 'Point'>", "<class '__main__.Point'>"),
    "escapes": ("'\\xa4 #'", "'¤ #'"),
    "the width of a table": ("+---+\n| a |\n+---+", "+-----+\n|  a  |\n+-----+"),
    "a traceback's middle": (
        "Traceback (most recent call last):\n  ...\nValueError: no",
        'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\nValueError: no',
    ),
    "a part of the lines": ("b\nd", "a\nb\nc\nd"),
    "blank lines of doctest": ("a\n<BLANKLINE>\nb", "a\n\nb"),
}


@pytest.mark.parametrize(("shown", "real"), AGREES.values(), ids=AGREES.keys())
def test_what_may_differ_is_tolerated(shown: str, real: str):
    assert compare(shown, real).verdict.agrees


DIFFERENT = {
    "a word": ("hello there", "hello their"),
    "a number": ("total 105", "total 104"),
    "a sign": ("-2730.0", "2730.0"),
    "a unit": ("'10.0 MiB'", "'10.0 MB'"),
    "a missing part": ("'1h 2m 5s'", "'1h 2m'"),
    "a list's order": ("[1, 2]", "[2, 1]"),
    "a list's length": ("[1, 2, 3]", "[1, 2]"),
    "a truth": ("True", "False"),
    "a line too few": ("a 1\nb 2\nc 3", "a 1\nc 3"),
    "the order of lines": ("clean\nimages\npages", "clean\npages\nimages"),
    "a key": ("{'a': 1}", "{'b': 1}"),
    "decimals": ("0.33", "0.34"),
    "an arrow": ('"clean" -> "pages";', '"pages" -> "clean";'),
    "a duration in words": ("1h 30m", "1h 31m"),
    "a computed date": ("datetime.date(2003, 9, 27)", "datetime.date(2003, 9, 28)"),
    "nothing": ("42", ""),
}


@pytest.mark.parametrize(("shown", "real"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_what_matters_is_a_difference(shown: str, real: str):
    assert compare(shown, real, stable=True, whole=True).verdict is Verdict.DIFFERENT


UNSURE = {
    "5 and 5.0": ("5400", "5400.0"),
    "quotes left out": ("abc def", "'abc def'"),
    "a missing blank": ("1h30m", "1h 30m"),
    "files in another order": ("b.txt\na.txt", "a.txt\nb.txt"),
    "identifiers alone": ("commit 1a2b3c4", "commit 9f8e7d6"),
    "abbreviated and otherwise": ("name: ...\nother: 1", "nom: 3\nother: 2"),
    "another zone": ("'BRST'", "'UTC'"),
    "local time": ("datetime(2003, 9, 25, tzinfo=tzlocal())", "datetime(2003, 9, 25)"),
    "a path of macOS": ("'/Users/trent/Library/Application Support/App'", "'/home/step/.local/share/App'"),
    "the system's folder on macOS": ("'/Library/Application Support/App'", "'/usr/local/share/App'"),
    "a path of Windows": ("Wrote C:\\Users\\trent\\a.txt, 3 lines", "3 lines in /home/step/a.txt"),
    "another home and a quote forgotten": ("'/home/trent/.local/share/App", "'/home/step/.local/share/App'"),
    "progress": ("downloading 3 files", "downloading 4 files"),
    "another situation": ("a b c d e f g h", "the file is not there, call init first please"),
    "another exception": (
        "Traceback (most recent call last):\nKeyError: 'a'",
        "Traceback (most recent call last):\nValueError: a",
    ),
}


@pytest.mark.parametrize(("shown", "real"), UNSURE.values(), ids=UNSURE.keys())
def test_a_difference_that_may_be_innocent_is_none(shown: str, real: str):
    assert compare(shown, real, stable=True).verdict is Verdict.UNSURE


def test_dates_are_strict_where_the_output_does_not_depend_on_the_day():
    assert compare("2003-10-11", "2024-01-02").verdict is Verdict.TOLERATED
    assert compare("2003-10-11", "2024-01-02", stable=True).verdict is Verdict.DIFFERENT


def test_an_order_that_depends_on_the_run_is_no_difference():
    assert compare("b a c", "a b c", stable=False).verdict is Verdict.UNSURE
    assert compare("b a c", "a b c", stable=True).verdict is Verdict.DIFFERENT


def test_a_session_claims_to_show_all_of_it():
    assert compare("a", "a\nb", stable=True).verdict is Verdict.ABBREVIATED
    assert compare("a", "a\nb", stable=True, whole=True).verdict is Verdict.DIFFERENT


def test_a_duration_that_is_data_is_told_by_its_neighbour():
    shown = "first 1.4 s\nsecond 60.0 s"
    found = compare(shown, "first 1499.8 s\nsecond 59.9 s")
    assert found.verdict is Verdict.DIFFERENT and "1.4 s" in found.reason and found.shown == "first 1.4 s"
    assert compare(shown, "first 3.0 s\nsecond 95.1 s").verdict is Verdict.TOLERATED


def test_the_first_line_that_differs_is_named():
    found = compare("a 1\nb 2\nc 3", "a 1\nb 5\nc 3", stable=True)
    assert (found.shown, found.real) == ("b 2", "b 5")


def test_the_exception_of_a_traceback_is_read_from_its_end():
    text = 'noise\nTraceback (most recent call last):\n  File "x", line 1\nmy.own.Error: what\nmore'
    assert raised_in(text) == ("Error", "what")
    assert raised_in("no traceback") is None


def test_values_are_read_without_being_evaluated():
    assert parse_value("__import__('os').system('x')") != parse_value("0")
    assert parse_value("not a value") is None


@pytest.mark.parametrize(("shown", "real", "same"), [
    ("1,000", "1000", True), ("1.50", "1.5", True), ("5", "5.0", False), ("0.3", "0.349", True), ("0.3", "0.41", False),
    ("1e3", "1000.0", True), ("7", "8", False),
])  # fmt: skip
def test_numbers_agree_up_to_the_digits_shown(shown: str, real: str, same: bool):
    assert same_number(shown, real) is same


# Properties ------------------------------------------------------------------------------

# Letters that cannot spell what the comparison knows as telling ("elapsed", "tmp"): Hypothesis also tries words that it
# reads in our source.
words = st.text("bcdfghjklmnqrstvwxz", min_size=2, max_size=8)
lines = st.lists(st.lists(words, min_size=1, max_size=6).map(" ".join), min_size=1, max_size=8)
anything = st.text(max_size=200)


@given(anything, st.booleans(), st.booleans())
def test_output_equals_itself(text: str, stable: bool, whole: bool):
    assert compare(text, text, stable=stable, whole=whole).verdict is Verdict.SAME


@given(anything, anything, st.booleans())
def test_no_pair_of_texts_breaks_the_comparison(shown: str, real: str, stable: bool):
    compare(shown, real, stable=stable)


@given(
    lines,
    st.datetimes(min_value=datetime.datetime(1990, 1, 1)),
    st.datetimes(min_value=datetime.datetime(1990, 1, 1)),
    st.data(),
)
def test_times_anywhere_do_not_matter(
    text: list[str], one: datetime.datetime, other: datetime.datetime, data: st.DataObject
):
    at = data.draw(st.integers(0, len(text) - 1))
    shown, real = list(text), list(text)
    shown[at] += f" at {one:%Y-%m-%d %H:%M:%S}"
    real[at] += f" at {other:%Y-%m-%d %H:%M:%S}"
    assert compare("\n".join(shown), "\n".join(real)).verdict.agrees


@given(lines, st.lists(words, min_size=2, max_size=4), st.lists(words, min_size=2, max_size=4), st.data())
def test_paths_anywhere_do_not_matter(text: list[str], one: list[str], other: list[str], data: st.DataObject):
    at = data.draw(st.integers(0, len(text) - 1))
    shown, real = list(text), list(text)
    shown[at] += " /" + "/".join(one)
    real[at] += " /" + "/".join(other)
    assert compare("\n".join(shown), "\n".join(real), stable=True).verdict.agrees


@given(lines, st.data())
def test_a_changed_word_does(text: list[str], data: st.DataObject):
    flat = " ".join(text).split()
    assume(len(set(flat)) == len(flat))
    at = data.draw(st.integers(0, len(text) - 1))
    line = text[at].split()
    word = data.draw(st.integers(0, len(line) - 1))
    other = data.draw(words.filter(lambda new: new not in flat))
    changed = list(text)
    changed[at] = " ".join([*line[:word], other, *line[word + 1 :]])
    found = compare("\n".join(text), "\n".join(changed), stable=True, whole=True)
    assert found.verdict is Verdict.DIFFERENT, found
