"""The verdict of a review on one page, made by plain code from what the focuses reported and what was proved.

Nobody writes it: scores are reconciled by rules, and the words are those of reports, quoted and named. Whatever was
found, what comes before the focuses' own words is read in two minutes: lists are cut where they are worth least, and
say how much is left out.
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
MOST_FIXES = 8
MOST_LIMITS = 6
MOST_VIEWS = 4  # agreements, and disagreements
LINE_CHARS = 96


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
    not_looked_at: tuple[str, ...] = ()


class Memo(Record):
    verdict: str  # one sentence, by code
    scores: tuple[Score, ...]
    agreed: tuple[str, ...]
    disagreed: tuple[str, ...]
    fixes: tuple[Fix, ...]
    more_fixes: int  # that are not listed
    not_looked_at: tuple[str, ...]  # what hid most first
    more_not_looked_at: int  # that are not listed
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
    unproved: str = "Nothing was proved wrong",
) -> Memo:
    """`probes` are name, state and reason of each check; checks that share a reason may come as one, their names in
    a row. `unproved` is what to say where no fault was proved."""
    scores = reconciled(results, focuses)
    there = [one for one in findings if one.lifecycle in THERE]
    worth = sorted((one for one in there if counts(one)), key=order_of)
    limits = not_looked_at(results, focuses, probes)
    apart = sorted((one for one in scores if one.high - one.low >= APART), key=lambda one: one.low - one.high)
    return Memo(
        verdict=verdict(results, there, unproved),
        scores=scores,
        agreed=tuple(
            f"{len(score.by)} focuses agree on {score.name}: {score.value:g} of 10"
            for score in scores
            if len(score.by) > 1 and score.high - score.low <= TOGETHER
        )[:MOST_VIEWS],
        disagreed=tuple(map(views, apart[:MOST_VIEWS])),
        fixes=tuple(map(fix_of, worth[:MOST_FIXES])),
        more_fixes=max(0, len(worth) - MOST_FIXES),
        not_looked_at=limits[:MOST_LIMITS],
        more_not_looked_at=max(0, len(limits) - MOST_LIMITS),
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


def views(score: Score) -> str:
    """The ends of a disagreement: who says least and who says most."""
    by = sorted(score.by.items(), key=lambda pair: (pair[1], pair[0]))
    shown = by if len(by) <= 3 else [by[0], by[-1]]
    return f"{score.name}: " + ", ".join(f"{focus} says {value:g}" for focus, value in shown)


# Fixes ---------------------------------------------------------------------------------------


def counts(one: Seen) -> bool:
    return one.opinion or one.verification in (VerificationState.CONFIRMED, VerificationState.FLAKY)


def order_of(one: Seen) -> tuple[float, ...]:
    """Most impact for least effort first; what is only an opinion weighs half."""
    proof = 1.0 if one.verification is VerificationState.CONFIRMED else 0.75 if not one.opinion else 0.5
    return (-IMPACT[one.severity] * proof / COST[one.effort or Effort.MEDIUM], one.severity.rank)


def fix_of(one: Seen) -> Fix:
    return Fix(
        title=short(one.title),
        kind=one.kind,
        severity=one.severity,
        effort=one.effort or Effort.MEDIUM,
        proof="opinion" if one.opinion else str(one.verification),
        fingerprint=one.fingerprint,
        file=one.file,
        line=one.line,
    )


# Words ---------------------------------------------------------------------------------------


def verdict(results: Sequence[FocusResult], there: Sequence[Seen], unproved: str) -> str:
    proved = [one for one in there if one.verification is VerificationState.CONFIRMED and not one.opinion]
    serious = sum(one.severity in (Severity.CRITICAL, Severity.HIGH) for one in proved)
    finished = sum(result.state is FocusState.FINISHED for result in results)
    looked = f"{finished} of {len(results)} focuses came to their end" if results else "no model took part"
    if not proved:
        return f"{unproved}; {looked}."
    worst = f", {serious} of them serious" if serious else ", none of them serious"
    return f"{len(proved)} proved {'fault' if len(proved) == 1 else 'faults'}{worst}; {looked}."


def not_looked_at(
    results: Sequence[FocusResult], focuses: Mapping[str, Focus], probes: Sequence[tuple[str, ProbeState, str]]
) -> tuple[str, ...]:
    """Limits of this review, what hid most first; none of them counts against the repo."""
    lines = []
    for result in results:
        if result.state is not FocusState.FINISHED:
            words = str(result.state).replace("_", " ")
            why = f"{words}: {result.reason}" if result.reason else words
            lines.append(f"{title_of(result, focuses)} did not come to its end ({why})")
    ran = {result.focus for result in results}
    if missing := [focus.title for name, focus in focuses.items() if name not in ran]:
        lines.append(f"Nobody looked with the focus of {', '.join(missing)}")
    lines += [f"{name}: {reason}" for name, state, reason in probes if state is ProbeState.COULD_NOT_RUN]
    said: dict[str, list[str]] = {}  # by those who said it
    for result in results:
        for one in result.report.not_looked_at if result.report else ():
            said.setdefault(" ".join(one.split()), []).append(title_of(result, focuses))
    lines += [f"{', '.join(dict.fromkeys(titles))}: {one}" for one, titles in said.items()]
    return tuple(map(short, dict.fromkeys(lines)))


def title_of(result: FocusResult, focuses: Mapping[str, Focus]) -> str:
    return focuses[result.focus].title if result.focus in focuses else result.focus


def short(text: str) -> str:
    """On one line, cut at a word."""
    line = " ".join(text.split())
    if len(line) <= LINE_CHARS:
        return line
    return f"{line[:LINE_CHARS].rpartition(' ')[0] or line[:LINE_CHARS]} …"


def voice_of(result: FocusResult, focuses: Mapping[str, Focus]) -> Voice:
    report = result.report
    return Voice(
        focus=result.focus,
        title=title_of(result, focuses),
        state=result.state,
        reason=result.reason,
        summary=report.summary if report else "",
        recommendation=report.recommendation if report else "",
        strengths=report.strengths if report else (),
        weaknesses=report.weaknesses if report else (),
        not_looked_at=report.not_looked_at if report else (),
    )
