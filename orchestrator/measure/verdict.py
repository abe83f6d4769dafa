"""From sessions to a verdict: screen, confirm in an independent block, and only then say slower or faster.

A screen of 6 + 6 sessions names candidates. Those are measured again, 10 + 10, and the correction for having looked
at many benchmarks is made there: 6 + 6 sessions cannot get below p = .002, so a correction over the screen would let
a lone change among two dozen benchmarks never pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.measure import statistics
from orchestrator.measure.records import RULE, Canary, Estimate, Metric, Outcome, Rule
from review_agents.records import Verdict


@dataclass(frozen=True, slots=True)
class Compared:
    """One block's numbers of one metric, not yet a verdict."""

    estimate: Estimate
    floor: float  # share that a change has to reach
    moved: bool  # effect and absolute change reach their floors

    def agrees(self, other: "Compared") -> bool:
        return (self.estimate.ratio > 1) == (other.estimate.ratio > 1)


@dataclass(frozen=True, slots=True)
class Void:
    """A block without a number."""

    reason: str


def compared(
    base: Sequence[float],
    head: Sequence[float],
    metric: Metric,
    *,
    same_code: Sequence[float] = (),
    rule: Rule = RULE,
) -> Compared:
    """`base` and `head`: values of good sessions. `same_code`: ratios of earlier A/A pairs of this series."""
    found = statistics.estimate(base, head, confidence=rule.confidence)
    floor = max(rule.least_effect, rule.noise_times * statistics.ratio_sd(base, head, same_code))
    # Faster by a third and slower by a half are the same distance, so both directions are taken as slower.
    effect = max(found.ratio, 1 / found.ratio) - 1
    return Compared(found, floor, effect >= floor and abs(found.head - found.base) >= metric.floor)


def is_candidate(screen: Compared, rule: Rule = RULE) -> bool:
    """Worth a second, independent block."""
    return screen.moved and screen.estimate.p < rule.screen_p


def settled(
    screens: Mapping[str, Compared | Void], confirms: Mapping[str, Compared | Void], rule: Rule = RULE
) -> dict[str, Outcome]:
    """The verdicts of a whole review, because what stands depends on how many candidates there were.

    Every candidate of `screens` that has no entry in `confirms` was not measured again.
    """
    again = {
        name: block
        for name, block in confirms.items()
        if isinstance(block, Compared) and isinstance(screens[name], Compared)
    }
    p_values = [one.estimate.p for one in again.values()]
    stands = dict(zip(again, statistics.discoveries(p_values, rule.false_discoveries), strict=True))
    return {
        name: outcome(screen, confirms.get(name), stands.get(name, False), rule) for name, screen in screens.items()
    }


def outcome(screen: Compared | Void, confirm: Compared | Void | None, stands: bool, rule: Rule = RULE) -> Outcome:
    """`stands`: the confirming block passed the correction over all candidates."""
    if isinstance(screen, Void):
        return Outcome(Verdict.CONTAMINATED, screen.reason)
    if not is_candidate(screen, rule):
        return unmoved(screen, screen.estimate, None, rule)
    if confirm is None:
        return inconclusive(screen, None, "it looked different once, and was not measured a second time")
    if isinstance(confirm, Void):
        return inconclusive(screen, None, f"it looked different once; the second block was void: {confirm.reason}")
    if stands and confirm.moved and confirm.agrees(screen):
        verdict = Verdict.SLOWER if confirm.estimate.ratio > 1 else Verdict.FASTER
        return Outcome(
            verdict,
            "found in one block and confirmed in a second",
            screen.estimate,
            confirm.estimate,
            effect_floor=confirm.floor,
        )
    return unmoved(screen, confirm.estimate, confirm.estimate, rule)


def unmoved(screen: Compared, judged: Estimate, confirm: Estimate | None, rule: Rule) -> Outcome:
    """No change, as far as the interval of what was measured last allows to say so."""
    within = max(judged.high - 1, 1 - judged.low)
    if within > rule.most_within:
        return inconclusive(screen, confirm, f"the sessions scatter too widely: anything within {within:.0%} fits them")
    return Outcome(
        Verdict.NO_CHANGE,
        f"no change within {within:.1%}",
        screen.estimate,
        confirm,
        within=within,
        effect_floor=screen.floor,
    )


def inconclusive(screen: Compared, confirm: Estimate | None, reason: str) -> Outcome:
    return Outcome(Verdict.INCONCLUSIVE, reason, screen.estimate, confirm, effect_floor=screen.floor)


def drifted(canary: Canary, rule: Rule = RULE) -> str:
    """Why the block is void although each session looked good; empty when it is not."""
    if canary.drift <= rule.most_drift:
        return ""
    return f"our own fixed program ran {canary.drift:.1%} apart before and after, more than {rule.most_drift:.0%}"
