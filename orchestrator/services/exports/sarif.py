"""A review as SARIF 2.1.0, for code scanning tools.

A result's `kind` is `fail` only for what our own re-run confirmed; what is merely claimed is
`review`, as the standard asks with level `none`. Our fingerprint goes under a name of our own. A
probe that could not run is a notification of the invocation, and an invocation that could check
nothing was no success, so that nothing found never looks like nothing wrong.
"""

import json
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import quote

from orchestrator.services.exports.plain import one_line, visible
from orchestrator.services.exports.whole import WholeReview
from orchestrator.services.views import FindingRow, ReviewState, Unable
from review_agents.identity import clean_path
from review_agents.records import Lifecycle, Place, Severity, VerificationState

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "SRCROOT"
FINGERPRINT = "lamplighterFinding/v1"
LEVELS = {
    Severity.CRITICAL: "error",
    Severity.HIGH: "error",
    Severity.MEDIUM: "warning",
    Severity.LOW: "note",
    Severity.INFO: "note",
}
BASELINE = {
    Lifecycle.NEW: "new",
    Lifecycle.REGRESSED: "new",  # to a scanner: it was absent before
    Lifecycle.PERSISTING: "unchanged",
    Lifecycle.IGNORED: "unchanged",
    Lifecycle.FIXED: "absent",
}


def write(review: WholeReview) -> str:
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run(review)]}
    return json.dumps(log, ensure_ascii=False, indent=1) + "\n"


def run(review: WholeReview) -> dict[str, Any]:
    page, row = review.page, review.page.row
    rules = sorted({(one.rule, str(one.kind)) for one in review.findings})
    names = list(dict.fromkeys(rule for rule, _ in rules))
    kinds = {rule: kind for rule, kind in reversed(rules)}
    made: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "Lamplighter",
                "version": our_version(),
                "rules": [{"id": rule, "properties": {"tags": [kinds[rule]]}} for rule in names],
            }
        },
        "automationDetails": {"id": f"lamplighter/{quote(row.repo_name, safe='')}/{quote(row.ref, safe='')}/{row.id}"},
        "originalUriBaseIds": {ROOT: {"description": {"text": "The root of the reviewed repository."}}},
        "invocations": [invocation(review)],
        "results": [result(one, names.index(one.rule)) for one in review.findings],
        "columnKind": "unicodeCodePoints",
    }
    if "://" in page.repo_url and row.commit:
        made["versionControlProvenance"] = [
            {"repositoryUri": page.repo_url, "revisionId": row.commit, "branch": row.ref}
        ]
    return made


def invocation(review: WholeReview) -> dict[str, Any]:
    row, checks = review.page.row, review.page.checks
    made: dict[str, Any] = {
        "executionSuccessful": row.state is ReviewState.DONE and not checks.barred,
        "toolExecutionNotifications": list(map(notification, checks.unable)),
    }
    if row.started_at:
        made["startTimeUtc"] = moment(row.started_at)
    if row.finished_at:
        made["endTimeUtc"] = moment(row.finished_at)
    if checks.barred:
        made["toolExecutionNotifications"].append({"level": "error", "message": {"text": plain(checks.nothing_found)}})
    if row.error or row.state is not ReviewState.DONE:
        said = plain(row.error) or f"The review is {row.state.replace('_', ' ')}."
        made["toolExecutionNotifications"].append({"level": "error", "message": {"text": said}})
    return made


def notification(one: Unable) -> dict[str, Any]:
    names = f"{'Probe' if len(one.probes) == 1 else 'Probes'} {plain(', '.join(one.probes))}"
    return {"level": "warning", "message": {"text": f"{names} could not run: {plain(one.reason)}"}}


def result(one: FindingRow, rule_index: int) -> dict[str, Any]:
    confirmed = one.verification_state is VerificationState.CONFIRMED and one.lifecycle is not Lifecycle.FIXED
    first, *others = one.places
    made: dict[str, Any] = {
        "ruleId": one.rule,
        "ruleIndex": rule_index,
        "guid": str(one.id),
        "kind": "fail" if confirmed else "pass" if one.lifecycle is Lifecycle.FIXED else "review",
        "level": LEVELS[one.severity] if confirmed else "none",
        "message": {"text": f"{plain(one.title)}\n\n{plain(one.description)}".strip() or one.rule},
        "locations": [location(first)],
        "partialFingerprints": {FINGERPRINT: one.fingerprint},
        "baselineState": BASELINE[one.lifecycle],
        "properties": {
            "kind": one.kind,
            "severity": one.severity,
            "verification": one.verification_state,
            "verificationReason": one.verification_reason,
            "lifecycle": one.lifecycle,
            "seenLate": one.seen_late,
            "source": one.source,
            "focus": one.focus,
            "opinion": one.opinion,
            "reproduction": one.reproduction.command if one.reproduction else "",
        },
    }
    if others:
        made["relatedLocations"] = [{"id": at, **location(place)} for at, place in enumerate(others, 1)]
    if one.lifecycle is Lifecycle.IGNORED:
        made["suppressions"] = [{"kind": "external", "status": "accepted", "justification": visible(one.ignored_by)}]
    return made


def location(place: Place) -> dict[str, Any]:
    physical: dict[str, Any] = {
        "artifactLocation": {"uri": quote(clean_path(place.file).lstrip("/"), safe="/"), "uriBaseId": ROOT}
    }
    if place.line is not None and place.line >= 1:
        region: dict[str, Any] = {"startLine": place.line}
        if place.quote:
            region["snippet"] = {"text": visible(place.quote)}
        physical["region"] = region
    made: dict[str, Any] = {"physicalLocation": physical}
    if place.symbol:
        made["logicalLocations"] = [{"fullyQualifiedName": one_line(place.symbol)}]
    return made


def plain(foreign: str) -> str:
    """A plain text message; `[text](target)` would be a link in one, so the two parts are set apart."""
    return visible(foreign).strip().replace("](", "] (")


def moment(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def our_version() -> str:
    try:
        return version("lamplighter")
    except PackageNotFoundError:
        return "0"
