"""The review export of the contract, version 1. Names and meanings stay; other programs read it."""

import json
from datetime import datetime
from typing import Any

from orchestrator.services.exports.whole import WholeReview
from orchestrator.services.views import Evidence, FindingRow, MeasurementRow
from review_agents.records import Change, Reproduction, Verification

VERSION = 1


def write(review: WholeReview) -> str:
    return json.dumps(as_mapping(review), ensure_ascii=False, indent=1) + "\n"


def as_mapping(review: WholeReview) -> dict[str, Any]:
    page, row = review.page, review.page.row
    return {
        "lamplighter": VERSION,
        "repo": page.repo_url,
        "ref": row.ref,
        "commit": row.commit,
        "state": row.state,
        "started": moment(row.started_at),
        "finished": moment(row.finished_at),
        "model": page.model,
        "node": page.node,
        "machine": page.machine,
        "tokens": {
            **{name: page.tokens.get(name, 0) for name in ("prompt", "cached", "completion")},
            "by_focus": page.tokens.get("by_focus", {}),
        },
        "evidence": [evidence(one) for one in page.evidence],
        "findings": [finding(one, review.verifications[one.id]) for one in review.findings],
        "measurements": [measurement(one) for one in page.measurements],
    }


def moment(at: datetime | None) -> str | None:
    """ISO 8601 in UTC."""
    return at.isoformat(timespec="seconds") if at else None


def evidence(one: Evidence) -> dict[str, Any]:
    return {
        "probe": one.probe,
        "state": one.state,
        "reason": one.reason,
        "seconds": one.seconds,
        "summary": one.summary,
        "facts": one.facts,
        "log": f"/api/steps/{one.step_id}/log",
    }


def finding(one: FindingRow, verification: Verification) -> dict[str, Any]:
    return {
        "id": str(one.id),
        "fingerprint": one.fingerprint,
        "kind": one.kind,
        "rule": one.rule,
        "title": one.title,
        "description": one.description,
        "focus": one.focus,
        "severity": one.severity,
        "places": [
            {"file": place.file, "line": place.line, "symbol": place.symbol, "quote": place.quote}
            for place in one.places
        ],
        "opinion": one.opinion,
        "reproduction": reproduction(one.reproduction) if one.reproduction else None,
        "verification": {
            "state": verification.state,
            "reason": verification.reason,
            "runs": [ran.model_dump(mode="json") for ran in verification.runs],
        },
        "lifecycle": one.lifecycle,
        "seen_late": one.seen_late,
        "source": one.source,
    }


def reproduction(one: Reproduction) -> dict[str, Any]:
    return {
        "command": one.command,
        "expected": one.expected,
        "observed": one.observed,
        "environment": one.environment,
        "network": one.network,
        "control": one.control,
    }


def measurement(one: MeasurementRow) -> dict[str, Any]:
    return {
        "name": one.name,
        "unit": one.unit,
        "samples": list(one.samples),
        "median": one.median,
        "spread": one.spread,
        "contaminated": one.contaminated,
        "change": change(one.change) if one.change else None,
    }


def change(one: Change) -> dict[str, Any]:
    return {"ratio": one.ratio, "low": one.low, "high": one.high, "verdict": one.verdict}
