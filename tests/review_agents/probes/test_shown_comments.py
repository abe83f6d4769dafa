import pytest

from review_agents.probes.comparing import Verdict
from review_agents.probes.shown_comments import NO_CLAIM, comments_as_output, compare_comment, without_comment

SHOWN = {
    "behind it": ("f(1)  # 2", {1: "2"}),
    "behind an arrow below it": ("f(1)\n# -> 2", {1: "2"}),
    "a display below it": ("f(1)\n# ['a', 'b']\n\nf(2)", {1: "['a', 'b']"}),
    "a string below the end of a long call": ("f(\n    1,\n)\n# 'a; b'", {3: "'a; b'"}),
    "prose below it": ("f(1)\n# then the second", {}),
    "a number below it": ("f(1)\n# 2", {}),
    "a name below it": ("f(1)\n# None", {}),
    "what may belong to the next statement": ("f(1)\n# ['a', 'b']\nf(2)", {}),
    "what stands apart": ("f(1)\n\n# ['a', 'b']", {}),
    "code that is commented out": ("f(1)\n# f('a')", {}),
}


@pytest.mark.parametrize(("code", "shown"), SHOWN.values(), ids=SHOWN.keys())
def test_comments_that_show_a_value_are_told_from_prose(code: str, shown: dict[int, str]):
    assert {line: one.text for line, one in comments_as_output(code).items()} == shown


def test_a_display_below_a_statement_is_compared_and_none_is_no_claim():
    (shown,) = comments_as_output("split(text)\n# ['a', 'b']").values()
    assert compare_comment(shown, "['a', 'b']", None, "list", "").verdict is Verdict.SAME
    assert compare_comment(shown, "['a', 'c']", None, "list", "").verdict is Verdict.DIFFERENT
    assert compare_comment(shown, None, None, "", "").reason in NO_CLAIM
    assert compare_comment(shown, "3", None, "int", "").verdict is Verdict.UNSURE


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("f(1)   # as ever", "f(1)"),
        ("f('#1')  # as ever", "f('#1')"),
        ("f('#1')", "f('#1')"),
        ("for row in rows:  # each", "for row in rows:"),
        ("call(  # goes on", "call("),
        ("# all of it", "# all of it"),
        ("'not closed # here", "'not closed # here"),
    ],
)
def test_a_line_is_named_without_the_comment_that_ends_it(line: str, left: str):
    assert without_comment(line) == left
