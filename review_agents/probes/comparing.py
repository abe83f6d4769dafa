"""Output that a document shows against output that really came.

Tolerant of what differs between machines and moments (paths, times, dates, addresses, versions, temporary names,
colours, wrapped lines, the order in sets, `...`), strict about the rest. When a difference may have an innocent cause
the verdict is UNSURE, never DIFFERENT: a caller makes findings of DIFFERENT alone.
"""

import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    SAME = "same"
    TOLERATED = "tolerated"  # the same apart from what may differ
    ABBREVIATED = "abbreviated"  # the document shows a part of it
    UNSURE = "unsure"  # another text, but perhaps for an innocent reason
    DIFFERENT = "different"

    @property
    def agrees(self) -> bool:
        return self in (Verdict.SAME, Verdict.TOLERATED, Verdict.ABBREVIATED)


@dataclass(frozen=True, slots=True)
class Comparison:
    verdict: Verdict
    reason: str = ""
    shown: str = ""  # the first line that differs, as shown
    real: str = ""  # and as it came


def compare(shown: str, real: str, *, stable: bool = False, whole: bool = False) -> Comparison:
    """Compare two outputs.

    `stable`: the real output was the same in other surroundings (clock, hash seed, time zone), so that dates and order
    in it do not depend on them. `whole`: the document claims to show all of it, as a `>>>` session does.
    """
    shown_text, real_text = clean(shown), clean(real)
    if _folded(shown_text) == _folded(real_text):
        return Comparison(Verdict.SAME)
    if "..." in shown_text and _with_ellipsis(_folded(shown_text), _folded(real_text)):
        return Comparison(Verdict.TOLERATED, "the same apart from what `...` stands for")
    if "\\" in shown_text + real_text and _folded(_unescaped(shown_text)) == _folded(_unescaped(real_text)):
        return Comparison(Verdict.TOLERATED, "the same apart from escapes")
    if (traced := _compare_tracebacks(shown_text, real_text)) is not None:
        return traced
    if (valued := _compare_values(shown_text, real_text)) is not None:
        return valued
    shown_tokens, real_tokens = list(tokens(shown_text)), list(tokens(real_text))
    matcher = _Matcher(stable)
    if matcher.match(shown_tokens, real_tokens):
        if odd := _odd_duration(shown_tokens, real_tokens):
            return Comparison(Verdict.DIFFERENT, odd, *_first_difference(shown_text, real_text, strict=True))
        return Comparison(Verdict.TOLERATED, "the same apart from " + (matcher.tolerated or "layout"))
    if odd := _odd_duration_by_line(shown_text, real_text):
        return Comparison(Verdict.DIFFERENT, odd, *_first_difference(shown_text, real_text, strict=True))
    if not whole and _is_part(shown_text, real_text, stable):
        return Comparison(Verdict.ABBREVIATED, "the document shows a part of it")
    innocent = _innocent_reason(shown_text, real_text, shown_tokens, real_tokens, stable)
    lines = _first_difference(shown_text, real_text, strict=False, stable=stable)
    if innocent:
        return Comparison(Verdict.UNSURE, innocent, *lines)
    return Comparison(Verdict.DIFFERENT, "", *lines)


# Cleaning --------------------------------------------------------------------------------

ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
TYPOGRAPHIC = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "\u00a0": " ", "…": "...", "\u200b": None})


def clean(text: str) -> str:
    """Without colours, overwritten progress lines, white space at the ends and blank lines around."""
    text = ANSI.sub("", text).translate(TYPOGRAPHIC).replace("\r\n", "\n").replace("__main__.", "")
    lines = [line.rsplit("\r", 1)[-1] if "\r" in line.rstrip("\r") else line.rstrip("\r") for line in text.split("\n")]
    lines = [line.expandtabs().rstrip() for line in lines if line.strip() != "<BLANKLINE>"]
    return "\n".join(lines).strip("\n")


def _folded(text: str) -> str:
    return " ".join(text.split())


def _unspaced(text: str) -> str:
    return "".join(text.split())


ESCAPE = re.compile(r"\\+(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([nt\\'\"]))")


def _unescaped(text: str) -> str:
    """Escapes of a Python string written out: documents show them doubled or not at all."""

    def char(found: re.Match[str]) -> str:
        code = found[1] or found[2] or found[3]
        if code:
            return chr(int(code, 16)) if int(code, 16) < 0x110000 else found[0]
        return {"n": "\n", "t": "\t"}.get(found[4], found[4])

    return ESCAPE.sub(char, text)


def _with_ellipsis(shown: str, real: str) -> bool:
    """doctest's rule: `...` stands for any text, also within a word."""
    first, *middle, last = re.split(r"\[\.{3}\]|\.{3,}", shown)
    if len(first) + len(last) > len(real) or not real.startswith(first) or not real.endswith(last):
        return False
    at, end = len(first), len(real) - len(last)
    for piece in middle:
        at = real.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return bool(first or last or any(middle))


# Tokens ----------------------------------------------------------------------------------

MONTHS = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec)[a-z]*"
DAYS = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*"
TOKEN = re.compile(
    "|".join(
        f"(?P<{name}>{pattern})"
        for name, pattern in (
            ("ellipsis", r"\[\.{3}\]|\(\.{3}\)|<\.{3}>|\.{3,}|<snip>|\[snip\]|\[truncated\]"),
            ("uuid", r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"),
            ("address", r"\b0x[0-9a-fA-F]{5,}\b"),
            (
                "date",
                r"\b\d{4}-\d\d?-\d\d?(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?(?:Z|[+-]\d\d:?\d\d)?(?![\w-])"
                r"|\b\d{4}/\d\d?/\d\d?\b|\b\d\d?[/.]\d\d?[/.](?:\d{4}|\d\d)\b(?!\.\d)"
                rf"|\b(?:{DAYS},?\s+)?\d{{1,2}}\s+{MONTHS},?\s+\d{{4}}\b|"
                rf"\b(?:{DAYS},?\s+)?{MONTHS}\s+\d{{1,2}},?\s+\d{{4}}\b"
                rf"|\b{DAYS}\s+{MONTHS}\s+\d{{1,2}}\s+\d\d:\d\d:\d\d\s+(?:\w+\s+)?\d{{4}}\b",
            ),
            ("path", r"(?<![\w./:<])(?:~|\.{1,2})?(?:/[\w.@+~=-]+){2,}/?|(?<![\w./:<])/(?:tmp|home|usr|var|opt|"
                     r"root|job)\b/?"
                     r"|(?<![\w])~/[\w./@+-]*|\b[A-Za-z]:\\[\w.\\@+ -]*\w"),
            ("clock", r"\b\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?:\s?[AaPp]\.?[Mm]\b\.?)?"),
            ("version", r"\bv?\d+\.(?:\d+|[Xx*])\.(?:\d+|[Xx*])(?:[.+-]?[A-Za-z0-9]+)*\b|(?<=[Vv]ersion "
                        r")v?\d+(?:\.\d+)*\w*"
                        r"|(?<=[Pp]ython )\d+\.\d+|(?<=python)\d+\.\d+"),
            ("rate", r"\b\d+(?:\.\d+)?\s?(?:it|[kKMG]?i?[bB]|ops|req|rows|files?)/s(?:ec)?\b"),
            ("elapsed", r"(?<![\w.])\d+\.\d+(?:e-?\d+)?\s?(?:s|secs?|seconds?|ms|msec|us|µs|μs|ns|min|mins|minutes?|"
                        r"milliseconds?|microseconds?)\b"
                        r"|(?<=in )\d+\s?(?:s|ms|us|µs|ns|secs?|seconds?|minutes?|milliseconds?)\b"
                        r"|(?<=took )\d+\s?(?:s|ms|us|secs?|seconds?)\b|(?<![\w.])\d+(?:\.\d+)?\s?(?:us|µs|μs|ns)\b"),
            ("bar", r"[█▉▊▋▌▍▎▏░▒▓━╸╺]+|\[[=#>.\s-]{6,}\]"),
            ("hash", r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,128}\b"),
            ("number", r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w])"),
            ("rule", r"([-=_*~#+─═│|+])\1{2,}[-=_*~#+─═│|\s+]*"),
            ("word", r"\w+"),
            ("sign", r"[^\w\s]"),
        )
    ).replace(r"\1", r"(?P=ruled)").replace("([-=_*~#+─═│|+])", "(?P<ruled>[-=_*~#+─═│|+])")
)  # fmt: skip
ALWAYS_FREE = {"address", "path", "version", "rate", "elapsed", "bar"}
FREE_UNLESS_STABLE = {"date", "clock", "uuid", "hash"}
TEMPORARY = re.compile(r"^(?:tmp|temp)\w{4,}$")


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str


def tokens(text: str) -> Iterator[Token]:
    for found in TOKEN.finditer(text):
        kind = str(found.lastgroup)
        if kind == "ruled" or found.group("rule"):
            yield Token("rule", "---")
        elif kind == "word" and TEMPORARY.match(found[0]):
            yield Token("address", found[0])
        else:
            yield Token(kind, found[0])


class _Matcher:
    """Whether two sequences of tokens are alike; keeps in words what it had to tolerate."""

    def __init__(self, stable: bool):
        self.stable = stable
        self.kinds: set[str] = set()

    @property
    def tolerated(self) -> str:
        return ", ".join(sorted(self.kinds))

    def match(self, shown: list[Token], real: list[Token]) -> bool:
        """`...` in what is shown stands for anything."""
        pieces: list[list[Token]] = [[]]
        for token in shown:
            if token.kind == "ellipsis":
                pieces.append([])
            else:
                pieces[-1].append(token)
        if len(pieces) == 1:
            return len(shown) == len(real) and self._alike(shown, real)
        first, *middle, last = pieces
        if len(first) + len(last) > len(real) or not self._alike(first, real[: len(first)]):
            return False
        if last and not self._alike(last, real[-len(last) :]):
            return False
        at, end = len(first), len(real) - len(last)
        for piece in middle:
            while at + len(piece) <= end and not self._alike(piece, real[at : at + len(piece)]):
                at += 1
            if at + len(piece) > end:
                return False
            at += len(piece)
        self.kinds.add("what `...` stands for")
        return True

    def _alike(self, shown: list[Token], real: list[Token]) -> bool:
        return len(shown) == len(real) and all(self._one(a, b) for a, b in zip(shown, real, strict=True))

    def _one(self, shown: Token, real: Token) -> bool:
        if shown.text == real.text:
            return True
        if shown.kind == real.kind:
            free = shown.kind in ALWAYS_FREE or (shown.kind in FREE_UNLESS_STABLE and not self.stable)
            if free:
                self.kinds.add({"elapsed": "durations", "address": "addresses"}.get(shown.kind, f"{shown.kind}s"))
                return True
            if shown.kind == "number" and same_number(shown.text, real.text):
                self.kinds.add("digits not shown")
                return True
        return False


def same_number(shown: str, real: str) -> bool:
    """Whether the shown number is the real one, perhaps with digits left out. 5 and 5.0 are written differently."""
    shown, real = shown.replace(",", ""), real.replace(",", "")
    try:
        a, b = float(shown), float(real)
    except ValueError:
        return False
    integral = shown.lstrip("+-").isdigit(), real.lstrip("+-").isdigit()
    if integral[0] != integral[1]:
        return False
    if a == b:
        return True
    if all(integral):
        return False
    digits = len(shown.split(".")[1]) if "." in shown and "e" not in shown.lower() else None
    real_digits = len(real.split(".")[1]) if "." in real and "e" not in real.lower() else None
    if digits is not None and (real_digits is None or real_digits > digits >= 1):
        unit = 10.0**-digits
        return abs(a - b) < unit * 1.000001
    return abs(a - b) <= 1e-6 * max(abs(a), abs(b)) and min(len(shown), len(real)) > 7


# Durations that are data -----------------------------------------------------------------

SECONDS = {"s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0, "min": 60.0, "mins": 60.0, "minute": 60.0,
           "minutes": 60.0, "ms": 1e-3, "msec": 1e-3, "millisecond": 1e-3, "milliseconds": 1e-3, "us": 1e-6, "µs": 1e-6,
           "μs": 1e-6, "microsecond": 1e-6, "microseconds": 1e-6, "ns": 1e-9}  # fmt: skip
FAR = 50.0  # a duration is another one, whatever the machine, when it differs by this factor
CLOSE = 0.02


def _odd_duration(shown: list[Token], real: list[Token]) -> str:
    """Measured durations never agree closely. So where one does, all are data, and one that is far off is wrong."""
    pairs = [(a, b) for a, b in zip(shown, real, strict=False) if a.kind == b.kind == "elapsed"]
    seconds = [(_seconds(a.text), _seconds(b.text)) for a, b in pairs]
    if not any(a > 1 and abs(a - b) <= CLOSE * a for a, b in seconds):
        return ""
    for (a, b), (first, second) in zip(seconds, pairs, strict=True):
        if a and b and max(a / b, b / a) >= FAR:
            return f"{first.text} is shown and {second.text} came, while another duration in the same output agrees"
    return ""


def _odd_duration_by_line(shown: str, real: str) -> str:
    """The same where `1.4 s` meets `1500.0 s` between other tokens: texts that are alike apart from durations."""
    a = [token for token in tokens(shown) if token.kind == "elapsed"]
    b = [token for token in tokens(real) if token.kind == "elapsed"]
    rest_a = [token.text for token in tokens(shown) if token.kind != "elapsed"]
    rest_b = [token.text for token in tokens(real) if token.kind != "elapsed"]
    return _odd_duration(a, b) if len(a) == len(b) and rest_a == rest_b else ""


def _seconds(text: str) -> float:
    found = re.match(r"(\d+(?:\.\d+)?(?:e-?\d+)?)\s?(\S+)", text)
    return float(found[1]) * SECONDS.get(found[2], 1.0) if found else 0.0


# Python values ---------------------------------------------------------------------------


def _compare_values(shown: str, real: str) -> Comparison | None:
    """SAME or TOLERATED when both are the same Python value; None when that does not settle it."""
    a, b = parse_value(shown), parse_value(real)
    if a is None or b is None:
        return None
    if a == b and _written_alike(shown, real):
        return Comparison(Verdict.SAME)
    if _close(a, b):
        return Comparison(Verdict.TOLERATED, "the same value, written otherwise")
    return None


def _written_alike(shown: str, real: str) -> bool:
    return sorted(_unspaced(shown)) == sorted(_unspaced(real))


def parse_value(text: str) -> Any:
    """A Python display as a comparable value; None where it is not one. Calls such as `Point(x=1)` are kept as such."""
    text = re.sub(r"(?<![\w'\"])[uU](?=['\"])", "", text.strip())
    text = re.sub(r"(?<=\d)L\b", "", text)
    if not text or len(text) > 100_000:
        return None
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    try:
        return ("value", _value(node))
    except (TypeError, RecursionError, _NoValue):
        return None


class _NoValue(Exception):
    """The syntax is no display of a value."""


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant):
        if node.value is Ellipsis:
            raise _NoValue
        return (type(node.value).__name__, node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        kind, value = _value(node.operand)
        return (kind, -value if isinstance(node.op, ast.USub) else value)
    if isinstance(node, ast.List | ast.Tuple):
        return (type(node).__name__, tuple(_value(item) for item in node.elts))
    if isinstance(node, ast.Set):
        return ("set", frozenset(_value(item) for item in node.elts))
    if isinstance(node, ast.Dict):
        if any(key is None for key in node.keys):
            raise _NoValue
        return ("dict", frozenset((_value(key), _value(item)) for key, item in zip(node.keys, node.values) if key))  # noqa: B905
    if isinstance(node, ast.Call):
        return _call(node)
    if isinstance(node, ast.Name | ast.Attribute):
        return ("name", ast.unparse(node).split(".")[-1])
    raise _NoValue


def _call(node: ast.Call) -> Any:
    name = ast.unparse(node.func)
    last = name.split(".")[-1]
    values = [_value(item) for item in node.args]
    if last in ("set", "frozenset") and len(values) <= 1:
        return ("set", frozenset(values[0][1]) if values else frozenset())
    if last == "OrderedDict" and len(values) <= 1:
        if not values:
            return ("dict", frozenset())
        kind, items = values[0]
        return ("dict", items if kind == "dict" else frozenset(tuple(pair[1]) for pair in items))
    if name.startswith(("np.", "numpy.")) and len(values) == 1 and re.fullmatch(r"\w*(float|int|bool|str)\w*", last):
        return values[0]
    named = frozenset((keyword.arg, _value(keyword.value)) for keyword in node.keywords)
    return ("call", last, tuple(values), named)


def _close(a: Any, b: Any) -> bool:
    """Equal, floats apart from their last digits and 5 being another number than 5.0."""
    if a == b:
        return True
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        if len(a) == 2 and a[0] == b[0] == "float":
            return same_number(repr(a[1]), repr(b[1]))
        if len(a) == 2 and a[0] == b[0] == "str":
            return bool(_folded(a[1]) == _folded(b[1]))
        return all(_close(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, frozenset) and isinstance(b, frozenset) and len(a) == len(b):
        left = list(b)
        for item in a:
            match = next((other for other in left if _close(item, other)), None)
            if match is None:
                return False
            left.remove(match)
        return True
    return False


# Tracebacks ------------------------------------------------------------------------------

TRACEBACK = "Traceback (most recent call last)"


def raised_in(text: str) -> tuple[str, str] | None:
    """Type and message of the exception whose traceback ends the text; None when there is none."""
    if TRACEBACK not in text:
        return None
    for line in text[text.rindex(TRACEBACK) :].splitlines()[1:]:
        if line[:1].isspace() or not line.strip():
            continue
        if found := re.match(r"^([\w.]+)(?::\s*(.*))?$", line):
            return found[1].split(".")[-1], found[2] or ""
    return None


def _compare_tracebacks(shown: str, real: str) -> Comparison | None:
    if TRACEBACK not in shown or TRACEBACK not in real:
        return None
    a, b = raised_in(shown), raised_in(real)
    if a is None or b is None:
        return Comparison(Verdict.TOLERATED, "both are tracebacks")
    if a[0] != b[0]:
        return Comparison(Verdict.UNSURE, "another exception", ": ".join(a), ": ".join(b))
    if _folded(a[1]) == _folded(b[1]) or not a[1]:
        return Comparison(Verdict.SAME)
    return Comparison(Verdict.TOLERATED, "the same exception with another message", ": ".join(a), ": ".join(b))


# Parts, and reasons to doubt -------------------------------------------------------------


def _is_part(shown: str, real: str, stable: bool) -> bool:
    """Whether all shown lines come in the real output, in that order."""
    matcher = _Matcher(stable)
    left = iter([list(tokens(line)) for line in real.splitlines() if line.strip()])
    wanted = [list(tokens(line)) for line in shown.splitlines() if line.strip()]
    return bool(wanted) and all(any(matcher.match(line, candidate) for candidate in left) for line in wanted)


DOUBTFUL_WORDS = re.compile(
    r"\b(downloading|installing|fetching|progress|elapsed|listening|started at|pid|random|seed)\b", re.I
)


def _innocent_reason(shown: str, real: str, shown_tokens: list[Token], real_tokens: list[Token], stable: bool) -> str:
    """Why the difference may be no fault of the document; empty when nothing speaks for that."""
    if any(token.kind == "ellipsis" for token in shown_tokens) and shown.count("...") != real.count("..."):
        return "the document abbreviates"
    if not stable and sorted(token.text for token in shown_tokens) == sorted(token.text for token in real_tokens):
        return "the same in another order"
    if sorted(shown.split("\n")) == sorted(real.split("\n")) and re.search(r"[/\\]|\w\.\w{1,4}\b", shown):
        return "the same lines in another order, which may be that of the file system"
    if stable and _sets_in_another_order(shown, real):
        return "the same in another order"
    if _unspaced(shown) == _unspaced(real):
        return "only white space differs"
    if _letters(shown) == _letters(real) or _letters(_without_places(shown)) == _letters(_without_places(real)):
        return "only punctuation differs"
    if OTHER_SYSTEM.search(shown) and not OTHER_SYSTEM.search(real):
        return "it shows paths of another system"
    if _as_text(shown) == _as_text(real):
        return "quotes around it differ"
    if _numbers_written_otherwise(shown_tokens, real_tokens):
        return "the same numbers, written otherwise"
    kinds = {"hash", "uuid", "date", "clock"}
    loose = [(a, b) for a, b in zip(shown_tokens, real_tokens, strict=False) if a.text != b.text]
    if (
        len(shown_tokens) == len(real_tokens)
        and loose
        and all(a.kind == b.kind and a.kind in ("hash", "uuid") for a, b in loose)
    ):
        return "only identifiers differ"
    if not stable and any(token.kind in kinds for token in shown_tokens):
        return "it holds dates or identifiers, and depends on its surroundings"
    if DOUBTFUL_WORDS.search(real) or DOUBTFUL_WORDS.search(shown):
        return "it reports progress or the state of a machine"
    if _only_zones_differ(loose) or any(LOCAL_TIME.search(text) for text in (shown, real)):
        return "it depends on the time zone"
    if any(char in real for char in "�"):
        return "it holds characters that could not be decoded"
    if min(len(shown_tokens), len(real_tokens)) >= 6:
        alike = difflib.SequenceMatcher(
            None,
            [token.text for token in shown_tokens[:400]],
            [token.text for token in real_tokens[:400]],
            autojunk=False,
        ).ratio()
        if alike < 0.3:
            return "the two have little in common: perhaps another situation"
    return ""


# Paths as macOS and Windows have them; nothing here prints such.
OTHER_SYSTEM = re.compile(r"(?<![\w./])/(?:Users|Library|Applications|Volumes)/\w|(?<![\w/])[A-Za-z]:\\+\w")
LOCAL_TIME = re.compile(r"\b(?:tzlocal|localtime|local time)\b", re.IGNORECASE)
ZONE = re.compile(r"^(?:[A-Z]{2,4}T|UTC|GMT|Z|[A-Z][a-z]+/[A-Z]\w+)$")


def _only_zones_differ(pairs: list[tuple[Token, Token]]) -> bool:
    return bool(pairs) and all(ZONE.match(a.text) and ZONE.match(b.text) for a, b in pairs)


def _sets_in_another_order(shown: str, real: str) -> bool:
    """Lines that differ hold `{a, b}` with the same things in it."""
    a, b = shown.split("\n"), real.split("\n")
    differing = [(x, y) for x, y in zip(a, b, strict=False) if _folded(x) != _folded(y)]
    return len(a) == len(b) and all(
        re.search(r"\{[^{}]*,[^{}]*\}", y) and sorted(_letters(x)) == sorted(_letters(y)) for x, y in differing
    )


def _letters(text: str) -> list[str]:
    return re.findall(r"(?<!\w)[-+]?\d+(?:\.\d+)?|\w+", text)


def _without_places(text: str) -> str:
    return " ".join("path" if token.kind == "path" else token.text for token in tokens(text))


def _as_text(text: str) -> str:
    stripped = text.strip()
    if len(stripped) > 1 and stripped[0] in "'\"" and stripped[-1] == stripped[0]:
        stripped = stripped[1:-1]
    return _folded(stripped)


def _numbers_written_otherwise(shown: list[Token], real: list[Token]) -> bool:
    if len(shown) != len(real):
        return False
    for a, b in zip(shown, real, strict=True):
        if a.text == b.text:
            continue
        try:
            if (
                a.kind != "number"
                or b.kind != "number"
                or float(a.text.replace(",", "")) != float(b.text.replace(",", ""))
            ):
                return False
        except ValueError:
            return False
    return True


def _first_difference(shown: str, real: str, *, strict: bool, stable: bool = False) -> tuple[str, str]:
    """The first shown line that did not come, and what came in its place."""
    a = [line for line in shown.splitlines() if line.strip()]
    b = [line for line in real.splitlines() if line.strip()]
    matcher = _Matcher(stable)
    for at, line in enumerate(a):
        other = b[at] if at < len(b) else ""
        same = _folded(line) == _folded(other)
        if not same and not strict:
            same = matcher.match(list(tokens(line)), list(tokens(other)))
        elif not same:
            same = not _odd_duration_by_line_alone(line, other)
        if not same:
            return line.strip(), other.strip()
    return "", b[len(a)].strip() if len(b) > len(a) else ""


def _odd_duration_by_line_alone(shown: str, real: str) -> bool:
    pairs = zip(
        (token for token in tokens(shown) if token.kind == "elapsed"),
        (token for token in tokens(real) if token.kind == "elapsed"),
        strict=False,
    )
    for a, b in pairs:
        x, y = _seconds(a.text), _seconds(b.text)
        if x and y and max(x / y, y / x) >= FAR:
            return True
    return False
