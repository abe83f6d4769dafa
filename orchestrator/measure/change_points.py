"""Steps in a series of nights, and between which commits each lies.

The cut itself is ruptures' (penalised piecewise constant fit on logarithms). What it finds is kept only if it is
large against the nights' own scatter, because the penalty alone floods restless machines with steps.
"""

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import ruptures

from orchestrator.measure.records import ChangePoint, Night, Series
from orchestrator.measure.statistics import MAD_TO_SD, logs

LEAST_POINTS = 2  # on each side of a step
LEAST_EFFECT = 0.03
NOISE_TIMES = 5.0  # more than for one comparison: a step may lie anywhere, and the noise is itself estimated
SHORT = 5  # a level of fewer points must have all of them on its own side, so that a wild night makes none
LEAST_SD = 0.005  # a series is never taken for steadier than this
PENALTY = 4.0  # times log(points), in units of the noise's variance
NEWEST = 1000  # points that are looked at


def change_points(series: Series) -> tuple[ChangePoint, ...]:
    """Oldest first. Nights without a number are passed over."""
    points = [point for point in series.points[-NEWEST:] if point.median]
    if len(points) < 2 * LEAST_POINTS:
        return ()
    heights = logs([point.median or 0.0 for point in points])
    noise = noise_sd(points, heights)
    edges = [0, *true_steps(heights, found_by_ruptures(heights / noise), noise), len(points)]
    levels = [points[start:end] for start, end in pairwise(edges)]
    return tuple(step(series, before, after) for before, after in pairwise(levels))


def found_by_ruptures(signal: np.ndarray) -> list[int]:
    """Indices of the first point of each new level."""
    fit = ruptures.KernelCPD(kernel="linear", min_size=LEAST_POINTS).fit(signal.reshape(-1, 1))
    cuts = fit.predict(pen=PENALTY * math.log(len(signal)))
    return [int(cut) for cut in cuts[:-1]]


def true_steps(heights: np.ndarray, cuts: Sequence[int], noise: float) -> list[int]:
    """Those that stand out, the weakest taken away first, because its neighbours' levels then change."""
    kept = list(cuts)
    while kept:
        edges = [0, *kept, len(heights)]
        margins = [
            margin(heights[before:cut], heights[cut:after], noise)
            for before, cut, after in zip(edges, kept, edges[2:], strict=False)
        ]
        weakest = int(np.argmin(margins))
        if margins[weakest] >= 0:
            break
        del kept[weakest]
    return kept


def margin(before: np.ndarray, after: np.ndarray, noise: float) -> float:
    """By how much the step exceeds what it needs; below 0 it is none."""
    levels = float(np.median(before)), float(np.median(after))
    height = abs(levels[1] - levels[0])
    middle = sum(levels) / 2
    for side, own in zip((before, after), levels, strict=True):
        if len(side) < SHORT and np.any((side - middle) * (own - middle) <= 0):
            return -math.inf
    scatter = noise * math.sqrt(1 / len(before) + 1 / len(after))
    return height - max(math.log1p(LEAST_EFFECT), NOISE_TIMES * scatter)


def noise_sd(points: Sequence[Night], heights: np.ndarray) -> float:
    """Night-to-night scatter: from neighbours' differences, which steps hardly touch, or from within the nights."""
    # statistics.median, because numpy's takes ten times as long for so few, and a page has hundreds of series.
    between = statistics.median(np.abs(np.diff(heights)).tolist()) * MAD_TO_SD / math.sqrt(2)
    within = [point.spread / math.sqrt(point.good or 1) for point in points if point.spread is not None]
    return max(LEAST_SD, between, statistics.median(within) * MAD_TO_SD if within else 0.0)


def step(series: Series, before: Sequence[Night], after: Sequence[Night]) -> ChangePoint:
    last, first = before[-1], after[0]
    return ChangePoint(
        name=series.name,
        unit=series.unit,
        machine_key=series.machine_key,
        from_commit=last.commit,
        to_commit=first.commit,
        from_at=last.at,
        to_at=first.at,
        before=level(before),
        after=level(after),
        ratio=level(after) / level(before),
        points_after=len(after),
    )


def level(points: Sequence[Night]) -> float:
    return float(np.median([point.median or 0.0 for point in points]))
