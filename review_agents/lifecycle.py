"""What becomes of claims and of earlier findings when a review ends. Pure: records in, records out.

Two calls with work in between. `to_recheck` names the open findings that nothing reported this
time; the service runs their old reproductions on the new commit and looks for their quotes;
`merge` then files everything.

The rules, each bought with somebody's bad night:

- Absence proves nothing. "Fixed" needs the old reproduction run on another commit without showing
  the fault, or its quoted text gone from a place that the same completed step looked at again.
- A proof made of a text of the repo (a page's examples, a sentence) proves nothing once that text is another: the
  step that made it looks again, and what it does not find any more is fixed. If it could not look, nothing is marked.
- A step that could not run, and a re-run that could not, mark nothing. Nor does a re-run that met an interface which
  is another now: a renamed function is no mended one.
- A claim that was not proved never opens, reopens or counts; it is filed as what it is.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from review_agents.identity import clean_path, fingerprint_of
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
from review_agents.sameness import Claim, Known, Pair, carrying, in_order, pair_up

# Statuses of the shell for a command that is not there: the reproduction did not run, so it proves nothing.
DID_NOT_START = (126, 127)

# What is printed where a script asks for something that is not there, or calls it as it cannot be called any more. A
# line anywhere, because a script may go on after it. What a mended program says by itself (needs an extra, will not
# have this value) is worded otherwise.
DOES_NOT_FIT = re.compile(
    r"""^(?:E\ +)?(?:
        (?:ImportError|ModuleNotFoundError):\ (?:cannot\ import\ name\b|No\ module\ named\b)
      | AttributeError:\ (?:partially\ initialized\ )?(?:module|type\ object|'[^']*'\ object).*\ has\ no\ attribute\b
      | NameError:\ (?:free\ variable|name)\ .*\bis\ not\ defined
      | TypeError:\ .*(?:\bunexpected\ keyword\ argument\b|\bmissing\ \d+\ required\b|\bpositional\ arguments?\ but\b)
      | (?:SyntaxError|IndentationError|TabError):
      | (?:Error:\ )?Cannot\ find\ module\b
      | \S*python[\d.]*:\ (?:No\ module\ named\b|can't\ open\ file\b)
      | .*:\ command\ not\ found$
    )""",
    re.VERBOSE | re.MULTILINE,
)

# Text that addresses reviewers may not switch off its own discovery.
NEVER_IGNORED_BY_REPO = "reviewer"  # how the rules for it begin

PROVED = (VerificationState.CONFIRMED, VerificationState.FLAKY)


class Look(Record):
    """That a step completed, and where it looked: a fault there would have been reported.

    Only for steps that ran to their end. A probe with nothing to check looked, too; one that
    could not run did not.
    """

    step: str
    files: frozenset[str] | None = None  # None: wherever there is something for it
    left_out: frozenset[str] = frozenset()  # where it did not come to the end

    def covers(self, path: str) -> bool:
        return path not in self.left_out and (self.files is None or path in self.files)


class Recheck(Record):
    """An open finding's old reproduction, run on the commit of this review."""

    verification: Verification
    quotes_gone: bool = False  # it has quotes, and none of them occurs in its file any more
    outdated: tuple[str, ...] = ()  # files in which text that its proof repeats does not stand any more as it was
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


def file_claim(pair: Pair, *, reviewed_before: bool) -> Filed:
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
    if changed and recheck.outdated:
        if not looked_again(finding, looks, {*recheck.outdated, *files_of(finding)}):
            return None
        fixed = True
        verification = Verification(
            state=VerificationState.NOT_REPRODUCED,
            reason=f"its script was made of what {' and '.join(recheck.outdated)} said, which is another text now; "
            f"{finding.step} looked there again and found nothing of the kind",
            runs=verification.runs,
        )
    elif absent and changed:
        fixed = True
    elif changed and text_is_gone(finding, recheck, looks):
        fixed = True
        gone_from = ", ".join(sorted(files_of(finding)))
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
    return recheck.quotes_gone and looked_again(finding, looks, files_of(finding))


def looked_again(finding: Known, looks: Sequence[Look], paths: Collection[str]) -> bool:
    return any(look.step == finding.step and all(map(look.covers, paths)) for look in looks)


def files_of(finding: Known) -> set[str]:
    return {clean_path(place.file) for place in finding.candidate.places}


def claims_text(candidate: Candidate, recheck: Recheck) -> bool:
    """Whether the claim was about a text that is not there any more: its reproduction alone shows no fault."""
    return recheck.quotes_gone and candidate.kind is Kind.DOCUMENTATION


def ran_properly(candidate: Candidate, verification: Verification, environments: Collection[Environment]) -> bool:
    """Whether a re-run that did not show the fault really ran what it was to run."""
    proofs = [candidate.reproduction, *(one.reproduction for one in candidate.also)]
    if any(proof is None or proof.environment not in environments for proof in proofs):
        return False
    return bool(verification.runs) and not any(
        ran.timed_out or ran.oom or ran.exit in DID_NOT_START or DOES_NOT_FIT.search(ran.output)
        for ran in verification.runs
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
