import pytest

from orchestrator.measure.profiles import grown, parts


def test_functions_are_held_against_each_other_by_their_share_of_the_metric() -> None:
    base = {"/a/run.py:1:main;/a/p.py:3:walk": 1.0, "/a/run.py:1:main": 1.0}
    head = {"/b/run.py:1:main;/b/p.py:4:walk": 1.5, "/b/run.py:1:main;/b/p.py:9:check": 0.3, "/b/run.py:1:main": 0.2}
    first, *rest = grown(
        base,
        head,
        base_metric=0.010,
        head_metric=0.040,
        base_file=lambda path: path.removeprefix("/a/"),
        head_file=lambda path: path.removeprefix("/b/"),
    )
    assert (first.file, first.function, first.line) == ("p.py", "walk", 4)
    assert first.base_s == pytest.approx(0.005) and first.head_s == pytest.approx(0.030)
    assert [one.function for one in rest] == ["check"]  # main takes less than before
    assert rest[0].base_s == 0 and rest[0].head_s == pytest.approx(0.006)


def test_what_grew_by_less_than_a_hundredth_is_not_named() -> None:
    base, head = {"a.py:1:f": 1000.0, "a.py:2:g": 1.0}, {"a.py:1:f": 1000.0, "a.py:2:g": 2.0}
    assert grown(base, head, base_metric=1, head_metric=1, base_file=str, head_file=str) == ()


def test_a_file_that_is_not_the_repo_s_keeps_its_own_name() -> None:
    (one,) = grown({"<a>:1:f": 1.0}, {"/lib/x.py:7:h": 1.0}, base_metric=1, head_metric=1, base_file=lambda path: "",
                   head_file=lambda path: "")  # fmt: skip
    assert (one.file, one.line) == ("/lib/x.py", 7)
    assert parts("<frozen importlib._bootstrap>:1165:_find") == ("<frozen importlib._bootstrap>", 1165, "_find")
    assert parts("odd") == ("", None, "odd")
