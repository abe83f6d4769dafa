"""From a fact about an example to a candidate that a person can read and repeat."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from review_agents.records import Candidate, Kind, Place, Reproduction, Severity


@dataclass(frozen=True, slots=True)
class Claim:
    """One fault with everything that a candidate needs. Claims of one rule and symbol are one fault."""

    kind: Kind
    rule: str
    symbol: str
    title: str
    description: str
    severity: Severity
    places: tuple[Place, ...]
    reproduction: Reproduction
    shape: str = ""
    also: tuple[str, ...] = field(default=())  # further places in words

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.kind, self.rule, self.symbol, self.shape)


def merge_claims(claims: Iterable[Claim]) -> list[Claim]:
    """One claim for each fault: the first keeps its text and gets the places of the others."""
    merged: dict[tuple[str, str, str, str], Claim] = {}
    for claim in claims:
        first = merged.get(claim.key)
        if first is None:
            merged[claim.key] = claim
            continue
        known = {(place.file, place.line) for place in first.places}
        more = tuple(place for place in claim.places if (place.file, place.line) not in known)
        if more:
            also = (*first.also, *(f"{place.file}:{place.line}" for place in more))
            merged[claim.key] = replace(first, places=(*first.places, *more), also=also)
    return list(merged.values())


def candidate_of(claim: Claim) -> Candidate:
    description = claim.description
    if claim.also:
        description += f"\n\nThe same at {', '.join(claim.also[:10])}."
    return Candidate(
        kind=claim.kind,
        rule=claim.rule,
        title=claim.title[:300],
        description=description,
        severity=claim.severity,
        places=_with_symbol(claim),
        reproduction=claim.reproduction,
        shape=claim.shape,
    )


def _with_symbol(claim: Claim) -> tuple[Place, ...]:
    """The first place names the fault; places in code keep the name of their function."""
    first, *others = claim.places
    if not first.file.endswith(".py"):
        first = first.model_copy(update={"symbol": claim.symbol})
    return (first, *others)
