"""Foreign text made safe to look at: nothing in it may be invisible, move the cursor, or turn the reading order round.

Escaping HTML is Jinja's business (autoescape). This is about what escaping leaves: terminal codes in
logs, bidirectional overrides in file names, zero-width letters in README text. Each comes out as
something a reader can see. Newlines and tabs stay.
"""

import re
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

# Control characters but tab and newline; soft hyphen; zero-width and bidirectional controls; line and
# paragraph separators; lone surrogates (which could not even be sent); tags and variation selectors
# that can carry hidden text.
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ud800-\udfff\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
SPOKEN = {0x00: "⟨NUL⟩", 0x07: "⟨BEL⟩", 0x08: "⟨BS⟩", 0x0D: "⟨CR⟩", 0x1B: "⟨ESC⟩", 0x7F: "⟨DEL⟩"}


def visible(text: str) -> str:
    """The text with each unseen character replaced by its name or number."""
    if text.isprintable():  # the usual case, and fast
        return text
    return UNSEEN.sub(_sign, text.replace("\r\n", "\n"))


def _sign(match: re.Match[str]) -> str:
    code = ord(match.group())
    return SPOKEN.get(code) or f"⟨U+{code:04X}⟩"


def finalize(value: Any) -> Any:
    """Jinja's last look at each `{{ ... }}`: strings are made visible, nothing prints as None."""
    if value is None:
        return ""
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value)
    return value


TERMINAL_CODE = re.compile(r"⟨ESC⟩(?:\[[0-9;:?<=>]*[a-zA-Z]|\][^⟨\n]*(?:⟨BEL⟩)?)?|⟨(?:[A-Z]+|U\+[0-9A-F]+)⟩")


def log_text(text: str) -> Markup:
    """A log as HTML: terminal codes stay readable, only dimmed."""
    shown = str(escape(visible(text)))
    return Markup(TERMINAL_CODE.sub(lambda code: f'<span class="code">{code.group()}</span>', shown))


CODE_SPAN = re.compile(r"`([^`\n]+)`")
PARAGRAPH_END = re.compile(r"\n\s*\n")


def prose(text: str) -> Markup:
    """Paragraphs with `code`, and nothing else: no links, no images, no HTML of a foreign author."""
    paragraphs = PARAGRAPH_END.split(visible(text).strip())
    return Markup("\n".join(f"<p>{_with_code(paragraph)}</p>" for paragraph in paragraphs if paragraph))


def _with_code(paragraph: str) -> str:
    shown = str(escape(paragraph))
    return CODE_SPAN.sub(r"<code>\1</code>", shown) if "`" in shown else shown


def inline(text: str) -> Markup:
    """A title on one line, with `code`."""
    return Markup(_with_code(" ".join(visible(text).split())))


# Numbers and times ---------------------------------------------------------------------------


def duration(seconds: float | None) -> str:
    """`482 ns`, `17 ms`, `1.42 s`, `3 min 05 s`, `2 h 07 min`."""
    if seconds is None:
        return "–"
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 0.0005:
        if seconds < 0.9995e-6:
            return f"{seconds * 1e9:.3g} ns" if seconds else "0 s"
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms" if seconds < 0.0995 else f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    whole = round(seconds / 60)
    if whole < 48 * 60:
        return f"{whole // 60} h {whole % 60:02d} min"
    return f"{whole // 1440} days"


def quantity(value: float | None, unit: str) -> str:
    """A measurement's value in its unit; seconds and bytes get a fitting scale, a share is in per cent."""
    if value is None:
        return "–"
    if unit == "s":
        return duration(value)
    if unit in ("B", "bytes"):
        return size(value)
    if unit == "share":
        return percent(value)
    return f"{value:.4g} {unit}".strip()


def size(count: float | None) -> str:
    if count is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.3g} {unit}" if count < 1000 else f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share * 100:.3g} %"


def when(moment: datetime | None) -> Markup:
    """A point in time in UTC; `static/app.js` adds the reader's own zone as a title."""
    if moment is None:
        return Markup('<span class="none">–</span>')
    utc = moment.astimezone(UTC)
    return Markup('<time datetime="{}">{}</time>').format(
        utc.isoformat(timespec="seconds"), f"{utc.day} {utc:%b %Y, %H:%M} UTC"
    )


def ago(moment: datetime | None, now: datetime) -> Markup:
    """How long ago, or in how long, with the exact time as a title."""
    if moment is None:
        return Markup('<span class="none">–</span>')
    utc = moment.astimezone(UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        utc.isoformat(timespec="seconds"), f"{utc.day} {utc:%b %Y, %H:%M} UTC", distance((now - utc).total_seconds())
    )


def distance(seconds: float) -> str:
    span = abs(seconds)
    if span < 45:
        return "just now" if seconds >= 0 else "in a moment"
    for limit, unit, name in ((2700, 60, "min"), (79200, 3600, "h"), (float("inf"), 86400, "day")):
        if span < limit:
            count = max(1, round(span / unit))
            words = f"{count} {name}{'s' if name == 'day' and count != 1 else ''}"
            return f"{words} ago" if seconds >= 0 else f"in {words}"
    raise AssertionError("the last limit is infinite")
