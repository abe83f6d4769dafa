"""Two reviews of one repo side by side."""

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from sqlalchemy.orm import Session

from orchestrator.services import rows
from orchestrator.services.errors import BadInput
from orchestrator.services.reviews import known
from orchestrator.services.views import (
    ComparedMeasurement,
    ComparedProbe,
    Comparison,
    Evidence,
    FindingRow,
)
from orchestrator.services.workshop import Workshop
from orchestrator.store import findings, measurements, steps
from orchestrator.store.measurements import MeasurementRow as StoredMeasurement
from orchestrator.store.reviews import Review
from review_agents.records import Lifecycle


def compare(shop: Workshop, one: UUID, other: UUID) -> Comparison:
    """The earlier of the two first, whichever was named first. Raises `BadInput` unless they are two of one repo."""
    if one == other:
        raise BadInput("other", "Both are the same review; name two.")
    with shop.sessions.reading() as db:
        (first, repo), (second, other_repo) = sorted(
            (known(db, one), known(db, other)), key=lambda pair: (pair[0].created_at, str(pair[0].id))
        )
        if repo.id != other_repo.id:
            raise BadInput("other", f"One is of {repo.name}, the other of {other_repo.name}; name two of one repo.")
        before, after = said(db, first.id), said(db, second.id)
        counts = rows.review_counts(db, [first.id, second.id])
        lacking = rows.unchecked(db, [first.id, second.id])
        there_before = {key for key, finding in before.items() if finding.lifecycle is not Lifecycle.FIXED}
        there_after = {key for key, finding in after.items() if finding.lifecycle is not Lifecycle.FIXED}
        gone = there_before - there_after
        proved = proved_fixed(db, gone, first, second)
        came = there_after - there_before
        earlier = findings.last_words(db, came, until=first.created_at)
        ignored = {key for key in there_after if after[key].lifecycle is Lifecycle.IGNORED}
        regressed = {
            key
            for key in there_after - ignored
            if after[key].lifecycle is Lifecycle.REGRESSED or earlier.get(key) is Lifecycle.FIXED
        }
        new = {key for key in came if key not in earlier} - ignored - regressed
        late = {key for key in new if after[key].seen_late}
        # One that appeared and was fixed between the two is in neither.
        return Comparison(
            one=rows.review_row(first, repo.name, counts[first.id], lacking.get(first.id, "")),
            other=rows.review_row(second, repo.name, counts[second.id], lacking.get(second.id, "")),
            appeared=chosen(after, new - late),
            seen_late=chosen(after, late),
            regressed=chosen(after, regressed),
            stayed=chosen(after, there_after - new - regressed - ignored),
            fixed=chosen({**before, **after}, proved),
            ignored=chosen(after, ignored),
            not_seen=chosen(before, gone - proved),
            probes=probes(db, first.id, second.id),
            measurements=measured(measurements.of_review(db, first.id), measurements.of_review(db, second.id)),
        )


def said(db: Session, review_id: UUID) -> dict[UUID, FindingRow]:
    return {seen.finding_id: rows.finding_row(seen) for seen in findings.of_review(db, review_id)}


def proved_fixed(db: Session, gone: Collection[UUID], first: Review, second: Review) -> set[UUID]:
    """Those of the findings of which the last word, up to the second review, is that they were fixed."""
    words = findings.last_words(db, gone, since=first.created_at, until=second.created_at)
    return {finding_id for finding_id, lifecycle in words.items() if lifecycle is Lifecycle.FIXED}


def chosen(found: Mapping[UUID, FindingRow], keys: Collection[UUID]) -> tuple[FindingRow, ...]:
    return tuple(sorted((found[key] for key in keys), key=rows.importance))


def probes(db: Session, one: UUID, other: UUID) -> tuple[ComparedProbe, ...]:
    """Those that ended differently."""
    before, after = evidence(db, one), evidence(db, other)
    return tuple(
        ComparedProbe(name, before.get(name), after.get(name))
        for name in dict.fromkeys((*before, *after))
        if name not in before or name not in after or before[name].state != after[name].state
    )


def evidence(db: Session, review_id: UUID) -> dict[str, Evidence]:
    found = (rows.evidence(*one) for one in steps.results(db, review_id, "probe:"))
    return {one.probe: one for one in found}


def measured(
    before: Sequence[StoredMeasurement], after: Sequence[StoredMeasurement]
) -> tuple[ComparedMeasurement, ...]:
    earlier, later = {row.name: row for row in before}, {row.name: row for row in after}
    return tuple(paired(name, earlier.get(name), later.get(name)) for name in sorted(earlier.keys() | later.keys()))


def paired(name: str, one: StoredMeasurement | None, other: StoredMeasurement | None) -> ComparedMeasurement:
    same = one is not None and other is not None and (one.machine_key, one.unit) == (other.machine_key, other.unit)
    ratio = None
    if same and one is not None and other is not None and one.median and other.median is not None:
        ratio = other.median / one.median
    present = one or other
    assert present is not None
    return ComparedMeasurement(
        name=name,
        unit=present.unit,
        one=rows.measurement_row(one) if one else None,
        other=rows.measurement_row(other) if other else None,
        ratio=ratio,
        same_machine=same,
    )
