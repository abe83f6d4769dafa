"""A benchmark's own figures, from the file that it wrote or from what it printed; all in seconds.

Reproductions take this file along into the sandbox, so it runs alone and on every Python that a repo may want.
"""

from __future__ import annotations

import json
import re
import statistics
import xml.etree.ElementTree as ET
from typing import Any

MOST_FIGURES = 40
MOST_S = 1e9  # what is more is no time
UNITS = {
    "ns": 1e-9, "nsec": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "usec": 1e-6, "ms": 1e-3, "msec": 1e-3,
    "s": 1.0, "sec": 1.0, "secs": 1.0, "seconds": 1.0,
}  # fmt: skip
# `get_hit: 120 ns`, `parse = 1.5 ms per call`, `load   0.25 s`, timeit's `5 loops, best of 5: 12.3 usec per loop`
LINE = re.compile(
    r"^\s*(?P<name>[A-Za-z_][\w .,\[\]()/:-]{0,79}?|\d+ loops?, best of \d+)\s*[:=\s]\s*"
    r"(?P<value>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(?P<unit>" + "|".join(sorted(UNITS, key=len, reverse=True)) + r")\b"
)
TIMEIT = re.compile(r"\d+ loops?, best of \d+")
PER_SECOND = re.compile(r"^\s*(?:/|per)\s*s(?:ec(?:ond)?s?)?\b")


def from_file(text: str) -> dict[str, float]:
    """Figures of a JSON file of pytest-benchmark, pyperf or ours, or of a JUnit report; {} for anything else."""
    if text.lstrip().startswith("<"):
        return from_junit(text)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(content, dict):
        return {}
    if isinstance(content.get("seconds"), dict):
        return kept({str(name): value for name, value in content["seconds"].items()})
    found: dict[str, Any] = {}
    for one in listed(content.get("benchmarks")):
        if isinstance(one, dict):
            stats = one.get("stats")
            if isinstance(stats, dict):
                found[str(one.get("fullname") or one.get("name"))] = stats.get("median")
            else:
                found[pyperf_name(one, content)] = pyperf_median(one)
    return kept(found)


def pyperf_name(one: dict[str, Any], content: dict[str, Any]) -> str:
    for place in (one.get("metadata"), content.get("metadata")):
        if isinstance(place, dict) and place.get("name"):
            return str(place["name"])
    return "benchmark"


def pyperf_median(one: dict[str, Any]) -> float | None:
    runs = [run for run in listed(one.get("runs")) if isinstance(run, dict)]
    values = [value for run in runs for value in listed(run.get("values")) if isinstance(value, (int, float))]
    return statistics.median(values) if values else None


def from_junit(text: str) -> dict[str, float]:
    """Seconds of each test that passed."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        return {}
    try:
        root = ET.fromstring(text)
    except ET.ParseError:
        return {}
    found: dict[str, Any] = {}
    for case in root.iter("testcase"):
        if case.find("failure") is None and case.find("error") is None and case.find("skipped") is None:
            try:
                found[f"{case.get('classname')}::{case.get('name')}"] = float(case.get("time") or "")
            except ValueError:
                continue
    return kept(found)


def from_output(text: str) -> dict[str, float]:
    """Lines of the shape `name: number unit`. A name that comes twice names nothing."""
    found: dict[str, float] = {}
    twice: set[str] = set()
    for line in text.splitlines():
        match = LINE.match(line)
        if match is None or PER_SECOND.match(line[match.end() :]):
            continue
        name = "timeit" if TIMEIT.fullmatch(match["name"]) else " ".join(match["name"].split())
        twice |= {name} if name in found else set()
        found[name] = float(match["value"]) * UNITS[match["unit"]]
    return kept({name: value for name, value in found.items() if name not in twice})


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def kept(found: dict[str, Any]) -> dict[str, float]:
    numbers = {name: value for name, value in found.items() if isinstance(value, (int, float))}
    good = {name: float(value) for name, value in numbers.items() if 0 < value < MOST_S}
    return dict(list(good.items())[:MOST_FIGURES])
