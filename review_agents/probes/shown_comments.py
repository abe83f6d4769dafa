"""Comments in Python code that show what a statement gives: `f(1)  # -> 2`. Prose in a comment is no claim."""

import io
import re
import tokenize
from dataclasses import dataclass, replace

from review_agents.probes.comparing import Comparison, Verdict, compare, parse_value


@dataclass(frozen=True, slots=True)
class ShownComment:
    line: int  # within the block, from 1
    text: str
    marked: bool  # `# -> x` rather than `# x`


MARKED = re.compile(
    r"^#+\s*(?:(?:=+|-+)>|→|⇒|>{1,3}(?=\s)|==(?=\s)|(?:prints?|returns?|outputs?|result|gives|"
    r"out|evaluates to|is)(?:\s+(?:the\s+)?(?:value|string))?:?(?=\s))"
    r"\s*(?P<text>.+)$",
    re.IGNORECASE,
)


NO_VALUE, PROSE = "the statement has no value", "the comment may be prose"
NO_CLAIM = (NO_VALUE, PROSE)


def without_comment(line: str) -> str:
    """A line of Python code up to the comment that ends it; a line that is all comment stays."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(line).readline):
            if token.type == tokenize.ERRORTOKEN and token.string.strip():
                break
            if token.type == tokenize.COMMENT:
                return line[: token.start[1]].rstrip() or line
    except (tokenize.TokenError, IndentationError, SyntaxError):
        pass  # the line goes on below, or is no Python
    return line


def comments_as_output(text: str) -> dict[int, ShownComment]:
    """What comments show, by the last line of the statement that they stand behind or right below."""
    comments: dict[int, tuple[str, bool]] = {}
    code_lines: set[int] = set()
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                comments[token.start[0]] = (token.string, not token.line[: token.start[1]].strip())
            elif token.type not in (
                tokenize.NL,
                tokenize.NEWLINE,
                tokenize.INDENT,
                tokenize.DEDENT,
                tokenize.ENDMARKER,
            ):
                code_lines.update(range(token.start[0], token.end[0] + 1))
    except (tokenize.TokenError, IndentationError, SyntaxError):
        return {}
    found: dict[int, ShownComment] = {}
    for line, (comment, alone) in sorted(comments.items()):
        marked = MARKED.match(comment)
        shown = marked["text"] if marked else re.sub(r"^#+\s*", "", comment)
        if not alone:
            found[line] = ShownComment(line, shown.strip(), bool(marked))
            continue
        above = max((code for code in code_lines if code < line), default=0)
        lines_between = range(above + 1, line)
        if not above or any(between not in comments for between in lines_between):
            continue
        if above in found and found[above].line < line and found[above].marked and lines_between:
            found[above] = replace(found[above], text=found[above].text + "\n" + re.sub(r"^#+\s?", "", comment))
        elif above not in found and (marked or (line + 1 not in code_lines and is_display(shown))):
            found[above] = ShownComment(line, shown.strip(), bool(marked))
    return found


def is_display(text: str) -> bool:
    """A value that nobody writes as prose: a string in quotes, or brackets around something."""
    value = parse_value(text)
    return value is not None and value[1][0] in ("str", "bytes", "List", "Tuple", "set", "dict")


def compare_comment(shown: ShownComment, value: str | None, string: str | None, kind: str, out: str) -> Comparison:
    """A comment against the value or the output of its statement. Prose in a comment is no claim."""
    candidates = [text for text in (value, string, out.rstrip("\n") or None) if text is not None]
    if not candidates:
        if shown.marked and shown.text == "None":
            return Comparison(Verdict.SAME)
        return Comparison(Verdict.UNSURE, NO_VALUE)
    best = Comparison(Verdict.UNSURE)
    for text in candidates:
        comparison = compare(shown.text, text, stable=True)
        if comparison.verdict.agrees:
            return comparison
        if comparison.verdict is Verdict.DIFFERENT or best.reason == "":
            best = comparison
    wanted, real = parse_value(shown.text), parse_value(value if value is not None else out.strip())
    if wanted is None or real is None or wanted[1][0] in ("name", "call") or shown.text.strip() in ("...", ""):
        return Comparison(Verdict.UNSURE, PROSE)
    if wanted[1][0] != real[1][0]:
        return Comparison(Verdict.UNSURE, "the comment may be about something else")
    if wanted[1][0] == "int" and not shown.marked and abs(wanted[1][1]) < 30:
        return Comparison(Verdict.UNSURE, "the comment may number the lines")
    return best
