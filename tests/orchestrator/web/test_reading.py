"""The order in which findings are read."""

from dataclasses import replace
from uuid import uuid4

from orchestrator.services.views import FindingCounts, FindingRow
from orchestrator.web.reading import grouped, totals
from review_agents.records import Kind, Lifecycle, Place, Severity, Source, VerificationState

PLAIN = FindingRow(
    id=uuid4(), fingerprint="0" * 16, kind=Kind.CORRECTNESS, rule="r", title="t", description="d",
    severity=Severity.LOW, places=(Place(file="a"),), opinion=False, reproduction=None,
    verification_state=VerificationState.CONFIRMED, verification_reason="", lifecycle=Lifecycle.NEW, seen_late=False,
    source=Source.PROBE, focus="", ignored_by="",
)  # fmt: skip


def test_proved_findings_come_by_severity_and_the_rest_behind() -> None:
    findings = [
        replace(PLAIN, lifecycle=Lifecycle.IGNORED, ignored_by="operator: x"),
        replace(PLAIN, lifecycle=Lifecycle.FIXED),
        replace(PLAIN, verification_state=VerificationState.FLAKY),
        replace(PLAIN, seen_late=True),
        replace(PLAIN, opinion=True, verification_state=VerificationState.UNVERIFIED),
        PLAIN,
        replace(PLAIN, severity=Severity.CRITICAL, lifecycle=Lifecycle.REGRESSED),
    ]
    groups = grouped(findings)
    assert [(group.severity, group.title) for group in groups] == [
        (Severity.CRITICAL, ""),
        (Severity.LOW, ""),
        (None, "Seen late"),
        (None, "Opinions"),
        (None, "Not proved"),
        (None, "Fixed"),
        (None, "Ignored"),
    ]
    assert sum(len(group.findings) for group in groups) == len(findings)


def test_an_ignored_or_fixed_finding_never_counts_as_open_whatever_else_it_is() -> None:
    both = replace(PLAIN, lifecycle=Lifecycle.IGNORED, seen_late=True, verification_state=VerificationState.FLAKY)
    assert [group.title for group in grouped([both])] == ["Ignored"]


def test_totals_name_every_severity_that_matters() -> None:
    assert totals(FindingCounts({Severity.HIGH: 2})) == [
        (Severity.CRITICAL, 0),
        (Severity.HIGH, 2),
        (Severity.MEDIUM, 0),
        (Severity.LOW, 0),
    ]
    assert totals(FindingCounts({Severity.INFO: 1}))[-1] == (Severity.INFO, 1)
