"""Attacks on the web process: none gets through. `python -m tests.bench web-attacks` has all the pages."""

from pathlib import Path

import pytest

from tests.bench import web_attacks
from tests.bench.web_attacks import PARTS, Tally, became_markup, differs, skeleton
from tests.orchestrator.web.html import read
from tests.support.web_attacks import PAYLOADS


def test_there_are_five_hundred_different_texts() -> None:
    assert len(set(PAYLOADS)) == 500


@pytest.mark.slow
def test_no_text_of_a_repo_or_model_becomes_markup_on_any_page(tmp_path: Path) -> None:
    tally = Tally()
    web_attacks.markup(tally, tmp_path, every=10)
    assert tally.through == [] and tally.tried["xss"] == 50


def test_a_page_that_forgot_to_escape_is_noticed() -> None:
    plain = skeleton(read("<main><h1>words</h1></main>"))
    dangerous = [payload for payload in PAYLOADS if payload.startswith("<") and "</" not in payload.partition(">")[0]]
    assert len(dangerous) > 15
    for payload in dangerous:
        raw = read(f"<main><h1>{payload}</h1></main>")
        assert became_markup(raw) or differs(plain, skeleton(raw)), payload
    for bad in ("<a href='javascript:pwned()'>x</a>", "<b onclick=x>", "<iframe>", "<p style=x>", "<script>x</script>"):
        assert became_markup(read(bad)), bad
    assert not became_markup(read("<script src=/static/app.js></script><a href=/x>javascript:pwned()</a>"))


@pytest.mark.browser
@pytest.mark.slow
def test_no_script_of_a_repo_runs_in_a_browser_even_without_the_content_policy(tmp_path: Path) -> None:
    tally = Tally()
    web_attacks.scripts(tally, tmp_path)
    assert tally.through == []


@pytest.mark.parametrize("part", PARTS)
def test_no_attack_of_another_kind_gets_through(tmp_path: Path, part: str) -> None:
    tally = Tally()
    PARTS[part](tally, tmp_path)
    assert tally.through == [] and tally.tried.total() >= 15
