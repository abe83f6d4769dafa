"""What probes put into their facts, made fit for a page.

Facts come out of a reviewed repo by way of a probe, so every shape is checked before it is shown: a
page must come up whatever is in there. What has a known shape gets a table; everything has `lines`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.services.views import Evidence

LONGEST = 400
MOST = 60


def lines(facts: Any) -> list[tuple[str, str]]:
    """Names in words with values as short texts; empty ones are left out."""
    if not isinstance(facts, Mapping):
        return []
    found = [(str(name).replace("_", " "), in_short(value)) for name, value in facts.items() if name not in TABLED]
    return [(name, value) for name, value in found if value][:MOST]


def in_short(value: Any) -> str:
    if value is None or value == "" or value == [] or value == {}:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        text = value
    elif isinstance(value, list | tuple) and all(isinstance(one, str | int | float) for one in value):
        text = ", ".join(str(one) for one in value)
    elif isinstance(value, float):
        text = f"{value:.4g}"
    else:
        text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text)} characters)"


def texts(value: Any) -> list[str]:
    """A list of texts; anything else is none."""
    return [str(one) for one in value] if isinstance(value, list | tuple) else []


def number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def mappings(value: Any) -> Iterable[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list | tuple) else []


# Tables that have a known shape -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Suite:
    title: str
    command: str
    counts: list[tuple[str, int]]
    failures: list[tuple[str, str]]
    slowest: list[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Example:
    where: str
    code: str
    state: str  # a mark of static/app.css
    word: str
    said: str


@dataclass(frozen=True, slots=True)
class Hot:
    function: str
    where: str
    seconds: float | None
    share: float  # of all own time, 0 to 1


COUNTS = ("passed", "failed", "error", "skipped", "xfailed")
# What has a table of its own is not repeated among the lines.
TABLED = frozenset({"failures", "slowest", "functions", "examples"})


def suites(evidence: Iterable[Evidence]) -> list[Suite]:
    """Test runs: facts that count what passed or failed (probes/tests.py, `facts_of`)."""
    found = []
    for one in evidence:
        counts = [(word, int(count)) for word in COUNTS if (count := number(one.facts.get(word))) is not None]
        if not counts:
            continue
        flaky = texts(one.facts.get("flaky"))
        unable = one.facts.get("could_not_run")
        failures = [
            (
                first_text(failure, "id"),
                ": ".join(filter(None, (first_text(failure, "type"), first_text(failure, "message")))),
            )
            for failure in mappings(one.facts.get("failures"))
        ]
        failures += [(test, "flaky: it passed when it was run again") for test in flaky]
        excused = dict(unable) if isinstance(unable, Mapping) else {}
        failures = [
            (test, f"{said} (not held against the repo: {in_short(excused[test])})" if test in excused else said)
            for test, said in failures
        ]
        slowest = [
            (first_text(test, "test"), number(test.get("seconds")) or 0.0)
            for test in mappings(one.facts.get("slowest"))
        ]
        shown = [(word, count) for word, count in counts if count or word in ("passed", "failed")]
        shown += [("flaky", len(flaky))] if flaky else []
        found.append(
            Suite(one.probe.replace("_", " "), first_text(one.facts, "command"), shown, failures[:MOST], slowest[:10])
        )
    return found


# State of an example (probes/verdicts.py) -> mark of static/app.css and its word.
EXAMPLE_MARKS = {
    "matched": ("passed", "as shown"),
    "ran": ("passed", "ran"),
    "tolerated": ("passed", "as shown, but for what may differ"),
    "abbreviated": ("passed", "as shown, as far as it is shown"),
    "suspect": ("failed", "otherwise"),
    "unsure": ("flaky", "cannot be judged"),
    "not_run": ("could_not_run", "not run here"),
    "noted": ("not_applicable", "noted"),
}
ORDER = ("suspect", "unsure", "not_run")  # first; the rest follows in the order of the pages


def examples(evidence: Iterable[Evidence]) -> list[Example]:
    """Examples of README and docs that were run (probes/examples.py), what went wrong first."""
    found = []
    for one in evidence:
        for facts in mappings(one.facts.get("examples")):
            state = first_text(facts, "state")
            mark, word = EXAMPLE_MARKS.get(state, ("not_applicable", state.replace("_", " ")))
            example = Example(
                where=place(facts),
                code=first_text(facts, "example"),
                state=mark,
                word=word,
                said=first_text(facts, "reason"),
            )
            found.append((ORDER.index(state) if state in ORDER else len(ORDER), example))
    return [example for _, example in sorted(found, key=lambda pair: pair[0])]


def place(facts: Mapping[str, Any]) -> str:
    line = facts.get("line")
    return first_text(facts, "file") + (f":{line}" if isinstance(line, int) else "")


def hottest(evidence: Iterable[Evidence]) -> list[Hot]:
    """The package's own functions that the profiled test run spent its time in (probes/profile.py)."""
    found = []
    for one in evidence:
        rows = mappings(one.facts.get("functions"))
        whole = sum(number(row.get("own_s")) or 0.0 for row in rows)
        for row in rows:
            seconds = number(row.get("own_s"))
            share = number(row.get("share"))
            if share is None:
                share = seconds / whole if seconds and whole else 0.0
            found.append(
                Hot(
                    function=first_text(row, "function"),
                    where=place(row),
                    seconds=seconds,
                    share=min(1.0, max(0.0, share)),
                )
            )
    return [row for at, row in enumerate(found) if at < 5 or row.share >= 0.005][:20]


def first_text(facts: Mapping[str, Any], *names: str) -> str:
    """The first of these facts that is a text, shortened."""
    return next((in_short(facts[name]) for name in names if isinstance(facts.get(name), str)), "")
