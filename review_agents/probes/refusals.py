"""What argument parsers say when they refuse a command line: argparse, optparse, getopt, click, typer, docopt, fire."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    kind: str  # option, command, value, missing, extra, usage
    word: str  # what was refused, as it stands in the command line; empty for `missing` and `usage`
    message: str  # the parser's own line
    option: str = ""  # for `value`: whose value it was
    hint: str = ""  # what the parser suggests


PATTERNS = (
    ("option", re.compile(r"[Nn]o such option:? ?['\"]?(-[\w-]+)")),
    ("option", re.compile(r"(?:unrecognized|unknown|invalid|unsupported) (?:option|flag|argument)s?:? "
                          r"?['\"`]?(-[\w-]+)", re.I)),
    ("option", re.compile(r"option ['\"]?(--?[\w-]+)['\"]? (?:not recognized|is not recognized|is unknown|does not "
                          r"exist)")),
    ("options", re.compile(r"error: unrecognized arguments: (.+)")),
    ("option", re.compile(r"(?:Could not consume arg|Unknown command line flag)[:']* ?'?(-[\w-]+)")),
    ("command", re.compile(r"No such command:? ?['\"]?([\w:.-]+)")),
    ("command", re.compile(r"(?:unknown|invalid|unrecognized) (?:sub-?)?command:? ?['\"`]?([\w:.-]+)", re.I)),
    ("choice", re.compile(r"argument (\S.*?): invalid choice: ['\"]?([^'\"\s]+)['\"]?")),
    ("click-choice", re.compile(r"Invalid value for ['\"]?(\S+?)['\"]?:? ['\"]?([^'\"\n]+?)['\"]? is not (?:one of|a "
                                r"valid)")),
    ("extra", re.compile(r"Got unexpected extra arguments? \(([^)]*)\)")),
    ("missing", re.compile(r"the following arguments are required: (.+)|Missing (?:argument|option|parameter|"
                           r"command)|too few arguments")),
)  # fmt: skip
USAGE = re.compile(r"^\s*usage:", re.IGNORECASE | re.MULTILINE)
HINT = re.compile(r"(?:Did you mean|maybe you meant|Possible options|choose from)[^\w-]*([^\n?]{1,200})", re.IGNORECASE)


def read_refusal(said: str, command: str) -> Refusal | None:
    """Why a parser refused that command; None when the output is no refusal, or is about no word of the command."""
    flat = re.sub(r"[│┃|╭╮╰╯─]+", " ", said)
    hint = found[1].strip(" ()'\"") if (found := HINT.search(flat)) else ""
    for kind, pattern in PATTERNS:
        found = pattern.search(flat)
        if not found:
            continue
        message = _line_around(flat, found.start())
        if kind == "options":
            refused = [word for word in found[1].split() if word.startswith("-") and len(word) > 1]
            if refused and _occurs(refused[0], command):
                return Refusal("option", refused[0].partition("=")[0], message, hint=hint)
            return Refusal("extra", found[1].strip(), message, hint=hint)
        if kind == "choice":
            named = found[1].split("/")[-1]
            if named.startswith("-"):
                return (
                    Refusal("value", found[2], message, option=named, hint=hint) if _occurs(found[2], command) else None
                )
            return Refusal("command", found[2], message, hint=hint) if _occurs(found[2], command) else None
        if kind == "click-choice":
            option = found[1].strip("'\"").split("/")[-1].strip()
            return Refusal("value", found[2], message, option=option, hint=hint) if _occurs(found[2], command) else None
        if kind in ("option", "command"):
            word = found[1]
            return Refusal(kind, word, message, hint=hint) if _occurs(word, command) else None
        return Refusal(kind, (found[1] or "").strip() if pattern.groups else "", message, hint=hint)
    if USAGE.search(flat):
        return Refusal("usage", "", _line_around(flat, USAGE.search(flat).start()))  # type: ignore[union-attr]
    return None


def _occurs(word: str, command: str) -> bool:
    bare = word.partition("=")[0]
    if re.fullmatch(r"-\w", bare):
        return bool(re.search(rf"(?<!\S)-\w*{re.escape(bare[1])}", command))
    return bool(re.search(rf"(?<![\w-]){re.escape(bare)}(?![\w-])", command))


def _line_around(text: str, at: int) -> str:
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    return " ".join(text[start : len(text) if end < 0 else end].split())[:240].rstrip(".")
