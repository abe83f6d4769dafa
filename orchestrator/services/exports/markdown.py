"""A review as a Markdown page for people.

All texts come from repos and models. They are escaped so that they show as they are: no HTML, no
links, no images, no mention or issue reference that a forge would act on. Commands and outputs
stand in fences longer than any in them.
"""

import re
from collections.abc import Iterable, Iterator

from orchestrator.services.exports.contract import moment
from orchestrator.services.exports.plain import one_line, visible
from orchestrator.services.exports.whole import WholeReview
from orchestrator.services.views import Checks, Evidence, FindingRow, MeasurementRow
from review_agents.records import Lifecycle, Verification, VerificationState

SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#+.!|~&=^$:\"'-])")
JOINER = "\u2060"
SHOWN_OUTPUT = 3000  # characters of a run's output


def write(review: WholeReview) -> str:
    return "\n".join(lines(review)).rstrip() + "\n"


def lines(review: WholeReview) -> Iterator[str]:
    page, row = review.page, review.page.row
    yield f"# Review of {text(row.repo_name)}"
    yield ""
    yield from facts(
        ("Repository", code(page.repo_url)),
        ("Ref", code(row.ref)),
        ("Commit", code(row.commit) if row.commit else "not yet known"),
        ("State", row.state.replace("_", " ")),
        ("Started", moment(row.started_at) or "not yet"),
        ("Finished", moment(row.finished_at) or "not yet"),
        ("Model", code(page.model) if page.model else "none, evidence only"),
        ("Machine", code(page.machine) if page.machine else ""),
        ("Note", text(row.outcome_note)),
        ("Error", text(row.error)),
        ("Checked", text(f"nothing: {page.checks.barred}") if page.checks.barred else ""),
    )
    there = [one for one in review.findings if one.lifecycle not in (Lifecycle.FIXED, Lifecycle.IGNORED)]
    proved = [one for one in there if one.verification_state is VerificationState.CONFIRMED]
    yield from section(
        "Findings", (one for one in proved if not one.seen_late), review, empty=none_confirmed(page.checks)
    )
    yield from section(
        "First seen now, on a commit that was reviewed before", (one for one in proved if one.seen_late), review
    )
    yield from section("Claimed but not confirmed", (one for one in there if one not in proved), review)
    yield from short_list("Fixed", (one for one in review.findings if one.lifecycle is Lifecycle.FIXED))
    yield from short_list("Ignored", (one for one in review.findings if one.lifecycle is Lifecycle.IGNORED))
    yield from not_checked(page.checks)
    yield from evidence_table(page.evidence)
    yield from measurement_table(page.measurements)


def facts(*named: tuple[str, str]) -> Iterator[str]:
    for name, value in named:
        if value:
            yield f"- {name}: {value}"
    yield ""


def section(title: str, found: Iterable[FindingRow], review: WholeReview, *, empty: str = "") -> Iterator[str]:
    listed = list(found)
    if not listed and not empty:
        return
    yield f"## {title}"
    yield ""
    if not listed:
        yield empty
        yield ""
    for one in listed:
        yield from finding(one, review.verifications[one.id])


def finding(one: FindingRow, verification: Verification) -> Iterator[str]:
    yield f"### {one.severity.capitalize()}: {text(one.title)}"
    yield ""
    proof = verification.state.replace("_", " ")
    yield from facts(
        ("Kind", f"{one.kind}, rule {code(one.rule)}"),
        ("Seen", f"{one.lifecycle}, {proof}{f' ({text(verification.reason)})' if verification.reason else ''}"),
        ("Opinion", "yes: a judgement with quotes, no reproduction" if one.opinion else ""),
        ("Fingerprint", code(one.fingerprint)),
    )
    yield paragraphs(one.description)
    yield ""
    for place in one.places:
        where = f"{place.file}:{place.line}" if place.line else place.file
        yield f"- {code(where)}{f' in {code(place.symbol)}' if place.symbol else ''}"
        if place.quote:
            yield from fenced(place.quote, indent="  ")
    yield ""
    if one.reproduction is not None:
        yield "To reproduce, in a clone with the package installed:"
        yield ""
        yield from fenced(one.reproduction.command, "bash")
        yield f"Expected: {text(one.reproduction.expected)}"
        yield ""
        yield f"Observed: {text(one.reproduction.observed)}"
        yield ""
        if one.reproduction.control is None:
            yield "There is no control for this reproduction."
        else:
            yield "Control, which must succeed:"
            yield ""
            yield from fenced(one.reproduction.control, "bash")
        yield ""
    if verification.runs:
        ran = verification.runs[0]
        yield f"Our own run of it ended with {ran.ending} and said:"
        yield ""
        yield from fenced(shortened(ran.output))


def short_list(title: str, found: Iterable[FindingRow]) -> Iterator[str]:
    listed = list(found)
    if listed:
        yield f"## {title}"
        yield ""
        for one in listed:
            reason = f" ({text(one.ignored_by or one.verification_reason)})"
            yield f"- {text(one.title)}, {code(one.places[0].file)}{reason if len(reason) > 3 else ''}"
        yield ""


def none_confirmed(checks: Checks) -> str:
    return text(f"{checks.nothing_found if checks.barred else f'None confirmed by {checks.extent}'}".rstrip(".")) + "."


def not_checked(checks: Checks) -> Iterator[str]:
    """Each reason once, with the names of the checks."""
    if checks.unable:
        yield "## Not checked"
        yield ""
        yield from (f"- {text(', '.join(one.probes))}: {text(one.reason)}" for one in checks.unable)
        yield ""


def evidence_table(found: Iterable[Evidence]) -> Iterator[str]:
    listed = list(found)
    if listed:
        yield "## Evidence"
        yield ""
        yield from table(
            ("Probe", "Result", "Seconds", "Summary"),
            (
                (text(one.probe), one.state.replace("_", " "), f"{one.seconds:.1f}", text(one.reason or one.summary))
                for one in listed
            ),
        )


def measurement_table(found: Iterable[MeasurementRow]) -> Iterator[str]:
    listed = list(found)
    if listed:
        yield "## Measurements"
        yield ""
        yield from table(
            ("Measured", "Median", "Spread", "Good", "Void", "Change"),
            (
                (
                    text(one.name),
                    "none" if one.median is None else f"{one.median:.4g} {text(one.unit)}",
                    "" if one.spread is None else f"{100 * one.spread:.1f} %",
                    str(len(one.samples)),
                    str(one.contaminated),
                    "" if one.change is None else f"{one.change.verdict.replace('_', ' ')} ({one.change.ratio:.3f})",
                )
                for one in listed
            ),
        )


def table(head: tuple[str, ...], found: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for cells in found:
        yield f"| {' | '.join(cells)} |"
    yield ""


def paragraphs(foreign: str) -> str:
    """Escaped line by line, so that paragraphs stay and nothing else does."""
    return "\n".join(escaped(line.strip()) for line in visible(foreign).split("\n")).strip("\n")


def text(foreign: str) -> str:
    return escaped(one_line(foreign))


def escaped(line: str) -> str:
    """One line that shows as it is. Mentions, references and addresses are parted by an invisible joiner, because
    forges look for them after they have undone escapes."""
    line = SPECIAL.sub(r"\\\1", line)
    line = re.sub(r"(?<=@)(?=\w)|(?<=\\#)(?=\w)", JOINER, line)
    return re.sub(r"(?i)(?<=www)(?=\\\.)|(?<=\\:)(?=//)", JOINER, line)


def code(foreign: str) -> str:
    """A code span that holds exactly this."""
    inner = one_line(foreign) or " "
    ticks = "`" * (longest_run(inner) + 1)
    pad = " " if inner.startswith("`") or inner.endswith("`") else ""
    return f"{ticks}{pad}{inner}{pad}{ticks}"


def fenced(foreign: str, language: str = "", indent: str = "") -> Iterator[str]:
    shown = visible(foreign).rstrip("\n")
    fence = "`" * max(3, longest_run(shown) + 1)
    yield f"{indent}{fence}{language}"
    yield from (f"{indent}{line}" for line in shown.split("\n"))
    yield f"{indent}{fence}"
    yield ""


def longest_run(shown: str) -> int:
    return max((len(run) for run in re.findall(r"`+", shown)), default=0)


def shortened(output: str) -> str:
    if len(output) <= SHOWN_OUTPUT:
        return output
    half = SHOWN_OUTPUT // 2
    return f"{output[:half]}\n[... {len(output) - SHOWN_OUTPUT} characters left out ...]\n{output[-half:]}"
