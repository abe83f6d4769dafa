"""The verdict of a review on one page, made by plain code from what the focuses reported and what was proved.

Nobody writes it: scores are reconciled by rules, and the words are those of reports, quoted and named.
"""

import math
from collections.abc import Mapping, Sequence

from review_agents.focus import SCORES, Focus
from review_agents.records import (
    Effort,
    FocusResult,
    FocusState,
    Lifecycle,
    ProbeState,
    Record,
    Severity,
    VerificationState,
)

LOWEST, HIGHEST = 1.0, 10.0
OWNER_WEIGHT = 2.0
PLAIN_MEANS = ("honesty", "overall")  # nobody owns these
APART = 3.0  # points between two focuses that are a disagreement
TOGETHER = 1.0
MOST_FIXES = 15


class Score(Record):
    name: str
    value: float  # 1 to 10, one decimal
    low: float
    high: float
    by: dict[str, float]  # focus -> its score
    owner: str = ""  # the focus whose score counted double


class Fix(Record):
    """Something to repair, in the order of what it is worth."""

    title: str
    kind: str
    severity: Severity
    effort: Effort
    proof: str  # confirmed, flaky, ... or opinion
    fingerprint: str
    file: str
    line: int | None


class Voice(Record):
    """What a focus said of the whole."""

    focus: str
    title: str
    state: FocusState
    reason: str = ""
    summary: str = ""
    recommendation: str = ""
    strengths: tuple[str, ...] = ()
    weaknesses: tuple[str, ...] = ()


class Memo(Record):
    verdict: str  # one sentence, by code
    scores: tuple[Score, ...]
    agreed: tuple[str, ...]
    disagreed: tuple[str, ...]
    fixes: tuple[Fix, ...]
    more_fixes: int  # that are not listed
    not_looked_at: tuple[str, ...]
    voices: tuple[Voice, ...]


class Seen(Record):
    """What the memo needs of a filed finding."""

    title: str
    kind: str
    severity: Severity
    effort: Effort | None
    opinion: bool
    verification: VerificationState
    lifecycle: Lifecycle
    fingerprint: str
    file: str
    line: int | None


THERE = (Lifecycle.NEW, Lifecycle.PERSISTING, Lifecycle.REGRESSED)
IMPACT = {Severity.CRITICAL: 16.0, Severity.HIGH: 8.0, Severity.MEDIUM: 4.0, Severity.LOW: 2.0, Severity.INFO: 1.0}
COST = {Effort.SMALL: 1.0, Effort.MEDIUM: 1.5, Effort.LARGE: 2.5}


def memo_of(
    results: Sequence[FocusResult],
    findings: Sequence[Seen],
    focuses: Mapping[str, Focus],
    probes: Sequence[tuple[str, ProbeState, str]],
) -> Memo:
    """`probes` are name, state and reason of each check."""
    scores = reconciled(results, focuses)
    there = [one for one in findings if one.lifecycle in THERE]
    worth = sorted((one for one in there if counts(one)), key=order_of)
    return Memo(
        verdict=verdict(results, there),
        scores=scores,
        agreed=tuple(
            f"{len(score.by)} focuses agree on {score.name}: {score.value:g} of 10"
            for score in scores
            if len(score.by) > 1 and score.high - score.low <= TOGETHER
        ),
        disagreed=tuple(
            f"{score.name}: " + ", ".join(f"{focus} says {value:g}" for focus, value in sorted(score.by.items()))
            for score in scores
            if score.high - score.low >= APART
        ),
        fixes=tuple(map(fix_of, worth[:MOST_FIXES])),
        more_fixes=max(0, len(worth) - MOST_FIXES),
        not_looked_at=not_looked_at(results, focuses, probes),
        voices=tuple(voice_of(result, focuses) for result in results),
    )


# Scores --------------------------------------------------------------------------------------


def reconciled(results: Sequence[FocusResult], focuses: Mapping[str, Focus]) -> tuple[Score, ...]:
    """Each score's weighted mean: its owner counts double. Values are clamped; what is no number is dropped."""
    found = []
    for name in SCORES:
        by = {
            result.focus: min(HIGHEST, max(LOWEST, result.report.scores[name]))
            for result in results
            if result.report and math.isfinite(result.report.scores.get(name, math.nan))
        }
        if not by:
            continue
        owner = next((focus for focus in by if focus in focuses and focuses[focus].score == name), "")
        weights = {focus: OWNER_WEIGHT if focus == owner and name not in PLAIN_MEANS else 1.0 for focus in by}
        value = sum(by[focus] * weights[focus] for focus in by) / sum(weights.values())
        found.append(
            Score(name=name, value=round(value, 1), low=min(by.values()), high=max(by.values()), by=by, owner=owner)
        )
    return tuple(found)


# Fixes ---------------------------------------------------------------------------------------


def counts(one: Seen) -> bool:
    return one.opinion or one.verification in (VerificationState.CONFIRMED, VerificationState.FLAKY)


def order_of(one: Seen) -> tuple[float, ...]:
    """Most impact for least effort first; what is only an opinion weighs half."""
    proof = 1.0 if one.verification is VerificationState.CONFIRMED else 0.75 if not one.opinion else 0.5
    return (-IMPACT[one.severity] * proof / COST[one.effort or Effort.MEDIUM], one.severity.rank)


def fix_of(one: Seen) -> Fix:
    return Fix(
        title=one.title,
        kind=one.kind,
        severity=one.severity,
        effort=one.effort or Effort.MEDIUM,
        proof="opinion" if one.opinion else str(one.verification),
        fingerprint=one.fingerprint,
        file=one.file,
        line=one.line,
    )


# Words ---------------------------------------------------------------------------------------


def verdict(results: Sequence[FocusResult], there: Sequence[Seen]) -> str:
    proved = [one for one in there if one.verification is VerificationState.CONFIRMED and not one.opinion]
    serious = sum(one.severity in (Severity.CRITICAL, Severity.HIGH) for one in proved)
    finished = sum(result.state is FocusState.FINISHED for result in results)
    looked = f"{finished} of {len(results)} focuses came to their end" if results else "no model took part"
    if not proved:
        return f"Nothing was proved wrong; {looked}."
    worst = f", {serious} of them serious" if serious else ", none of them serious"
    return f"{len(proved)} proved {'fault' if len(proved) == 1 else 'faults'}{worst}; {looked}."


def not_looked_at(
    results: Sequence[FocusResult], focuses: Mapping[str, Focus], probes: Sequence[tuple[str, ProbeState, str]]
) -> tuple[str, ...]:
    """Limits of this review; none of them counts against the repo."""
    lines = [f"{name}: {reason}" for name, state, reason in probes if state is ProbeState.COULD_NOT_RUN]
    for result in results:
        title = focuses[result.focus].title if result.focus in focuses else result.focus
        if result.state is not FocusState.FINISHED:
            words = str(result.state).replace("_", " ")
            lines.append(f"{title} did not come to its end ({words}{': ' + result.reason if result.reason else ''})")
        lines += [f"{title}: {one}" for one in (result.report.not_looked_at if result.report else ())]
    ran = {result.focus for result in results}
    missing = [focus.title for name, focus in focuses.items() if name not in ran]
    if missing:
        lines.append(f"nobody looked with the focus of {', '.join(missing)}")
    return tuple(dict.fromkeys(lines))


def voice_of(result: FocusResult, focuses: Mapping[str, Focus]) -> Voice:
    report = result.report
    return Voice(
        focus=result.focus,
        title=focuses[result.focus].title if result.focus in focuses else result.focus,
        state=result.state,
        reason=result.reason,
        summary=report.summary if report else "",
        recommendation=report.recommendation if report else "",
        strengths=report.strengths if report else (),
        weaknesses=report.weaknesses if report else (),
    )
