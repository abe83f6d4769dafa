"""Exit statuses that documents name, and in which situation."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from review_agents.probes.documents import ELSEWHEN, Document
from review_agents.probes.markup import Passage, PassageKind


class Situation(StrEnum):
    """What plain code can bring about."""

    WRONG_USE = "wrong use"  # an option or a command that does not exist
    MISSING_FILE = "a file that is not there"
    BAD_INPUT = "an input that is not understood"
    UNKNOWN_NAME = "a name that does not occur"


@dataclass(frozen=True, slots=True)
class StatusClaim:
    """A document says that the program ends with this status in that situation."""

    file: str
    line: int
    headings: tuple[str, ...]
    status: int
    condition: str
    situations: frozenset[Situation]
    commands: frozenset[str]  # words in backticks in the condition: perhaps subcommands


SPEAKS = re.compile(
    r"\bexit(?:s|ed|ing)?\b[^.]{0,25}\b(?:status|code)\b|\b(?:exit|return)(?:s|ed|"
    r"ing)?[ -](?:status|code|value)(?:es|s)?\b|\bexit(?:s|ed)?\b(?: with)? ?`?\d|\bstatus "
    r"code",
    re.I,
)
HEADS = re.compile(r"\b(?:exit|return)[ -]?(?:status|code|value)(?:es|s)?\b|^\s*(?:status|code)s?\s*$", re.IGNORECASE)
STATUS = re.compile(r"(?<![\w.,/:#$%=-])`?(\d{1,3})`?(?![\w%/:=-]|\.\d|,\d)")
# A clause that denies or restricts what is said must not be read as a claim.
HEDGED = re.compile(
    r"\b(?:unless|except|does not|do not|don't|doesn't|never|used to|previously|instead of|no longer|deprecated)\b",
    re.I,
)
PATTERNS: dict[Situation, re.Pattern[str]] = {
    Situation.WRONG_USE: re.compile(
        r"\b(?:bad|wrong|incorrect|invalid|improper) (?:use|usage|command[- ]line|arguments?|"
        r"options?|invocation|flags?|parameters?)\b|"
        r"\busage errors?\b|\bcommand[- ]line (?:is wrong|errors?|is invalid|usage errors?)|"
        r"\bmisuse\b|\bunknown (?:option|flag|command)|"
        r"\bcommand line\b[^.;|]{0,20}\bwrong\b|\bused wrongly\b|\barguments? (?:is|are) "
        r"(?:invalid|wrong)|\bbad usage\b",
        re.IGNORECASE,
    ),
    Situation.MISSING_FILE: re.compile(
        r"\b(?:file|input|path|document|config\w*|snapshot|source|"
        r"archive)s?\b[^.;|]{0,30}\b(?:cannot|can't|can not|could not|couldn't) "
        r"be (?:read|opened|found|loaded|accessed)|\b(?:cannot|can't|could not|unable to|fail\w* "
        r"to) (?:read|open|find|load|access) "
        r"(?:the |a |an |any |its )?(?:\w+ )?(?:file|input|path)|\b(?:file|path|"
        r"input)s?\b[^.;|]{0,12}\b(?:not found|does not exist|do not exist"
        r"|doesn't exist|is missing|are missing|unreadable)|\b(?:missing|no such|unreadable|"
        r"nonexistent|non-existent) (?:input )?files?\b",
        re.IGNORECASE,
    ),
    Situation.BAD_INPUT: re.compile(
        r"\b(?:input|file|snapshot|it|line|document|text|data|config\w*|\w+ "
        r"file)\b[^.;|]{0,12}\b(?:is|are|was|were) (?:not (?:a|an|valid)\b|"
        r"malformed|corrupt|invalid|wrong|broken|unreadable)|\bor is not an? \w+|\b(?:malformed|"
        r"corrupt\w*|unparsable|unparseable|invalid) "
        r"(?:input|files?|data|lines?|json|yaml|toml|csv|syntax|document)|\b(?:input|lines?|"
        r"files?)\b[^.;|]{0,30}\b(?:cannot|can't|could not) "
        r"be (?:parsed|understood|decoded)|\b(?:lines?|records?|rows?)\b[^.;|]{0,12}\b(?:cannot|"
        r"can't|could not) be read|"
        r"\bparse errors?\b|\bsyntax errors?\b|\bleft\b[^.;|]{0,20}\blines?\b|\blines?\b[^.;|]{0,12}\bleft out\b|"
        r"\bnot understood\b|\bskipped (?:bad |invalid )?lines?",
        re.IGNORECASE,
    ),
    Situation.UNKNOWN_NAME: re.compile(
        r"\b(?:there (?:is|are) no such|no such) (?!file)\w+|\bunknown (?!option|flag|command|error)\w+|"
        r"\b(?!file\b|path\b|input\b)\w+(?: \w+)? that (?:is|are) not there|\b(?!file\b|"
        r"path\b)(?:key|column|name|target|stage|task|field|profile|section|table|"
        r"entry|job|rule|item|record|variable)s?\b[^.;|]{0,20}\b(?:not found|does not exist|"
        r"doesn't exist|is missing|cannot be found)",
        re.IGNORECASE,
    ),
}  # fmt: skip


def status_claims(document: Document) -> tuple[StatusClaim, ...]:
    found: list[StatusClaim] = []
    spoken: dict[tuple[str, ...], int] = {}  # headings under which statuses were last spoken of -> line
    for passage in document.passages:
        if passage.kind is PassageKind.COMMENT or any(ELSEWHEN.search(heading) for heading in passage.headings):
            continue
        for status, condition, text in _pairs(passage, spoken):
            situations = situations_of(condition)
            if situations and 0 <= status <= 255:
                line = document.line_with(text, passage.line) if text else passage.line
                commands = frozenset(re.findall(r"`([a-z][\w-]*)`", condition))
                found.append(
                    StatusClaim(document.file, line, passage.headings, status, condition, situations, commands)
                )
        if SPEAKS.search(passage.text):
            spoken[passage.headings] = passage.last_line or passage.line
    return tuple(found)


def situations_of(condition: str) -> frozenset[Situation]:
    if HEDGED.search(re.sub(r"\bdoes(?: not|n't) exist|do not exist|is not there", "", condition)):
        return frozenset()
    return frozenset(situation for situation, pattern in PATTERNS.items() if pattern.search(condition))


def _pairs(passage: Passage, spoken: dict[tuple[str, ...], int]) -> Iterator[tuple[int, str, str]]:
    """Status, condition, and a piece of the source by which to find the line."""
    if passage.kind is PassageKind.ROW:
        first = passage.cells[0].strip(" `*") if passage.cells else ""
        headed = any(HEADS.search(cell) for cell in passage.header[:1]) or any(
            HEADS.search(h) for h in passage.headings[-1:]
        )
        if headed and re.fullmatch(r"\d{1,3}", first):
            yield int(first), " ".join(passage.cells[1:]), ""
        return
    if passage.kind is PassageKind.ITEM:
        near = 0 < passage.line - spoken.get(passage.headings, -99) <= 15 or any(
            HEADS.search(h) for h in passage.headings[-1:]
        )
        item = re.match(r"^`?(\d{1,3})`?\s*(?:[:=|–—-]|\bif\b|\bwhen\b|\bon\b)\s*(.+)$", passage.text)
        if near and item:
            yield int(item[1]), item[2], ""
            return
    for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`])", passage.text):
        if SPEAKS.search(sentence):
            yield from _in_sentence(sentence)


def _in_sentence(sentence: str) -> Iterator[tuple[int, str, str]]:
    """`0 if A, 1 if B, 2 if C` by what follows each number; `if C, it exits with 2` by what comes before."""
    numbers = list(STATUS.finditer(sentence))
    if not numbers:
        return
    for at, number in enumerate(numbers):
        end = numbers[at + 1].start() if at + 1 < len(numbers) else len(sentence)
        after = sentence[number.end() : end].strip(" ,;.")
        if HEDGED.search(sentence[numbers[at - 1].end() if at else 0 : number.start()]):
            continue
        if re.match(
            r"^\W*(?:if|when|whenever|on|for|in case|means|is|indicates|where|upon|:|\()", after, re.IGNORECASE
        ):
            yield int(number[1]), after, number[0]
        elif len(numbers) == 1:
            yield int(number[1]), sentence[: number.start()], number[0]


def expected_statuses(
    claims: Iterable[StatusClaim], situation: Situation, command: tuple[str, ...]
) -> list[StatusClaim]:
    """Claims about that situation that hold for a command such as ("spanparse", "sum")."""
    fitting = [claim for claim in claims if situation in claim.situations and _is_about(claim, command)]
    narrow = [claim for claim in fitting if set(claim.commands) & set(command[1:])]
    return narrow or fitting


def _is_about(claim: StatusClaim, command: tuple[str, ...]) -> bool:
    """A condition that names another program's or subcommand's word is not about this one."""
    words = {word for word in claim.commands if re.fullmatch(r"[a-z][\w-]*", word)}
    return not words or bool(words & set(command)) or (not command[1:] and not words)
