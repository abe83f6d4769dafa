"""Shell text taken apart: console transcripts with prompts and output, and scripts without prompts.

Line numbers are counted from 1 in the file that holds the text; `first_line` is the line of the text's first line.
"""

import re
from dataclasses import dataclass, replace

PROMPT = re.compile(
    r"^\s{0,8}(?:\([\w.-]+\)\s+)?"  # (venv)
    r"(?:\[[^\]\n]{1,60}\]\s?|[\w.-]+@[\w.-]+:?\S*\s*|[~/][\w./~-]*\s+)?"  # [user@host dir], user@host:~, ~/dir
    r"(?P<sign>[$%❯➜])\s+(?=\S)"
)
EMPTY_PROMPT = re.compile(r"^\s{0,8}[$%❯➜]\s*$")
CONTINUATION = re.compile(r"^\s*>(?: |$)")
HEREDOC = re.compile(r"(?<!<)<<(-?)\s*(['\"]?)([A-Za-z_][\w-]*)\2(?!<)")
OPENERS = {"if": "fi", "for": "done", "while": "done", "until": "done", "case": "esac", "select": "done"}
SHOWN = re.compile(r"^#\s*(?:=+>|-+>|>+|→|⇒|outputs?:|prints:|out:)\s?(?P<text>.*)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a document, and what the document shows of its output."""

    line: int  # of its first line in the file
    text: str  # without prompts; may have several lines
    output: str = ""  # as shown below it; empty when nothing is shown
    output_line: int = 0  # line of the first shown line; 0 when nothing is shown
    shows_output: bool = False  # whether the document shows output at all (a transcript always does, if only none)


def has_prompts(text: str) -> bool:
    return any(PROMPT.match(line) for line in text.splitlines())


def read_transcript(text: str, first_line: int = 1) -> tuple[Command, ...]:
    """Commands with their output. Lines before the first prompt are ignored."""
    lines = text.splitlines()
    sign = next((found["sign"] for line in lines if (found := PROMPT.match(line))), None)
    commands: list[Command] = []
    at = 0
    while at < len(lines):
        found = PROMPT.match(lines[at])
        if found and found["sign"] == sign:
            start = at
            command, at = _take_command(lines, at, lines[at][found.end() :], prompted=True)
            output_start = at
            while at < len(lines) and not _starts_command(lines[at], sign):
                at += 1
            output = _dedent_like(lines[output_start:at], lines[start])
            if not command.lstrip().startswith("#"):
                commands.append(_with_output(Command(first_line + start, command), output, first_line + output_start))
        else:
            at += 1
    return tuple(commands)


def _starts_command(line: str, sign: str | None) -> bool:
    found = PROMPT.match(line)
    return bool(found and found["sign"] == sign) or bool(EMPTY_PROMPT.match(line))


def _with_output(command: Command, lines: list[str], line: int) -> Command:
    while lines and not lines[0].strip():
        lines, line = lines[1:], line + 1
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    if not lines:
        return replace(command, shows_output=True)
    return replace(command, output="\n".join(lines), output_line=line, shows_output=True)


def _dedent_like(lines: list[str], prompt_line: str) -> list[str]:
    """Take the prompt line's own indentation off the output below it."""
    indent = len(prompt_line) - len(prompt_line.lstrip())
    return [line[indent:] if not line[:indent].strip() else line for line in lines]


def read_script(text: str, first_line: int = 1) -> tuple[Command, ...]:
    """The commands of a script. Output is what a marked comment (`# => x`) behind or below a command shows."""
    lines = text.splitlines()
    commands: list[Command] = []
    at = 0
    while at < len(lines):
        stripped = lines[at].strip()
        if not stripped or stripped.startswith("#"):
            shown = SHOWN.match(stripped)
            if shown and commands and not (commands[-1].output and commands[-1].output_line != first_line + at - 1):
                commands[-1] = _more_output(commands[-1], shown["text"], first_line + at)
            at += 1
            continue
        start = at
        command, at = _take_command(lines, at, lines[at].strip(), prompted=False)
        command, shown_text = _split_marked_comment(command)
        taken = Command(first_line + start, command)
        if shown_text is not None:
            taken = _more_output(taken, shown_text, first_line + at - 1)
        commands.append(taken)
    return tuple(commands)


def _more_output(command: Command, text: str, line: int) -> Command:
    joined = f"{command.output}\n{text}" if command.output else text
    return replace(command, output=joined, output_line=command.output_line or line, shows_output=True)


def _split_marked_comment(command: str) -> tuple[str, str | None]:
    """`cmd  # => shown` into its two parts; a plain comment stays part of the command."""
    for found in re.finditer(r"\s#", command):
        before, comment = command[: found.start()], command[found.start() + 1 :]
        if _is_whole(before) and (shown := SHOWN.match(comment)) and "\n" not in comment:
            return before.rstrip(), shown["text"]
    return command, None


def _take_command(lines: list[str], at: int, first: str, *, prompted: bool) -> tuple[str, int]:
    """The command that begins at that line, over as many lines as it needs; and the index after it."""
    command, at = first, at + 1
    while at < len(lines) and not _is_whole(command):
        following = lines[at]
        if prompted:
            if PROMPT.match(following) and not _open_heredoc(command):
                break
            found = CONTINUATION.match(following)
            following = following[found.end() :] if found else following
        elif _open_heredoc(command) is None:
            following = following.rstrip()
        command, at = f"{command}\n{following}", at + 1
    return command.rstrip(), at


def _is_whole(command: str) -> bool:
    """Whether the shell would run this now rather than wait for another line."""
    if _open_heredoc(command) is not None:
        return False
    bare = without_heredocs(command)
    if bare.rstrip(" \t").endswith("\\") or re.search(r"(\|\|?|&&)\s*$", bare):
        return False
    words, quote_open = _bare_words(bare)
    if quote_open:
        return False
    depth = 0
    for word in words:
        if word in OPENERS:
            depth += 1
        elif word in OPENERS.values():
            depth -= 1
    return depth <= 0


def _open_heredoc(command: str) -> str | None:
    """The delimiter that is still waited for, or None."""
    lines = command.split("\n")
    waiting: list[tuple[str, bool]] = []
    for line in lines:
        if waiting:
            word, tabs = waiting[0]
            if (line.lstrip("\t") if tabs else line).rstrip() == word:
                waiting.pop(0)
            continue
        waiting += [(found[3], bool(found[1])) for found in HEREDOC.finditer(line)]
    return waiting[0][0] if waiting else None


def without_heredocs(command: str) -> str:
    """The command with the content of its heredocs left out."""
    kept: list[str] = []
    waiting: list[tuple[str, bool]] = []
    for line in command.split("\n"):
        if waiting:
            word, tabs = waiting[0]
            if (line.lstrip("\t") if tabs else line).rstrip() == word:
                waiting.pop(0)
            continue
        kept.append(line)
        waiting += [(found[3], bool(found[1])) for found in HEREDOC.finditer(line)]
    return "\n".join(kept)


def _bare_words(command: str) -> tuple[list[str], bool]:
    """Words at the places where the shell looks for keywords, and whether a quote is still open."""
    words: list[str] = []
    current = ""
    quote = ""
    at_start = True  # whether the next word is in command position
    escaped = False
    for position, char in enumerate(command):
        if escaped:
            escaped = False
            current += char
        elif quote:
            if char == "\\" and quote == '"':
                escaped = True
            elif char == quote:
                quote = ""
        elif char == "\\":
            escaped = True
        elif char in "'\"`":
            quote, current = char, current + "q"
        elif char == "#" and not current and (position == 0 or command[position - 1].isspace()):
            break_at = command.find("\n", position)
            rest = "" if break_at < 0 else command[break_at:]
            more, quote_open = _bare_words(rest)
            return words + more, quote_open
        elif char.isspace() or char in ";|&(){}":
            if current and at_start:
                words.append(current)
                at_start = current in {"then", "do", "else", "elif", "time", "!", *OPENERS}
            current = ""
            if char in ";|&\n(){}":
                at_start = True
        else:
            current += char
    if current and at_start:
        words.append(current)
    return words, bool(quote)
