"""reStructuredText into snippets and passages, Sphinx's directives and roles included.

docutils reads; nothing is included from other files and nothing is executed. Its registries are global, so Sphinx's
names are registered once, when this module is imported.
"""

import re
from typing import Any

from docutils import nodes
from docutils.core import publish_doctree
from docutils.parsers.rst import Directive, directives, roles, states

from review_agents.probes.markup import Markup, Passage, PassageKind, Snippet

CODE = ("code-block", "sourcecode", "code", "parsed-literal", "prompt", "terminal", "ipython", "jupyter-execute",
        "doctest", "testcode", "testoutput", "testsetup", "testcleanup", "exec_code", "plot", "console", "literal",
        "invisible-code-block", "clear-namespace")  # fmt: skip
NESTING = ("note", "warning", "tip", "hint", "important", "seealso", "versionadded", "versionchanged", "deprecated",
           "rubric", "tabs", "tab", "group-tab", "code-tab", "tab-set", "tab-item", "dropdown", "admonition", "only",
           "container", "topic", "sidebar", "details", "grid", "grid-item-card", "card", "function", "method", "class",
           "module", "data", "attribute", "exception", "py:function", "py:method", "py:class", "py:module",
           "py:attribute", "py:data", "py:exception", "py:decorator", "option", "program", "describe", "glossary",
           "hlist", "centered", "compound", "highlights", "epigraph", "pull-quote", "todo")  # fmt: skip
IGNORED = ("toctree", "automodule", "autofunction", "autoclass", "automethod", "autodata", "autoexception",
           "autosummary", "literalinclude", "include", "highlight", "currentmodule", "index", "image", "figure",
           "raw", "csv-table", "program-output", "click", "argparse", "contents", "sectnum", "autoattribute",
           "py:currentmodule", "meta", "tabularcolumns", "codeauthor", "sectionauthor", "graphviz", "mermaid",
           "autoprogram", "typer", "command-output", "autodoc2-object", "bibliography", "default-role", "cssclass",
           "math", "deprecated-removed", "testimonial", "youtube", "runblock", "skip")  # fmt: skip
ROLES = ("func", "meth", "class", "mod", "attr", "exc", "data", "obj", "const", "ref", "doc", "file", "command",
         "option", "envvar", "term", "pep", "rfc", "issue", "pr", "user", "py:func", "py:meth", "py:class", "py:mod",
         "py:attr", "py:exc", "py:data", "py:obj", "py:const", "program", "samp", "kbd", "menuselection", "guilabel",
         "download", "any", "abbr", "gh", "ghpr", "pypi", "cve", "token", "keyword", "c:func", "dfn", "mimetype",
         "numref", "eq", "source", "commit", "code", "envvar", "cpp:func", "bpo", "external")  # fmt: skip


class _Code(Directive):
    """Any directive whose content is code."""

    optional_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec = None  # options are read from the block's own text below

    def run(self) -> list[nodes.Node]:
        raw = self.block_text.split("\n")
        options: dict[str, str] = {}
        for line in raw[1:]:
            found = re.match(r"^\s+:([\w-]+):\s*(.*)$", line)
            if not found:
                if line.strip():
                    break
                continue
            options[found[1].lower()] = found[2].strip()
        content = list(self.content)
        offset = self.content_offset + 1
        while content and (re.match(r"^:[\w-]+:", content[0]) or not content[0].strip()):
            content, offset = content[1:], offset + 1
        argument = (self.arguments[0] if self.arguments else "").strip()
        argument = re.split(r"\n|\s:[\w-]+:", argument)[0].strip()
        node = nodes.literal_block("\n".join(content), "\n".join(content))
        node["directive"] = self.name
        node["argument"] = argument
        node["directive_options"] = options
        node["content_line"] = offset
        return [node]


class _Nesting(Directive):
    """Any directive whose content is more text. Its argument is kept as a passage where it is a signature or title."""

    optional_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec = None

    def run(self) -> list[nodes.Node]:
        node = nodes.container()
        if self.name == "code-tab":
            return _Code.run(self)  # type: ignore[arg-type]
        if self.name in ("option",) and self.arguments:
            node += nodes.paragraph("", "", nodes.literal(self.arguments[0], self.arguments[0]))
            node[-1].line = self.lineno
        self.state.nested_parse(self.content, self.content_offset, node)
        return [node]


class _Nothing(Directive):
    optional_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec = None

    def run(self) -> list[nodes.Node]:
        return []


def _role(
    name: str, rawtext: str, text: str, lineno: int, inliner: Any, options: Any = None, content: Any = None
) -> Any:
    shown = re.sub(r"\s*<[^<>]*>$", "", text).lstrip("~!")
    return [nodes.literal(rawtext, shown)], []


def _register() -> None:
    for name in CODE:
        directives.register_directive(name, _Code)
    for name in NESTING:
        directives.register_directive(name, _Nesting)
    for name in IGNORED:
        directives.register_directive(name, _Nothing)
    for name in ROLES:
        roles.register_local_role(name, _role)


_register()

SETTINGS = {
    "report_level": 5,
    "halt_level": 6,
    "warning_stream": False,
    "file_insertion_enabled": False,
    "raw_enabled": False,
    "input_encoding": "unicode",
    "syntax_highlight": "none",
    "doctitle_xform": False,
    "sectsubtitle_xform": False,
    "_disable_config": True,
}


def read_rst(text: str) -> Markup:
    """Never raises for what the text holds: where docutils gives up, there is nothing to read."""
    try:
        tree = publish_doctree(text, settings_overrides=SETTINGS)
    except Exception:  # docutils raises many kinds for odd input, and none is our fault or the repo's
        return Markup((), ())
    reader = _Reader(text)
    reader.walk(tree, (), in_item=False)
    return Markup(tuple(reader.snippets), tuple(reader.passages))


class _Reader:
    def __init__(self, text: str):
        self.lines = text.expandtabs(8).splitlines()
        self.highlight = _highlights(self.lines)
        self.snippets: list[Snippet] = []
        self.passages: list[Passage] = []
        self.at = 1  # line of what was last placed: a node without a line comes after it

    def walk(self, node: Any, headings: tuple[str, ...], *, in_item: bool) -> None:
        for child in node.children:
            if isinstance(child, nodes.section):
                title = child.next_node(nodes.title)
                self.walk(child, (*headings, title.astext() if title else ""), in_item=False)
            elif isinstance(child, nodes.literal_block):
                self._literal(child, headings)
            elif isinstance(child, nodes.doctest_block):
                self._snippet(child.astext(), headings, "pycon")
            elif isinstance(child, nodes.table):
                self._table(child, headings)
            elif isinstance(child, nodes.paragraph | nodes.term):
                self._passage(child, headings, PassageKind.ITEM if in_item else PassageKind.PARAGRAPH)
            elif isinstance(child, nodes.option_list_item):
                self._option(child, headings)
            elif isinstance(child, nodes.comment):
                self._comment(child, headings)
            elif isinstance(child, nodes.title | nodes.system_message | nodes.image):
                continue
            elif isinstance(child, nodes.Element):
                self.walk(child, headings, in_item=in_item or isinstance(child, nodes.list_item))

    def _find(self, text: str, near: int = 0) -> int:
        """The line on which that text begins: at or after what came before, else anywhere, else the last known line."""
        first = next((line.strip() for line in text.splitlines() if line.strip()), "")
        if near and 0 < near <= len(self.lines) and first and first in self.lines[near - 1]:
            return near
        for at in (*range(max(self.at, 1), len(self.lines) + 1), *range(1, self.at)):
            if first and first in self.lines[at - 1]:
                return at
        return near or self.at

    def _literal(self, node: Any, headings: tuple[str, ...]) -> None:
        text = node.astext()
        directive = node.get("directive", "")
        argument = node.get("argument", "")
        options = dict(node.get("directive_options", {}))
        language = argument.split()[0].lower() if argument else ""
        group = ""
        if directive in ("testcode", "testsetup", "testoutput", "testcleanup", "doctest"):
            group, language = argument or "default", "" if directive == "testoutput" else "python"
            language = "pycon" if directive == "doctest" else language
        elif directive == "prompt":
            language = "bash"
        elif directive in ("parsed-literal", "ipython", "jupyter-execute", "plot", "literal"):
            language = directive
        elif directive == "clear-namespace":
            return
        if "caption" in options:
            options.setdefault("title", options["caption"].strip("`"))
        line = self._find(text, node.get("content_line", 0))
        if not language and directive in ("", "code-block", "sourcecode", "code"):
            language = self._highlight_at(line)
        hidden = directive in ("testsetup", "invisible-code-block")
        self.snippets.append(
            Snippet(line, headings, text.strip("\n"), language, directive, options, group, hidden=hidden)
        )
        self.at = line + text.strip("\n").count("\n") + 1

    def _highlight_at(self, line: int) -> str:
        language = ""
        for at, name in self.highlight:
            if at < line:
                language = name
        return language

    def _snippet(self, text: str, headings: tuple[str, ...], language: str) -> None:
        line = self._find(text)
        self.snippets.append(Snippet(line, headings, text, language))
        self.at = line + text.count("\n") + 1

    def _passage(self, node: Any, headings: tuple[str, ...], kind: PassageKind) -> None:
        text = _plain(node)
        if not text:
            return
        raw = node.rawsource or node.astext()
        line = self._find(raw, node.line or 0)
        self.passages.append(Passage(line, headings, text, kind, last_line=line + raw.count("\n")))
        self.at = max(self.at, line)

    def _table(self, table: Any, headings: tuple[str, ...]) -> None:
        rows = list(table.findall(nodes.row))
        header: tuple[str, ...] = ()
        start = self._find(table.astext())
        for row in rows:
            cells = tuple(" ".join(_plain(part) for part in entry.children) for entry in row.children)
            if isinstance(row.parent, nodes.thead):
                header = cells
                continue
            line = self._find(next((part.astext() for part in row.findall(nodes.paragraph)), ""))
            self.passages.append(
                Passage(line, headings, " | ".join(cells), PassageKind.ROW, cells, header, start, line)
            )
            for literal in row.findall(nodes.literal_block):
                self._literal(literal, headings)

    def _option(self, item: Any, headings: tuple[str, ...]) -> None:
        names = ", ".join(f"`{string.astext()}`" for string in item.findall(nodes.option))
        meaning = " ".join(_plain(part) for part in item.children[1:])
        line = self._find(next(item.findall(nodes.option)).astext())
        self.passages.append(
            Passage(line, headings, f"{names} | {meaning}", PassageKind.ROW, (names, meaning), ("option", "meaning"))
        )

    def _comment(self, node: Any, headings: tuple[str, ...]) -> None:
        text = node.astext()
        found = re.match(r"invisible-code(?:-block)?:?\s*(\w+)\n(.*)", text, re.DOTALL)
        line = self._find(text)
        if found:
            body = found[2].strip("\n")
            self.snippets.append(Snippet(line + 1, headings, body, found[1].lower(), hidden=True))
        self.passages.append(Passage(line, headings, text, PassageKind.COMMENT, last_line=line + text.count("\n")))


def _highlights(lines: list[str]) -> list[tuple[int, str]]:
    """Where `.. highlight:: LANGUAGE` changes what a bare literal block is written in."""
    found = ((at, re.match(r"^\.\.\s+highlight::\s*(\S+)", line)) for at, line in enumerate(lines, 1))
    return [(at, match[1].lower()) for at, match in found if match]


def _plain(node: Any) -> str:
    if isinstance(node, nodes.literal):
        return f"`{node.astext()}`"
    if isinstance(node, nodes.Text):
        return " ".join(node.astext().split()) if not node.astext().isspace() else " "
    if isinstance(node, nodes.image | nodes.system_message | nodes.literal_block | nodes.doctest_block):
        return ""
    if isinstance(node, nodes.paragraph | nodes.term | nodes.TextElement):
        text = "".join(_inline(child) for child in node.children)
        return " ".join(text.split())
    return " ".join(filter(None, (_plain(child) for child in node.children)))


def _inline(node: Any) -> str:
    if isinstance(node, nodes.literal):
        return f"`{node.astext()}`"
    if isinstance(node, nodes.Text):
        return str(node.astext())
    if isinstance(node, nodes.image | nodes.system_message):
        return ""
    return "".join(_inline(child) for child in node.children)


assert states  # docutils' own states register its standard directives
