"""A review's findings in the order in which they are read: proved ones by severity, then what needs a second look."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.services.views import FindingCounts, FindingRow
from review_agents.records import Lifecycle, Severity, VerificationState


@dataclass(frozen=True, slots=True)
class Group:
    title: str
    severity: Severity | None
    note: str
    findings: list[FindingRow]


def grouped(findings: Sequence[FindingRow]) -> list[Group]:
    """Each finding in exactly one group; empty groups are left out."""
    rest = list(findings)

    def take(wanted: Callable[[FindingRow], bool]) -> list[FindingRow]:
        nonlocal rest
        taken = [finding for finding in rest if wanted(finding)]
        rest = [finding for finding in rest if not wanted(finding)]
        return taken

    ignored = take(lambda finding: finding.lifecycle is Lifecycle.IGNORED)
    fixed = take(lambda finding: finding.lifecycle is Lifecycle.FIXED)
    opinions = take(lambda finding: finding.opinion)
    unproved = take(lambda finding: finding.verification_state is not VerificationState.CONFIRMED)
    late = take(lambda finding: finding.seen_late)
    groups = [
        *(Group("", level, "", [finding for finding in rest if finding.severity is level]) for level in Severity),
        Group("Seen late", None, "Confirmed faults of a commit that was reviewed before; nobody had seen them.", late),
        Group("Opinions", None, "Judgements backed by quoted lines instead of a command.", opinions),
        Group("Not proved", None, "Claimed, but the service could not show it; they do not count.", unproved),
        Group("Fixed", None, "Their reproduction no longer shows the fault, or its page is another one now.", fixed),
        Group("Ignored", None, "They do not count. Each says who ignored it and why.", ignored),
    ]
    return [group for group in groups if group.findings]


def totals(counts: FindingCounts) -> list[tuple[Severity, int]]:
    """Every severity with its number, the harmless last one only when there are any."""
    levels = [level for level in Severity if level is not Severity.INFO or counts.by_severity.get(level)]
    return [(level, counts.by_severity.get(level, 0)) for level in levels]
