"""What agents did in the street of the screenshots: a recording, as if its conversations had been held there."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.orm import Session

from orchestrator.services.focusing import in_words, tokens_of
from orchestrator.store import transcripts
from orchestrator.store.reviews import Review, ReviewState
from orchestrator.store.steps import Step, StepState
from review_agents.identity import fingerprint_of
from review_agents.records import (
    Candidate,
    Effort,
    Entry,
    FocusResult,
    FocusState,
    Kind,
    Place,
    Reproduction,
    Severity,
    Source,
    Symptom,
    Usage,
)
from review_agents.tools import Finish, RecordFinding, checked
from tests.bench import minds
from tests.bench.figures import ROOT
from tests.factories import NOON, make_chunk, make_sighting, make_step

RECORDING = ROOT / "tests" / "recordings" / "spanparse.json"
MODEL, NODE = "played by hand", "http://node:8760/v1"


@dataclass(frozen=True)
class Thought:
    step: Step
    result: FocusResult


def think(db: Session, review: Review) -> list[Thought]:
    """The focuses of the recording as steps of that review, with what they found filed and proved."""
    thoughts: list[Thought] = []
    filed: set[str] = set()  # a recording does not say which function a quote is in, so some would look the same here
    for at, (name, entries) in enumerate(minds.read(RECORDING).items()):
        result = result_of(name.removeprefix("focus:"), entries)
        begun = (review.started_at or NOON) + timedelta(minutes=2 + at)
        step = make_step(
            db, review, name, position=500 + at, state=StepState.DONE, started_at=begun, result=result.model_dump(),
            ended_at=begun + timedelta(seconds=result.usage.seconds),
            summary=in_words(result),
        )  # fmt: skip
        hold(db, step, entries)
        for candidate in result.candidates:
            if fingerprint_of(candidate) in filed:
                continue
            filed.add(fingerprint_of(candidate))
            make_sighting(db, review, candidate=candidate, source=Source.AGENT, focus=result.focus)
        thoughts.append(Thought(step, result))
    results = [one.result for one in thoughts]
    review.model, review.node, review.outcome_note = MODEL, NODE, ""
    review.profile, review.flavour = "general", "production"
    review.tokens = tokens_of(results, {one.focus: len(one.candidates) for one in results})
    return thoughts


def wait(db: Session, review: Review) -> None:
    """That review waits for its node, in the middle of a conversation."""
    (name, entries), *_ = minds.read(RECORDING).items()
    why = "the node at http://node:8760 loads its model"
    step = make_step(
        db, review, name, position=500, state=StepState.WAITING_FOR_NODE, started_at=NOON - timedelta(minutes=2),
        ended_at=None, reason=why,
    )  # fmt: skip
    make_step(db, review, "focus:security", position=501, state=StepState.PENDING, started_at=None, ended_at=None)
    hold(db, step, entries[:5])
    make_chunk(db, step, f"[{MODEL} on {NODE}, tools native]\n> read docs/formats.md\n[waiting for the node: {why}]\n")
    review.state, review.outcome_note = ReviewState.WAITING_FOR_NODE, f"waits for the node: {why}"


def hold(db: Session, step: Step, entries: Sequence[Entry]) -> None:
    for seq, entry in enumerate(entries, start=1):
        body = entry.model_dump(mode="json", exclude_defaults=True)
        transcripts.add(db, step.id, 1, seq, step.started_at or NOON, body)
    db.flush()


def result_of(focus: str, entries: Sequence[Entry]) -> FocusResult:
    stored = {(one.file, one.quote) for one in minds.proved({focus: entries})}
    calls = [checked(call.name, call.arguments) for entry in entries for call in minds.calls_of(entry)]
    records = [one for one in calls if isinstance(one, RecordFinding)]
    usages = [entry.answer.usage for entry in entries if entry.answer is not None]
    report = next((one for one in calls if isinstance(one, Finish)), None)
    return FocusResult(
        focus=focus,
        state=FocusState.FINISHED,
        report=json.loads(report.model_dump_json(exclude_none=True)) if report else None,
        candidates=tuple(
            candidate_of(one, focus) for one in records if (one.file, " ".join(one.quote.split())) in stored
        ),
        usage=sum(usages, Usage()),
        turns=len(usages),
        model=MODEL,
        node=NODE,
        protocol="native",
    )


def candidate_of(one: RecordFinding, focus: str) -> Candidate:
    return Candidate(
        kind=Kind(one.kind),
        rule=one.rule,
        title=one.title,
        description=one.experience,
        severity=Severity(one.severity),
        places=(Place(file=one.file, quote=one.quote),),
        reproduction=Reproduction(
            command=one.command,
            expected=one.expected,
            observed=one.observed,
            environment=one.environment,
            control=one.control or None,
            symptom=Symptom(contains=tuple(one.output_contains)),
        ),
        focus=focus,
        source=Source.AGENT,
        severity_reason=one.severity_reason,
        effort=Effort(one.effort),
    )
