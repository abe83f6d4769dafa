"""Foreign text: nothing invisible, nothing that acts."""

from datetime import UTC, datetime, timedelta

import pytest
from markupsafe import Markup

from orchestrator.web.text import (
    UNSEEN,
    ago,
    distance,
    duration,
    finalize,
    inline,
    log_text,
    prose,
    quantity,
    size,
    visible,
    when,
)

NOW = datetime(2026, 11, 30, 2, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    "hidden",
    ["\x00", "\x07", "\x1b", "\x7f", "\x85", "\xad", "\u061c", "\u200b", "\u200d", "\u202e", "\u2028", "\u2066",
     "\ufeff", "\ud800", "\U000e0041"],
)  # fmt: skip
def test_a_hidden_character_becomes_visible(hidden: str) -> None:
    shown = visible(f"a{hidden}b")
    assert shown.startswith("a⟨") and shown.endswith("⟩b")
    assert not UNSEEN.search(shown)
    shown.encode("utf-8")  # also a lone surrogate can be sent


def test_newlines_tabs_letters_and_emoji_stay() -> None:
    text = "Grüße\n\tвот 日本 🏮 e\u0301"
    assert visible(text) == text


def test_windows_line_ends_are_line_ends_and_a_lone_return_is_shown() -> None:
    assert visible("one\r\ntwo\rthree") == "one\ntwo⟨CR⟩three"


def test_a_log_is_escaped_and_its_terminal_codes_are_dimmed() -> None:
    shown = log_text("\x1b[31m<script>alert(1)</script>\x1b[0m")
    assert shown == (
        '<span class="code">⟨ESC⟩[31m</span>&lt;script&gt;alert(1)&lt;/script&gt;<span class="code">⟨ESC⟩[0m</span>'
    )


def test_prose_knows_paragraphs_and_code_and_nothing_else() -> None:
    shown = prose('See `<b>` here.\n\n[a](javascript:alert(1)) <img src=x onerror="alert(1)">')
    assert shown == (
        "<p>See <code>&lt;b&gt;</code> here.</p>\n"
        "<p>[a](javascript:alert(1)) &lt;img src=x onerror=&#34;alert(1)&#34;&gt;</p>"
    )


def test_a_title_is_one_line() -> None:
    assert inline("a\n  `b`\u2028c") == "a <code>b</code>⟨U+2028⟩c"


def test_finalize_shows_nothing_for_none_and_leaves_markup_alone() -> None:
    assert finalize(None) == ""
    assert finalize(Markup("<b>\x1b</b>")) == "<b>\x1b</b>"
    assert finalize("\x1b") == "⟨ESC⟩"
    assert finalize(3) == 3


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "–"), (0, "0 s"), (4.82e-7, "482 ns"), (9.996e-7, "1 µs"), (1.034e-6, "1.03 µs"),
     (12e-6, "12 µs"), (0.0171, "17.1 ms"), (0.42, "420 ms"), (0.9996, "1 s"),
     (1.42, "1.42 s"), (59.96, "1 min 00 s"), (185, "3 min 05 s"), (3599.6, "1 h 00 min"), (7620, "2 h 07 min"),
     (259200, "3 days"), (-1.5, "-1.5 s")],
)  # fmt: skip
def test_durations_read_like_a_person_says_them(seconds: float | None, words: str) -> None:
    assert duration(seconds) == words


def test_quantities_take_a_fitting_scale() -> None:
    assert quantity(0.041, "s") == "41 ms"
    assert quantity(3 << 20, "bytes") == "3 MiB"
    assert quantity(1234.5, "ops") == "1234 ops"
    assert quantity(None, "s") == "–"
    assert size(1023) == "1023 B" and size(1 << 40) == "1 TiB"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(5, "just now"), (-5, "in a moment"), (90, "2 min ago"), (-7200, "in 2 h"), (86400, "1 day ago"),
     (10 * 86400, "10 days ago")],
)  # fmt: skip
def test_distances_in_time(seconds: float, words: str) -> None:
    assert distance(seconds) == words


def test_times_carry_a_machine_readable_form() -> None:
    assert when(NOW) == '<time datetime="2026-11-30T02:00:00+00:00">30 Nov 2026, 02:00 UTC</time>'
    assert 'title="30 Nov 2026, 02:00 UTC">2 h ago</time>' in ago(NOW, NOW + timedelta(hours=2))
    assert "–" in when(None) and "–" in ago(None, NOW)
