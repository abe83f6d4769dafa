"""Which commit to build and run next when looking for the one that made a step, and when the search is over."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.measure.records import Estimate


@dataclass(frozen=True, slots=True)
class Range:
    """What is known: the step came after `good`, and is there at `bad`. Commits between could not be judged."""

    good: str
    bad: str
    between: tuple[str, ...]

    @property
    def culprit(self) -> str:
        """The one commit that is left; empty when several are."""
        return "" if self.between else self.bad


def narrowed(commits: Sequence[str], known: Mapping[str, bool | None]) -> Range:
    """`commits`: from the good end to the bad one, oldest first. `known`: slow or not; None: it cannot be told."""
    bad = next(at for at, commit in enumerate(commits) if at == len(commits) - 1 or known.get(commit) is True)
    good = max(at for at in range(bad) if at == 0 or known.get(commits[at]) is False)
    return Range(commits[good], commits[bad], tuple(commits[good + 1 : bad]))


def next_commit(commits: Sequence[str], known: Mapping[str, bool | None]) -> str | None:
    """The one in the middle of what is open, or beside it where that could not be judged; None: the search is over."""
    left = narrowed(commits, known).between
    middle = (len(left) - 1) / 2
    open_ones = [at for at, commit in enumerate(left) if commit not in known]
    return left[min(open_ones, key=lambda at: (abs(at - middle), at))] if open_ones else None


def is_slow(against_good: Estimate, step_ratio: float) -> bool | None:
    """Whether a commit belongs to the bad side: it lies beyond the middle of the step. None: the interval holds both.

    step_ratio    bad over good; below 1 the step is one to faster
    """
    middle = math.sqrt(step_ratio)
    beyond = against_good.low > middle, against_good.high < middle
    if step_ratio < 1:
        beyond = beyond[1], beyond[0]
    return True if beyond[0] else False if beyond[1] else None
