"""What a review measured and compared, as rows: comparisons, and each measurement as a night of its series.

A step that is done again writes its rows again.
"""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import delete
from sqlalchemy.orm import Session as Database

from orchestrator.measure import protocol
from orchestrator.measure.machine_key import machine_key
from orchestrator.measure.records import Comparison, Side, Surroundings
from orchestrator.services.job import Job
from orchestrator.store import measurements
from orchestrator.store.comparisons import ComparisonRow
from orchestrator.store.measurements import MeasurementRow
from review_agents.records import Change, Measurement

COMPARISON = TypeAdapter(Comparison)


def keep_measured(
    db: Database, job: Job, measured: Sequence[Measurement], around: Surroundings, commit: str, now: datetime
) -> None:
    """What a probe measured."""
    for one in measured:
        same = (MeasurementRow.review_id == job.review_id, MeasurementRow.name == one.name)
        db.execute(delete(MeasurementRow).where(*same), execution_options={"synchronize_session": False})
        db.add(night(job, one, around, commit, now))


def keep_compared(db: Database, job: Job, one: Comparison, around: Surroundings, now: datetime) -> None:
    """A comparison, and the head's sessions as a night of its series."""
    same = (ComparisonRow.review_id == job.review_id, ComparisonRow.name == one.name)
    db.execute(delete(ComparisonRow).where(*same), execution_options={"synchronize_session": False})
    best = one.outcome.best
    db.add(
        ComparisonRow(
            review_id=job.review_id,
            repo_id=job.asked.repo_id,
            name=one.name,
            kind=str(one.benchmark.kind),
            unit=str(one.metric.unit),
            machine_key=one.machine_key,
            base_commit=one.base_commit,
            head_commit=one.head_commit,
            same_code=one.same_code,
            at=now,
            verdict=one.outcome.verdict,
            ratio=best.ratio if best else None,
            low=best.low if best else None,
            high=best.high if best else None,
            void=sum(taken.session.void for taken in one.taken),
            body=COMPARISON.dump_python(one, mode="json"),
        )
    )
    measured = of_head(one)
    known = measurements.named(db, job.review_id, one.name)
    if known is not None:  # a probe has timed the same command: its night gets the verdict, and stays what it is
        known.verdict = verdict_of(measured)
    else:
        db.add(night(job, measured, around, one.head_commit, now, counts=best is not None))


def of_head(one: Comparison) -> Measurement:
    best = one.outcome.best
    return Measurement(
        name=one.name,
        command=one.benchmark.command,
        unit=str(one.metric.unit),
        sessions=tuple(
            taken.session.model_copy(
                update={"value": protocol.value_of(taken.session, one.metric) or 0.0, "figures": {}}
            )
            for taken in one.taken
            if taken.side is Side.HEAD and (taken.session.void or protocol.value_of(taken.session, one.metric))
        ),
        note="" if best else one.outcome.reason,
        change=Change(ratio=best.ratio, low=best.low, high=best.high, verdict=one.outcome.verdict) if best else None,
    )


def night(
    job: Job, one: Measurement, around: Surroundings, commit: str, now: datetime, *, counts: bool = True
) -> MeasurementRow:
    """`counts`: False where good sessions make no number, because others of their block were disturbed."""
    return MeasurementRow(
        review_id=job.review_id,
        repo_id=job.asked.repo_id,
        name=one.name,
        command=one.command,
        unit=one.unit,
        machine_key=machine_key(around),
        commit=commit,
        at=now,
        sessions=[session.model_dump(mode="json") for session in one.sessions],
        median=one.median if counts else None,
        spread=one.spread if counts else None,
        contaminated=one.contaminated,
        note=one.note,
        verdict=verdict_of(one),
        surroundings=asdict(around),
    )


def verdict_of(one: Measurement) -> Any:
    return one.change.model_dump(mode="json") if one.change else None
