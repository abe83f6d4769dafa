"""What the commands print: results on stdout, progress and complaints on stderr, nothing that a terminal would obey."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.services.errors import OutsideError
from orchestrator.services.views import FindingCounts

PIPE_WIDTH = 100_000


class Format(StrEnum):
    """How a list or a page is printed."""

    TEXT = "text"
    JSON = "json"


def out() -> Console:
    """In a pipe nothing is cut or wrapped to a width that nobody has."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(file=sys.stdout, highlight=False, soft_wrap=True, width=width)


def err() -> Console:
    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


def plain(text: object) -> str:
    """A text out of a repo on one line, its control characters as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(str(text).split()))


def words(state: StrEnum) -> str:
    """ "waiting for node"."""
    return str(state).replace("_", " ")


def plain_lines(text: str) -> str:
    return "\n".join(
        "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in line)
        for line in text.splitlines()
    )


def as_json(record: object) -> object:
    """A record of services.views as JSON values."""
    return TypeAdapter(type(record)).dump_python(record, mode="json")


def print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Columns as wide as they need; tab-free, borderless, good for reading and for `cut`."""
    found = [[Text(plain(cell)) for cell in row] for row in rows]
    if not found:
        err().print(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for heading in headings:
        table.add_column(heading, no_wrap=True, overflow="ellipsis", min_width=8 if heading == "ID" else None)
    for row in found:
        table.add_row(*row)
    out().print(table, soft_wrap=False)


def print_or_write(text: str, file: Path | None) -> None:
    """A whole result to stdout, or to the file where one was named. Raises `OutsideError`."""
    text = text if text.endswith("\n") else f"{text}\n"
    if file is None:
        sys.stdout.write(text)
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutsideError(f"{file} cannot be written: {error.strerror}.", retry=False) from None
    err().print(f"Written to {plain(file)}.", markup=False)


def when(moment: datetime | None) -> str:
    """Local time, as the person at the terminal reads it."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M") if moment else ""


def seconds(value: float | None) -> str:
    if value is None:
        return ""
    if value < 60:
        return f"{value:.1f} s"
    return f"{int(value // 60)} min {int(value % 60)} s"


def counted(counts: FindingCounts, unchecked: str = "") -> str:
    """ "1 high, 2 low (1 new); 3 checks could not run"."""
    severities = ", ".join(f"{number} {severity}" for severity, number in counts.by_severity.items())
    new = f" ({counts.new} new)" if counts.new else ""
    unproved = f", {counts.unproved} unproved" if counts.unproved else ""
    found = f"{severities or 'none'}{new}{unproved}"
    return f"{found}; {unchecked}" if unchecked else found
