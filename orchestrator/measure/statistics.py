"""Two small groups of positive numbers compared: how far apart, between which bounds, and could it be chance.

Everything is done on logarithms, so that it speaks of ratios, and by ranks, so that one wild session decides nothing.
The estimate (Hodges-Lehmann), its interval (Moses) and the test (Mann-Whitney) belong together: at the same level the
interval leaves 1 out exactly where the test says that the groups differ. All three are exact for small groups, hence
the same for the same numbers: nothing is resampled.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy import stats

from orchestrator.measure.records import Estimate

SMALLEST = 1e-12  # stands for zero, which has no logarithm
MAD_TO_SD = 1.4826  # of a normal distribution
TRUSTED_PAIRS = 8  # fewer A/A ratios say nothing of their spread


def estimate(base: Sequence[float], head: Sequence[float], *, confidence: float) -> Estimate:
    """`head` over `base`. Both need at least one number."""
    differences = log_ratios(base, head)
    low, high = bounds(differences, len(base), len(head), confidence)
    return Estimate(
        ratio=math.exp(float(np.median(differences))),
        low=math.exp(low),
        high=math.exp(high),
        p=p_value(base, head),
        base=float(np.median(base)),
        head=float(np.median(head)),
        sessions=min(len(base), len(head)),
    )


def log_ratios(base: Sequence[float], head: Sequence[float]) -> np.ndarray:
    """Of every session of one side to every one of the other, sorted."""
    return np.sort(np.subtract.outer(logs(head), logs(base)).ravel())


def logs(values: Sequence[float]) -> np.ndarray:
    return np.log(np.maximum(np.asarray(values, dtype=float), SMALLEST))


def p_value(base: Sequence[float], head: Sequence[float]) -> float:
    """Two-sided; exact where no two values are equal, else by the normal approximation, which knows ties."""
    everything = [*base, *head]
    if len(set(everything)) == 1:
        return 1.0
    method = "exact" if len(set(everything)) == len(everything) else "asymptotic"
    return float(stats.mannwhitneyu(base, head, alternative="two-sided", method=method).pvalue)


def bounds(differences: np.ndarray, base: int, head: int, confidence: float) -> tuple[float, float]:
    """The interval at that confidence or just above; all the numbers allow where they are too few for it."""
    cut = cut_off(base, head, (1 - confidence) / 2)
    return float(differences[max(cut - 1, 0)]), float(differences[len(differences) - max(cut, 1)])


@lru_cache(maxsize=64)
def cut_off(base: int, head: int, tail: float) -> int:
    """The most differences that may be left out at each end so that both ends together miss with twice `tail`."""
    counts = rank_sums(base, head)
    below = np.cumsum(counts) / counts.sum()
    return int(np.searchsorted(below, tail, side="right"))


@lru_cache(maxsize=64)
def rank_sums(base: int, head: int) -> np.ndarray:
    """How many of the orders of two groups have Mann-Whitney's U equal to 0, 1, 2, ..."""
    counts = np.zeros(base * head + 1)
    counts[0] = 1.0
    for one in range(1, head + 1):  # the Gaussian binomial coefficient, factor by factor
        product = counts.copy()
        shift = base + one
        if shift < len(counts):
            product[shift:] -= counts[:-shift]
        for at in range(one, len(product)):
            product[at] += product[at - one]
        counts = product
    return counts


def session_sd(base: Sequence[float], head: Sequence[float]) -> float:
    """Between-session standard deviation as a share, each side about its own middle, blind to a few wild sessions."""
    sides = [logs(side) for side in (base, head) if len(side)]
    deviations = np.concatenate([np.abs(side - np.median(side)) for side in sides])
    freedom = len(deviations) - len(sides)
    if freedom < 1:
        return 0.0
    return float(np.median(deviations)) * MAD_TO_SD * len(deviations) / freedom


def ratio_sd(base: Sequence[float], head: Sequence[float], same_code: Sequence[float] = ()) -> float:
    """How far ratios of two such groups scatter where nothing differs: tonight, or in A/A pairs if that is more."""
    tonight = session_sd(base, head) * math.sqrt(1 / max(1, len(base)) + 1 / max(1, len(head)))
    if len(same_code) < TRUSTED_PAIRS:
        return tonight
    return max(tonight, float(np.median(np.abs(logs(same_code)))) * MAD_TO_SD)


def discoveries(p_values: Sequence[float], rate: float) -> list[bool]:
    """Benjamini and Hochberg: which of these stand, if at most that share of those that stand may be false."""
    if not p_values:
        return []
    return [bool(adjusted <= rate) for adjusted in stats.false_discovery_control(p_values, method="bh")]
