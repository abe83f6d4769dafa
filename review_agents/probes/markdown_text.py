"""Markdown into snippets and passages: CommonMark and tables, MyST directives, MkDocs admonitions and tabs."""

import re
from collections.abc import Iterator

from markdown_it import MarkdownIt
from markdown_it.token import Token

from review_agents.probes.markup import Markup, Passage, PassageKind, Snippet

NESTING = {  # MyST directives that hold more Markdown
    "note", "warning", "tip", "important", "hint", "attention", "caution", "danger", "error", "seealso", "admonition",
    "tab-item", "tab-set", "tab", "grid", "grid-item", "card", "dropdown", "details", "todo",
}  # fmt: skip
HTML_CODE = re.compile(r"</?(?:code|kbd|tt)>", re.IGNORECASE)
FRONT_MATTER = re.compile(r"\A---[ \t]*\n.*?\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
INVISIBLE_CODE = re.compile(r"<!--+\s*;?\s*invisible-code(?:-block)?:?\s*(\w+)[^\n]*\n(.*?)--+>", re.DOTALL)
MAX_DEPTH = 4


def read_markdown(text: str, *, first_line: int = 1, headings: tuple[str, ...] = (), depth: int = 0) -> Markup:
    """Never raises for what the text holds."""
    if depth == 0:
        text = FRONT_MATTER.sub(lambda found: "\n" * found[0].count("\n"), text)
    reader = _Reader(first_line, headings, depth)
    reader.read(MarkdownIt("commonmark").enable("table").parse(text))
    return Markup(tuple(reader.snippets), tuple(reader.passages))


class _Reader:
    """Walks over the tokens once and keeps what it found."""

    def __init__(self, first_line: int, headings: tuple[str, ...], depth: int):
        self.first_line = first_line
        self.outer = headings
        self.depth = depth
        self.path: list[tuple[int, str]] = []  # level and title of each open heading
        self.snippets: list[Snippet] = []
        self.passages: list[Passage] = []

    @property
    def headings(self) -> tuple[str, ...]:
        return (*self.outer, *(title for _, title in self.path))

    def read(self, tokens: list[Token]) -> None:
        in_item = 0
        at = 0
        while at < len(tokens):
            token = tokens[at]
            if token.type == "heading_open":
                self._heading(int(token.tag[1:]), _plain(tokens[at + 1]))
                at += 3
                continue
            if token.type == "table_open":
                at = self._table(tokens, at)
                continue
            if token.type == "list_item_open":
                in_item += 1
            elif token.type == "list_item_close":
                in_item -= 1
            elif token.type == "inline":
                self._passage(token, PassageKind.ITEM if in_item else PassageKind.PARAGRAPH)
            elif token.type == "fence":
                self._fence(token)
            elif token.type == "code_block":
                self._indented(token)
            elif token.type == "html_block":
                self._html(token)
            at += 1

    def _heading(self, level: int, title: str) -> None:
        while self.path and self.path[-1][0] >= level:
            self.path.pop()
        self.path.append((level, title))

    def _line(self, token: Token) -> int:
        return self.first_line + (token.map[0] if token.map else 0)

    def _passage(self, token: Token, kind: PassageKind) -> None:
        text = _plain(token)
        if text:
            last = self.first_line + (token.map[1] - 1 if token.map else 0)
            self.passages.append(Passage(self._line(token), self.headings, text, kind, last_line=last))

    def _table(self, tokens: list[Token], at: int) -> int:
        table = self._line(tokens[at])
        header: tuple[str, ...] = ()
        cells: list[str] = []
        line = table
        in_header = False
        while tokens[at].type != "table_close":
            token = tokens[at]
            if token.type == "thead_open":
                in_header = True
            elif token.type == "thead_close":
                in_header = False
            elif token.type == "tr_open":
                cells, line = [], self._line(token)
            elif token.type == "inline":
                cells.append(_plain(token))
            elif token.type == "tr_close":
                if in_header:
                    header = tuple(cells)
                else:
                    text = " | ".join(cells)
                    self.passages.append(
                        Passage(line, self.headings, text, PassageKind.ROW, tuple(cells), header, table, line)
                    )
            at += 1
        return at + 1

    def _fence(self, token: Token) -> None:
        language, directive, options = read_info(token.info)
        line, text = self._line(token) + 1, token.content
        if directive:
            options, text, skipped = _directive_options(options, text)
            line += skipped
            if directive in NESTING and self.depth < MAX_DEPTH:
                self._nested(text, line)
                return
        self.snippets.append(Snippet(line, self.headings, text.rstrip("\n"), language, directive, options))

    def _indented(self, token: Token) -> None:
        """MkDocs indents whole Markdown below `!!! note` and `=== "tab"`: what begins with a fence is read again."""
        text, line = token.content, self._line(token)
        previous = self.passages[-1].text if self.passages else ""
        tab = re.match(r"^(!!!|\?\?\?\+?|===)\s", previous)
        if self.depth < MAX_DEPTH and (re.search(r"^(```|~~~)", text, re.MULTILINE) or tab):
            self._nested(text, line)
        else:
            self.snippets.append(Snippet(line, self.headings, text.rstrip("\n")))

    def _html(self, token: Token) -> None:
        line = self._line(token)
        for found in INVISIBLE_CODE.finditer(token.content):
            start = line + token.content.count("\n", 0, found.start(2))
            self.snippets.append(Snippet(start, self.headings, found[2].rstrip(), found[1].lower(), hidden=True))
        if token.content.lstrip().startswith("<!--"):
            self.passages.append(
                Passage(line, self.headings, token.content.strip(), PassageKind.COMMENT, last_line=line)
            )

    def _nested(self, text: str, line: int) -> None:
        inner = read_markdown(text, first_line=line, headings=self.headings, depth=self.depth + 1)
        self.snippets += inner.snippets
        self.passages += inner.passages


def read_info(info: str) -> tuple[str, str, dict[str, str]]:
    """A fence's info string: language, directive name, options such as title."""
    info = info.strip()
    found = re.match(r"^\{([\w:.-]+)\}\s*(.*)$", info)
    if found:
        argument = found[2].strip()
        language = argument.split()[0].lower() if argument else ""
        if found[1] == "doctest":
            language = "pycon"
        elif found[1] in ("testcode", "testsetup", "testcleanup"):
            language = "python"
        return language, found[1], {}
    options = {key.lower(): value for key, value in re.findall(r"([\w-]+)\s*=\s*[\"']([^\"']*)[\"']", info)}
    word = re.match(r"^\.?([\w+#.-]*)", info.lstrip("{ ").strip())
    language = word[1].lower().removeprefix(".") if word else ""
    named = re.match(r"^[\w+#-]*:([\w./-]+\.\w+)", info)
    if named:
        options.setdefault("title", named[1])
    flags = re.sub(r"[\"'][^\"']*[\"']", "", info)[len(language) :]
    for flag in re.findall(r"[\w-]+", flags):
        options.setdefault(flag.lower(), "")
    return language, "", options


def _directive_options(options: dict[str, str], text: str) -> tuple[dict[str, str], str, int]:
    """`:name: value` lines, or a `---` block, at the top of a MyST directive; the rest; the lines left out."""
    lines = text.split("\n")
    found = dict(options)
    at = 0
    if lines and lines[0].strip() == "---":
        end = next((index for index, line in enumerate(lines[1:], 1) if line.strip() == "---"), 0)
        for line in lines[1:end]:
            name, _, value = line.partition(":")
            found[name.strip().lower()] = value.strip()
        at = end + 1 if end else 0
    else:
        while at < len(lines) and (option := re.match(r"^:([\w-]+):\s*(.*)$", lines[at])):
            found[option[1].lower()] = option[2].strip()
            at += 1
    while 0 < at < len(lines) and not lines[at].strip():
        at += 1
    return found, "\n".join(lines[at:]), at


def _plain(token: Token) -> str:
    """Inline markup taken off; code keeps its backticks, links their text, images and HTML go."""
    return " ".join("".join(_pieces(token.children or [])).split())


def _pieces(children: list[Token]) -> Iterator[str]:
    for child in children:
        if child.type == "text":
            yield child.content
        elif child.type == "code_inline":
            yield f"`{child.content}`"
        elif child.type in ("softbreak", "hardbreak"):
            yield " "
        elif child.type == "html_inline" and HTML_CODE.fullmatch(child.content):
            yield "`"
