"""What can be concluded from a drafter's answers: tau with an interval, two drafters compared, speed that follows.

Prompts are what is drawn again, because cycles of one prompt belong together; tau is a ratio of sums inside each draw.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference_node.models.errors import NodeError

DRAWS = 2000
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t at 97.5 %, for 1, 2, ... degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Counts:
    """One prompt's cycles that nothing cut."""

    committed: int
    cycles: int


def tau(counts: Sequence[Counts]) -> float:
    cycles = sum(one.cycles for one in counts)
    return sum(one.committed for one in counts) / cycles if cycles else 1.0


def interval(counts: Sequence[Counts], *, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """tau over prompts."""
    table = _table(counts)
    found = _ratios(table, _drawn(len(table), draws, seed))
    return Estimate(tau(counts), *_middle(found))


def difference(base: Sequence[Counts], other: Sequence[Counts], *, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """tau of `other` less that of `base`, over the same prompts in the same order."""
    if len(base) != len(other):
        raise ValueError(f"{len(base)} prompts against {len(other)}: they are no pairs")
    drawn = _drawn(len(base), draws, seed)
    found = _ratios(_table(other), drawn) - _ratios(_table(base), drawn)
    return Estimate(tau(other) - tau(base), *_middle(found))


def over_seeds(differences: Sequence[float]) -> Estimate | None:
    """The mean of one difference per seed with its t interval; None for fewer than two seeds."""
    n = len(differences)
    if n < 2:
        return None
    mean = sum(differences) / n
    spread = math.sqrt(sum((one - mean) ** 2 for one in differences) / (n - 1))
    half = T_975[min(n - 2, len(T_975) - 1)] * spread / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half)


def survival(accepted: Sequence[int], block: int) -> tuple[float, ...]:
    """S_k, k = 1 .. block - 1: share of cycles that accept at least k drafts."""
    return tuple(sum(one >= k for one in accepted) / max(1, len(accepted)) for k in range(1, block))


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds on one machine: of a plain step, of a draft pass, and of a verify by its rows."""

    machine: str
    plain: float
    draft: float
    verify: tuple[tuple[int, float], ...]

    @staticmethod
    def of(body: Mapping[str, object]) -> Cost:
        """From JSON: {"machine", "plain", "draft", "verify": {"1": ..., "8": ...}}, in seconds. Raises NodeError."""
        try:
            rows = sorted((int(k), float(v)) for k, v in dict(body["verify"]).items())  # type: ignore[call-overload]
            cost = Cost(str(body.get("machine", "")), float(body["plain"]), float(body["draft"]), tuple(rows))  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError) as error:
            raise NodeError(
                f'The cost curve is not readable ({error!r}). Expected {{"machine": "...", "plain": s, "draft": s, '
                '"verify": {"rows": s, ...}}, in seconds.'
            ) from None
        if not rows or min(cost.plain, *(seconds for _, seconds in rows)) <= 0:
            raise NodeError("The cost curve needs a verify, and seconds above zero.")
        return cost

    def at(self, rows: int) -> float:
        """Seconds of a verify, on the line between its neighbours that were measured."""
        xs, ys = zip(*self.verify, strict=True)
        return float(np.interp(rows, xs, ys))


def eta(survived: Sequence[float], cost: Cost) -> dict[int, float]:
    """Expected speed against plain decoding, by rows of the verify: tokens of a cycle over its cost in plain steps."""
    found = {}
    for rows in range(2, len(survived) + 2):
        tokens = 1 + sum(survived[: rows - 1])
        found[rows] = tokens * cost.plain / (cost.draft + cost.at(rows))
    return found


def _table(counts: Sequence[Counts]) -> NDArray[np.float64]:
    return np.array([(one.committed, one.cycles) for one in counts], dtype=np.float64).reshape(-1, 2)


def _drawn(prompts: int, draws: int, seed: int) -> NDArray[np.int64]:
    if not prompts:
        raise ValueError("no prompts")
    return np.random.default_rng(seed).integers(prompts, size=(draws, prompts))


def _ratios(table: NDArray[np.float64], drawn: NDArray[np.int64]) -> NDArray[np.float64]:
    sums = table[drawn].sum(1)
    result: NDArray[np.float64] = np.where(sums[:, 1] > 0, sums[:, 0] / np.maximum(sums[:, 1], 1), 1.0)
    return result


def _middle(found: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high)
