"""Foreign text made harmless for whoever reads a file: nothing invisible, nothing that a terminal obeys."""

import re

# Controls other than newline and tab; and marks that reverse or hide text from a reader's eye.
INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def visible(text: str) -> str:
    """The text with line ends as newlines and every invisible character spelt out."""
    return INVISIBLE.sub(spelt, text.replace("\r\n", "\n"))


def spelt(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def one_line(text: str) -> str:
    return " ".join(visible(text).split())
