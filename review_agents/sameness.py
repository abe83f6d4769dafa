"""Which claims are of one fault, and which earlier finding each of them repeats. Pure: records in, records out.

- A finding is the same when a fingerprint at any of its places is the same; failing that, same kind,
  path and symbol is the same finding with another place. Where code has no symbol to go by (a script, a
  manifest), what agents say is the same finding when it quotes the same line, else the one known there.
- Two proved faults of one kind in one function are one finding (two nights would not draw the line alike), but none is
  lost: it names both, and is fixed when neither proof shows anything. Where an agent's proof and the other one show
  errors of the program, not one of them in common, and blame no line in common, they are two faults and two findings.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from review_agents.identity import clean_path, errors_in, fingerprint_of, fingerprints_of, similar
from review_agents.records import (
    Another,
    Candidate,
    FindingState,
    Record,
    Source,
    Verification,
    VerificationState,
)

BEST_FIRST = (
    VerificationState.CONFIRMED,
    VerificationState.FLAKY,
    VerificationState.UNVERIFIED,
    VerificationState.NOT_REPRODUCED,
)


class Claim(Record):
    """A candidate of this review with what the service's own re-run made of it."""

    candidate: Candidate
    verification: Verification
    step: str  # which step claimed it, for example probe:readme


class Known(Record):
    """A finding of earlier reviews of the same repo."""

    id: str
    fingerprint: str
    state: FindingState
    candidate: Candidate  # as last seen
    step: str  # which step saw it last
    commit: str  # at which it was last seen
    ignored: str = ""  # the operator's reason, while that ignore is in force
    flaky: bool = False  # it showed only in some of the runs when it was seen last


# Claims and earlier findings ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pair:
    claim: Claim
    known: Known | None


def pair_up(claims: Sequence[Claim], known: Sequence[Known], files: Collection[str]) -> list[Pair]:
    """Each distinct claim with the earlier finding that it repeats, in a stable order.

    Exact matches first, open findings before fixed ones; then by place; then moved files. An
    earlier finding is taken at most once, and claims that meet at one are one.
    """
    exact: dict[str, Known] = {}
    for finding in reversed(in_order(known)):  # so that the first in order wins
        exact.update(dict.fromkeys(fingerprints_of(finding.candidate), finding))
    exact |= {finding.fingerprint: finding for finding in known}
    meeting: dict[str, list[Claim]] = {}
    rest: list[list[Claim]] = []
    for group in distinct(claims):
        repeated = exact.get(fingerprint_of(group[0].candidate)) or min(
            (exact[one] for claim in group for one in fingerprints_of(claim.candidate) if one in exact),
            key=order_of,
            default=None,
        )
        if repeated is None:
            rest.append(group)
        else:
            meeting.setdefault(repeated.id, []).extend(group)
    by_id = {finding.id: finding for finding in known}
    pairs = [(sorted(group, key=rank), by_id[finding_id]) for finding_id, group in meeting.items()]

    left = {finding.id: finding for finding in in_order(known) if finding.id not in meeting}
    tracked = frozenset(files)
    gone = {finding.id for finding in left.values() if not places_in(finding.candidate, tracked)}
    for nearness, agree, only_gone in NEAR:
        near: dict[object, dict[str, Known]] = {}  # by place, then by id, in order
        for finding in left.values():
            for key in nearness(finding.candidate) if finding.id in gone or not only_gone else ():
                near.setdefault(key, {})[finding.id] = finding
        unmatched = []
        for group in rest:
            keys = {key for claim in group for key in nearness(claim.candidate)}
            firsts = (
                next((finding for finding in near[key].values() if may_be(group[0], finding, agree)), None)
                for key in keys
                if key in near
            )
            match = min((finding for finding in firsts if finding is not None), key=order_of, default=None)
            if match is None:
                unmatched.append(group)
                continue
            pairs.append((group, left.pop(match.id)))
            for key in nearness(match.candidate):
                del near[key][match.id]
        rest = unmatched
    found: list[Known | None] = [finding for _, finding in pairs] + [None] * len(rest)
    spoken = joined([group for group, _ in pairs] + rest)
    return sorted(map(Pair, spoken, found), key=lambda pair: (pair.known is None, fingerprint_of(pair.claim.candidate)))


def may_be(claim: Claim, finding: Known, agree: Callable[[Candidate, Candidate], bool]) -> bool:
    return agree(claim.candidate, finding.candidate) and not fails_otherwise(claim.candidate, finding.candidate)


def rules_agree(mine: Candidate, theirs: Candidate) -> bool:
    """Between two probes the rule must be the same, because theirs are exact; an agent's is a judgement."""
    return mine.rule == theirs.rule or an_agent_spoke(mine, theirs)


def an_agent_spoke(mine: Candidate, theirs: Candidate) -> bool:
    return Source.AGENT in (mine.source, theirs.source)


@dataclass(frozen=True, slots=True)
class Marks:
    """By what two faults of one place can be told apart."""

    errors: frozenset[str]  # by which their proofs are known; none where they are known by something else
    lines: frozenset[tuple[str, str]]  # that are blamed, by file

    def with_those_of(self, other: "Marks") -> "Marks":
        return Marks(self.errors | other.errors, self.lines | other.lines)

    def are_of_another_fault_than(self, other: "Marks") -> bool:
        told_apart = self.errors and other.errors and not self.errors & other.errors
        return bool(told_apart) and not self.lines & other.lines


def marks_of(candidate: Candidate) -> Marks:
    proofs = [candidate.reproduction, *(one.reproduction for one in candidate.also)]
    return Marks(
        errors=frozenset(name for proof in proofs if proof is not None for name in errors_in(proof.symptom.contains)),
        lines=frozenset(
            (clean_path(place.file), " ".join(place.quote.split())) for place in candidate.places if place.quote.strip()
        ),
    )


def fails_otherwise(mine: Candidate, theirs: Candidate) -> bool:
    """Whether the two fail differently, as their proofs showed, and blame different lines: then they are two faults.

    Only where an agent spoke. Probes have a rule for each fault, and the words of the error are part of it.
    """
    return an_agent_spoke(mine, theirs) and marks_of(mine).are_of_another_fault_than(marks_of(theirs))


def agents_spoke(mine: Candidate, theirs: Candidate) -> bool:
    return mine.source is theirs.source is Source.AGENT


def identity_without_path(candidate: Candidate) -> frozenset[tuple[object, ...]]:
    """What stays when a file is renamed; empty where that is too little to go by."""
    symbol = " ".join(candidate.places[0].symbol.split())
    if not symbol:
        return frozenset()
    return frozenset({(candidate.kind, candidate.rule, symbol, candidate.shape)})


def places_in(candidate: Candidate, files: frozenset[str]) -> bool:
    return any(clean_path(place.file) in files for place in candidate.places)


def places_of(candidate: Candidate) -> frozenset[tuple[object, ...]]:
    """Where it is, as far as that tells faults apart: a place without a symbol may hold many."""
    return frozenset(
        (candidate.kind, clean_path(place.file), " ".join(place.symbol.split()))
        for place in candidate.places
        if place.symbol.strip()
    )


def quotes_of(candidate: Candidate) -> frozenset[tuple[object, ...]]:
    """The lines that it quotes where there is no symbol."""
    return frozenset(
        (candidate.kind, clean_path(place.file), "", " ".join(place.quote.split()))
        for place in candidate.places
        if place.quote.strip() and not place.symbol.strip()
    )


def files_of(candidate: Candidate) -> frozenset[tuple[object, ...]]:
    """The files of places that have no symbol."""
    return frozenset(
        (candidate.kind, clean_path(place.file), "") for place in candidate.places if not place.symbol.strip()
    )


Nearness = Callable[[Candidate], frozenset[tuple[object, ...]]]
# What may make a claim a known finding, the surest first; between whom; whether only where that one's files are gone.
NEAR: tuple[tuple[Nearness, Callable[[Candidate, Candidate], bool], bool], ...] = (
    (places_of, rules_agree, False),
    (quotes_of, an_agent_spoke, False),
    (files_of, agents_spoke, False),
    (identity_without_path, rules_agree, True),
)


# Claims among themselves ---------------------------------------------------------------------


def distinct(claims: Sequence[Claim]) -> list[list[Claim]]:
    """Claims of one fault together, the best proved first.

    One fault: the same fingerprint, the same failing command, or an agent repeating what was
    claimed about that place.
    """
    ordered = sorted(claims, key=lambda claim: (claim.candidate.source is Source.AGENT, rank(claim)))
    first_with: dict[object, int] = {}  # a key's first claim
    at_place: dict[object, dict[int, None]] = {}  # those that led a group of claims of that place, in order
    leader = list(range(len(ordered)))
    marks = [marks_of(claim.candidate) for claim in ordered]  # of each leader's whole group

    def leader_of(number: int) -> int:
        while leader[number] != number:
            number = leader[number]
        return number

    def join(number: int, other: int) -> None:
        one, two = sorted((leader_of(other), leader_of(number)))
        if one != two:
            leader[two] = one
            marks[one] = marks[one].with_those_of(marks[two])

    for number, claim in enumerate(ordered):
        candidate = claim.candidate
        keys: list[object] = [*sorted(fingerprints_of(candidate)), *root_cause(candidate)]
        places: list[object] = [*sorted(places_of(candidate), key=str), *sorted(quotes_of(candidate), key=str)]
        same = [first_with[key] for key in keys if key in first_with]
        for other in same:
            join(number, other)
        if not same and candidate.source is Source.AGENT:
            here = (leader_of(other) for key in places for other in at_place.get(key, ()))
            first = next((one for one in here if not marks[one].are_of_another_fault_than(marks[number])), None)
            if first is not None:
                join(number, first)
        for key in keys:
            first_with.setdefault(key, number)
        for key in places:
            at_place.setdefault(key, {})[leader_of(number)] = None
    groups: dict[int, list[Claim]] = {}
    for number, claim in enumerate(ordered):
        groups.setdefault(leader_of(number), []).append(claim)
    return [sorted(group, key=rank) for group in groups.values()]


def one_each(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Of each fault the claim that will speak for it, with the places of all, before anything is proved; in order."""
    untried = Verification(state=VerificationState.UNVERIFIED)
    claims = [Claim(candidate=one, verification=untried, step="") for one in dict.fromkeys(candidates)]
    at = {claim.candidate: number for number, claim in enumerate(claims)}
    groups = sorted(distinct(claims), key=lambda group: at[group[0].candidate])
    return tuple(claim.candidate for claim in joined(groups))


def joined(groups: Sequence[Sequence[Claim]]) -> list[Claim]:
    """Of each group the best proved claim, with the places of all.

    A place that would give one claim the fingerprint of another stays with the other.
    """
    taken = {one for group in groups for one in fingerprints_of(group[0].candidate)}
    return [with_places(group, taken) for group in groups]


def with_places(group: Sequence[Claim], taken: set[str]) -> Claim:
    best = group[0]
    places = {(place.file, place.line, place.symbol, place.quote): place for place in best.candidate.places}
    mine = set(fingerprints_of(best.candidate))
    for claim in group[1:]:
        for place in claim.candidate.places:
            one = fingerprint_of(best.candidate, place)
            if one in mine or one not in taken:
                places.setdefault((place.file, place.line, place.symbol, place.quote), place)
                mine.add(one)
                taken.add(one)
    also = others(best, group[1:])
    description = "\n\n".join([best.candidate.description, *map(in_passing, also)])
    changes = {"places": tuple(places.values()), "also": also, "description": description}
    candidate = best.candidate.model_copy(update=changes)
    return best.model_copy(update={"candidate": candidate})


MOST_OTHERS = 3


def others(best: Claim, rest: Sequence[Claim]) -> tuple[Another, ...]:
    """What agents proved about the same place that is not merely the same in other words."""
    kept = [best.candidate]
    found: list[Another] = []
    for claim in rest:
        candidate = claim.candidate
        if candidate.source is not Source.AGENT or claim.verification.state is not VerificationState.CONFIRMED:
            continue
        if candidate.reproduction is None or any(same_words(candidate, one) for one in kept):
            continue
        kept.append(candidate)
        found.append(
            Another(title=candidate.title, description=candidate.description, reproduction=candidate.reproduction)
        )
    return tuple(found[:MOST_OTHERS])


def same_words(one: Candidate, other: Candidate) -> bool:
    """Whether one is the other in other words; not where one was said to differ, which their proofs had to show."""
    return not one.differs and not other.differs and similar(one.title, other.title)


def carrying(now: Candidate, before: Candidate) -> Candidate:
    """With the proofs that earlier nights had of it, because they may be of another fault of the same place."""
    earlier = list(before.also)
    if before.source is Source.AGENT and before.reproduction is not None:
        said = before.description.partition(f"\n\n{PASSING}")[0]
        earlier.insert(0, Another(title=before.title, description=said, reproduction=before.reproduction))
    also = list(now.also)
    for one in earlier:
        if not any(similar(one.title, title) for title in (now.title, *(other.title for other in also))):
            also.append(one)
    return now.model_copy(update={"also": tuple(also[:MOST_OTHERS])})


PASSING = "Also proved at this place: "


def in_passing(one: Another) -> str:
    return f"{PASSING}{one.title}. {one.description}"


def root_cause(candidate: Candidate) -> list[tuple[object, ...]]:
    """The failing command, which shows one fault however many places repeat it."""
    if candidate.reproduction is None:
        return []
    reproduction = candidate.reproduction
    return [(candidate.kind, candidate.rule, candidate.shape, reproduction.command, reproduction.symptom)]


# In which order ------------------------------------------------------------------------------


def rank(claim: Claim) -> tuple[object, ...]:
    """Best proof first; then what probes say, then severity, then something that never changes."""
    candidate = claim.candidate
    return (
        BEST_FIRST.index(claim.verification.state),
        candidate.source is Source.AGENT,
        candidate.severity.rank,
        fingerprint_of(candidate),
        claim.step,
        candidate.title,
        candidate.description,
        candidate.reproduction.command if candidate.reproduction else "",
        [(place.file, place.line or 0, place.symbol, place.quote) for place in candidate.places],
    )


def order_of(finding: Known) -> tuple[object, ...]:
    states = (FindingState.OPEN, FindingState.FIXED, FindingState.CLAIMED)
    return (states.index(finding.state), finding.fingerprint, finding.id)


def in_order(known: Iterable[Known]) -> list[Known]:
    return sorted(known, key=order_of)
