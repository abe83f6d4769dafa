"""What both markup languages boil down to: snippets of code and passages of prose, in order, with their headings."""

from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Snippet:
    """A literal block, not yet understood."""

    line: int  # of its first line of content, counted from 1
    headings: tuple[str, ...]  # outermost first
    text: str  # dedented
    language: str = ""  # as written, lower case; empty when none is given
    directive: str = ""  # the directive's name where there is one (code-block, testcode, code-cell, ...)
    options: dict[str, str] = field(default_factory=dict)  # title, caption, options of a directive
    group: str = ""  # testcode and testoutput of one group share names
    hidden: bool = False  # invisible to a reader, as in a comment: set-up code


class PassageKind(StrEnum):
    PARAGRAPH = "paragraph"
    ITEM = "item"
    ROW = "row"
    COMMENT = "comment"


@dataclass(frozen=True, slots=True)
class Passage:
    """Prose with its markup taken off, apart from backticks around inline code."""

    line: int
    headings: tuple[str, ...]
    text: str
    kind: PassageKind = PassageKind.PARAGRAPH
    cells: tuple[str, ...] = ()  # of a table's row
    header: tuple[str, ...] = ()  # the table's header cells
    table: int = 0  # line of the table the row belongs to
    last_line: int = 0  # of the passage in the source


@dataclass(frozen=True, slots=True)
class Markup:
    snippets: tuple[Snippet, ...]
    passages: tuple[Passage, ...]
