"""What becomes of claims and of earlier findings when a review ends. Pure: records in, records out.

Two calls with work in between. `to_recheck` names the open findings that nothing reported this
time; the service runs their old reproductions on the new commit and looks for their quotes;
`merge` then files everything.

The rules, each bought with somebody's bad night:

- A finding is the same when a fingerprint at any of its places is the same; failing that, same kind,
  path and symbol is the same finding with another place. Where code has no symbol to go by (a script, a
  manifest), what agents say is the same finding when it quotes the same line, else the one known there.
- Absence proves nothing. "Fixed" needs the old reproduction run on another commit without showing
  the fault, or its quoted text gone from a place that the same completed step looked at again.
- A step that could not run, and a re-run that could not, mark nothing.
- A claim that was not proved never opens, reopens or counts; it is filed as what it is.
- Two proved faults of one kind in one function are one finding (two nights would not draw the line alike), but none is
  lost: it names both, and is fixed when neither proof shows anything.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from review_agents.identity import clean_path, fingerprint_of, fingerprints_of, similar
from review_agents.records import (
    Another,
    Candidate,
    Environment,
    FindingState,
    Kind,
    Lifecycle,
    Record,
    Source,
    Verification,
    VerificationState,
)

# Statuses of the shell for a command that is not there: the reproduction did not run, so it proves nothing.
DID_NOT_START = (126, 127)

# Text that addresses reviewers may not switch off its own discovery.
NEVER_IGNORED_BY_REPO = "reviewer"  # how the rules for it begin

PROVED = (VerificationState.CONFIRMED, VerificationState.FLAKY)
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


class Look(Record):
    """That a step completed, and where it looked: a fault there would have been reported.

    Only for steps that ran to their end. A probe with nothing to check looked, too; one that
    could not run did not.
    """

    step: str
    files: frozenset[str] | None = None  # None: wherever there is something for it

    def covers(self, path: str) -> bool:
        return self.files is None or path in self.files


class Recheck(Record):
    """An open finding's old reproduction, run on the commit of this review."""

    verification: Verification
    quotes_gone: bool = False  # it has quotes, and none of them occurs in its file any more
    still: Another | None = None  # the other claim of it whose proof it was that ran, because its own shows nothing


class Filed(Record):
    """What one review says about one finding."""

    finding_id: str | None  # None: a finding that nobody knew
    fingerprint: str
    candidate: Candidate
    verification: Verification
    step: str
    lifecycle: Lifecycle
    seen_late: bool = False
    ignored_by: str = ""  # "", "operator: REASON" or "repo: REASON"
    state: FindingState  # where the finding stands from now on


def to_recheck(claims: Sequence[Claim], known: Sequence[Known], *, files: Collection[str]) -> tuple[Known, ...]:
    """The open findings that no claim repeats and whose reproduction must be run again, in a stable order."""
    repeated = {pair.known.id for pair in pair_up(claims, known, files) if pair.known is not None}
    return tuple(
        finding
        for finding in in_order(known)
        if finding.state is FindingState.OPEN and finding.id not in repeated and finding.candidate.reproduction
    )


def merge(
    claims: Sequence[Claim],
    known: Sequence[Known],
    *,
    rechecks: Mapping[str, Recheck],
    looks: Sequence[Look],
    commit: str,
    files: Collection[str],
    reviewed_before: bool,
    environments: Collection[Environment] = tuple(Environment),
    repo_ignores: Sequence[Mapping[str, str]] = (),
) -> tuple[Filed, ...]:
    """All that the review files.

    `files` are the tracked paths at this commit, `reviewed_before` says whether an earlier review
    of this very commit came to its end, `environments` are those that could be made this time (a
    re-run in one that could not proves nothing), `rechecks` are by finding id.
    """
    pairs = pair_up(claims, known, files)
    filed = [file_claim(pair, reviewed_before=reviewed_before) for pair in pairs]
    repeated = {pair.known.id for pair in pairs if pair.known is not None}
    for finding in in_order(known):
        if finding.id not in repeated and finding.id in rechecks and finding.state is FindingState.OPEN:
            outcome = file_recheck(finding, rechecks[finding.id], looks=looks, commit=commit, environments=environments)
            if outcome is not None:
                filed.append(outcome)
    operator = {finding.id: finding.ignored for finding in known if finding.ignored}
    return tuple(ignored(one, operator.get(one.finding_id or "", ""), repo_ignores) for one in filed)


# Filing ------------------------------------------------------------------------------------


def file_claim(pair: "Pair", *, reviewed_before: bool) -> Filed:
    claim, known = pair.claim, pair.known
    proved = claim.verification.state in PROVED
    before = known.state if known else FindingState.CLAIMED
    if known is None or (before is FindingState.CLAIMED and proved):
        lifecycle = Lifecycle.NEW
    elif before is FindingState.FIXED:
        lifecycle = Lifecycle.REGRESSED
    else:
        lifecycle = Lifecycle.PERSISTING
    return Filed(
        finding_id=known.id if known else None,
        fingerprint=known.fingerprint if known else fingerprint_of(claim.candidate),
        candidate=carrying(claim.candidate, known.candidate) if known and proved else claim.candidate,
        verification=claim.verification,
        step=claim.step,
        lifecycle=lifecycle,
        seen_late=lifecycle is Lifecycle.NEW and proved and reviewed_before,
        state=FindingState.OPEN if proved else before,
    )


def file_recheck(
    finding: Known,
    recheck: Recheck,
    *,
    looks: Sequence[Look],
    commit: str,
    environments: Collection[Environment],
) -> Filed | None:
    """What the re-run shows, or None when it shows nothing either way."""
    verification = recheck.verification
    # On the commit that showed it, a fault that does not show is unsteady, not fixed.
    changed = commit != finding.commit
    absent = verification.state is VerificationState.NOT_REPRODUCED and ran_properly(
        finding.candidate, verification, environments
    )
    if absent and changed:
        fixed = True
    elif changed and text_is_gone(finding, recheck, looks):
        fixed = True
        gone_from = ", ".join(sorted({place.file for place in finding.candidate.places}))
        verification = Verification(
            state=VerificationState.NOT_REPRODUCED,
            reason=f"the quoted text is no longer in {gone_from}",
            runs=verification.runs,
        )
    elif absent or (verification.state in PROVED and not claims_text(finding.candidate, recheck)):
        fixed = False
    else:
        return None
    return Filed(
        finding_id=finding.id,
        fingerprint=finding.fingerprint,
        candidate=speaking(finding.candidate, recheck.still),
        verification=verification,
        step=finding.step,
        lifecycle=Lifecycle.FIXED if fixed else Lifecycle.PERSISTING,
        state=FindingState.FIXED if fixed else FindingState.OPEN,
    )


def speaking(candidate: Candidate, still: Another | None) -> Candidate:
    """As it is filed from now on: in the words and with the proof of what is left of it."""
    if still is None:
        return candidate
    left = tuple(one for one in candidate.also if one != still)
    words = {"title": still.title, "description": still.description, "reproduction": still.reproduction}
    return candidate.model_copy(update={**words, "also": left})


def text_is_gone(finding: Known, recheck: Recheck, looks: Sequence[Look]) -> bool:
    """Whether what the finding quotes was taken out, and the step that found it looked there again in vain.

    For probes, whose looking is exact, and for documentation, where the text is half of the fault.
    """
    if finding.candidate.source is Source.AGENT and finding.candidate.kind is not Kind.DOCUMENTATION:
        return False
    paths = {clean_path(place.file) for place in finding.candidate.places}
    looked_again = any(look.step == finding.step and all(map(look.covers, paths)) for look in looks)
    return recheck.quotes_gone and looked_again


def claims_text(candidate: Candidate, recheck: Recheck) -> bool:
    """Whether the claim was about a text that is not there any more: its reproduction alone shows no fault."""
    return recheck.quotes_gone and candidate.kind is Kind.DOCUMENTATION


def ran_properly(candidate: Candidate, verification: Verification, environments: Collection[Environment]) -> bool:
    """Whether a re-run that did not show the fault really ran what it was to run."""
    proofs = [candidate.reproduction, *(one.reproduction for one in candidate.also)]
    if any(proof is None or proof.environment not in environments for proof in proofs):
        return False
    return bool(verification.runs) and not any(
        ran.timed_out or ran.oom or ran.exit in DID_NOT_START for ran in verification.runs
    )


def ignored(filed: Filed, operator: str, repo_ignores: Sequence[Mapping[str, str]]) -> Filed:
    if filed.lifecycle is Lifecycle.FIXED:
        return filed
    if operator:
        return filed.model_copy(update={"lifecycle": Lifecycle.IGNORED, "ignored_by": f"operator: {operator}"})
    reason = ignored_by_repo(filed.candidate, repo_ignores)
    if reason is not None:
        return filed.model_copy(update={"lifecycle": Lifecycle.IGNORED, "ignored_by": f"repo: {reason}"})
    return filed


def ignored_by_repo(candidate: Candidate, repo_ignores: Sequence[Mapping[str, str]]) -> str | None:
    """The reason of the first of the repo's own ignores that fits, where a repo has a say at all."""
    if candidate.kind is Kind.SECURITY or candidate.rule.startswith(NEVER_IGNORED_BY_REPO):
        return None
    for one in repo_ignores:
        asked = [one[key] for key in ("kind", "rule", "path") if one.get(key)]
        if (
            asked  # an ignore that names nothing would hide everything
            and one.get("kind") in (None, "", str(candidate.kind))
            and one.get("rule") in (None, "", candidate.rule)
            and all(fnmatchcase(clean_path(place.file), one.get("path") or "*") for place in candidate.places)
        ):
            return one.get("reason") or "no reason given"
    return None


# Same or not -------------------------------------------------------------------------------


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
    for nearness, agree in NEAR:
        near: dict[object, dict[str, Known]] = {}  # by place, then by id, in order
        for finding in left.values():
            for key in nearness(finding.candidate) if agree is not same_but_moved or finding.id in gone else ():
                near.setdefault(key, {})[finding.id] = finding
        unmatched = []
        for group in rest:
            keys = {key for claim in group for key in nearness(claim.candidate)}
            firsts = (
                next((finding for finding in near[key].values() if agree(group[0].candidate, finding.candidate)), None)
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


def rules_agree(mine: Candidate, theirs: Candidate) -> bool:
    """Between two probes the rule must be the same, because theirs are exact; an agent's is a judgement."""
    return mine.rule == theirs.rule or an_agent_spoke(mine, theirs)


def same_but_moved(mine: Candidate, theirs: Candidate) -> bool:
    return rules_agree(mine, theirs)


def an_agent_spoke(mine: Candidate, theirs: Candidate) -> bool:
    return Source.AGENT in (mine.source, theirs.source)


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
# What may make a claim a known finding, the surest first, and between whom it counts.
NEAR: tuple[tuple[Nearness, Callable[[Candidate, Candidate], bool]], ...] = (
    (places_of, rules_agree),
    (quotes_of, an_agent_spoke),
    (files_of, agents_spoke),
    (identity_without_path, same_but_moved),
)


def distinct(claims: Sequence[Claim]) -> list[list[Claim]]:
    """Claims of one fault together, the best proved first.

    One fault: the same fingerprint, the same failing command, or an agent repeating what was
    claimed about that place.
    """
    ordered = sorted(claims, key=lambda claim: (claim.candidate.source is Source.AGENT, rank(claim)))
    first_with: dict[object, int] = {}  # a key's first claim
    leader = list(range(len(ordered)))

    def leader_of(number: int) -> int:
        while leader[number] != number:
            number = leader[number]
        return number

    for number, claim in enumerate(ordered):
        candidate = claim.candidate
        keys: list[object] = [*sorted(fingerprints_of(candidate)), *root_cause(candidate)]
        places: list[object] = [*sorted(places_of(candidate), key=str), *sorted(quotes_of(candidate), key=str)]
        same = [first_with[key] for key in keys if key in first_with]
        if not same and candidate.source is Source.AGENT:
            same = [first_with[key] for key in places if key in first_with][:1]
        for other in same:
            one, two = sorted((leader_of(other), leader_of(number)))
            leader[two] = one
        for key in keys + places:
            first_with.setdefault(key, number)
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
