"""What makes two claims the same finding, whatever line they are on and however they are worded."""

import builtins
import json
import posixpath
import re
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256

from review_agents.records import Candidate, Kind, Place

VERSION = "1"
SHAPE_CHARS = 300
CONSIDERED_CHARS = 4000  # bounds the work on hostile output


@lru_cache(maxsize=1 << 14)  # a merge asks many times for the same ones
def fingerprint(kind: Kind | str, rule: str, path: str, symbol: str, shape: str = "") -> str:
    """16 hex digits over everything that identifies a finding. Line numbers and titles are no part of it."""
    parts = [VERSION, str(kind), rule, clean_path(path), " ".join(symbol.split()), shape]
    return sha256(json.dumps(parts).encode("ascii")).hexdigest()[:16]


def fingerprint_of(candidate: Candidate, place: Place | None = None) -> str:
    """The candidate's fingerprint at that place, by default its first."""
    place = place or candidate.places[0]
    return fingerprint(candidate.kind, candidate.rule, place.file, place.symbol, candidate.shape)


def fingerprints_of(candidate: Candidate) -> frozenset[str]:
    """Its fingerprints at all its places: one in common makes two candidates the same finding."""
    return frozenset(fingerprint_of(candidate, place) for place in candidate.places)


def clean_path(path: str) -> str:
    """Relative to the repo's root with forward slashes, however the path was written."""
    path = path.strip().replace("\\", "/")
    for root in ("/job/repo/", "/base/repo/"):
        path = path.removeprefix(root)
    cleaned = posixpath.normpath(path) if path else ""
    return "" if cleaned == "." else cleaned


def similar(one: str, other: str) -> bool:
    """Whether two titles share half of their telling words."""
    mine, theirs = telling(one), telling(other)
    return bool(mine and theirs) and len(mine & theirs) * 2 >= min(len(mine), len(theirs))


def telling(title: str) -> set[str]:
    return {word.strip(".,:;()`'\"").lower() for word in title.split() if len(word) > 3}


OS_ERRORS = frozenset(
    name for name, one in vars(builtins).items() if isinstance(one, type) and issubclass(one, OSError)
)
OS_SAYS = re.compile(
    r"\b(?:No space left on device|File too large|Disk quota exceeded|Permission denied|Operation not permitted|"
    r"No such file or directory|Is a directory|Not a directory|File exists|Directory not empty|File name too long|"
    r"Read-only file system|Input/output error|Broken pipe|Too many open files|Bad file descriptor)\b"
)
ERROR = re.compile(r"\b(?:[A-Z]\w*(?:Error|Exception)|KeyboardInterrupt|SystemExit|StopIteration)\b")


def errors_in(texts: Iterable[str]) -> frozenset[str]:
    """The exceptions that these texts of a program's output name. All failures of files and devices count as one: which
    of them comes depends on how a script brings it about."""
    found: set[str] = set()
    for text in texts:
        named = ERROR.findall(text[:CONSIDERED_CHARS])
        found.update("OSError" if name in OS_ERRORS else name for name in named)
        if OS_SAYS.search(text[:CONSIDERED_CHARS]):
            found.add("OSError")
    return frozenset(found)


# What differs from run to run or machine to machine while the fault is the same. In this order:
# a quote may hold a path, a path may hold an address, an address holds digits.
VARIABLE = (
    (re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]"), ""),  # terminal colours
    (re.compile(r"(?<!\w)(['\"`])(?:(?!\1)[^\n])*\1(?!\w)"), "'…'"),
    (re.compile(r"[‘“«][^’”»\n]*[’”»]"), "'…'"),
    (re.compile(r"\b[a-zA-Z][a-zA-Z0-9+.-]*://[^\s'\"<>]+"), "URL"),
    (re.compile(r"(?:\b[A-Za-z]:(?=\\)|~|\.{1,2}(?=/))?(?:[\w.+@-]*[/\\])+[\w.+@-]*"), "PATH"),
    (re.compile(r"\b0[xX][0-9a-fA-F]+\b"), "ADDRESS"),
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}\b"), "ID"),
    (re.compile(r"\b(?=[a-f]*[0-9])[0-9a-f]{12,}\b"), "ID"),  # object ids and digests
    (re.compile(r"[-+]?\d+(?:[.,:]\d+)*(?:[eE][-+]?\d+)?"), "N"),
    (re.compile(r"(?:N|ID)(?:\s*,\s*(?:N|ID))+"), "N"),  # lists of numbers of any length
)


def shape(exception: str, message: str = "") -> str:
    """Exception type and message with numbers, paths, quotes and addresses replaced, white space folded."""
    text = f"{exception.strip()}: {message.strip()}" if message.strip() else exception.strip()
    text = text[:CONSIDERED_CHARS]
    for pattern, instead in VARIABLE:
        text = pattern.sub(instead, text)
    return " ".join(text.split())[:SHAPE_CHARS].rstrip()
