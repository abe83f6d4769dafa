from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.measure import verdict
from orchestrator.measure.records import Block, Canary, Metric, Outcome, Unit
from orchestrator.measure.verdict import Compared, Void, compared, drifted, is_candidate, settled
from review_agents.records import Verdict

WALL = Metric("", Unit.SECONDS, 0.001)


def judged(
    random: np.random.Generator, benchmarks: int, change: float, sd: float, *, wild: float = 0.0
) -> list[Outcome]:
    """One review of so many benchmarks, all changed alike: synthetic sessions through screen and second block."""

    def sessions(count: int, factor: float) -> list[float]:
        values = factor * np.exp(random.normal(0, sd, count))
        odd = random.random(count) < wild
        return list(values * np.where(odd, 1 + random.exponential(0.1, count), 1))

    screens: dict[str, Compared | Void] = {}
    confirms: dict[str, Compared | Void] = {}
    for number in range(benchmarks):
        screen = compared(sessions(6, 1.0), sessions(6, 1 + change), WALL)
        screens[str(number)] = screen
        if is_candidate(screen):
            confirms[str(number)] = compared(sessions(10, 1.0), sessions(10, 1 + change), WALL)
    return list(settled(screens, confirms).values())


@pytest.mark.parametrize("sd", [0.005, 0.02, 0.06])
def test_false_alarms_stay_below_the_bar_over_many_reviews_of_unchanged_code(sd: float) -> None:
    random = np.random.default_rng(11)
    outcomes = [one for _ in range(50) for one in judged(random, 20, 0.0, sd, wild=0.03)]
    alarms = [one for one in outcomes if one.verdict in (Verdict.SLOWER, Verdict.FASTER)]
    assert len(outcomes) == 1000
    assert len(alarms) <= 2  # the bar: 0.2 %


@pytest.mark.parametrize(("change", "sd", "least"), [(0.10, 0.01, 0.98), (0.05, 0.01, 0.80), (0.30, 0.06, 0.95)])
def test_changes_of_that_size_are_found(change: float, sd: float, least: float) -> None:
    random = np.random.default_rng(5)
    outcomes = Counter(one.verdict for _ in range(300) for one in judged(random, 1, change, sd, wild=0.01))
    assert outcomes[Verdict.SLOWER] / 300 >= least
    assert outcomes[Verdict.FASTER] == 0


def test_a_lone_change_among_sixty_benchmarks_is_found() -> None:
    random = np.random.default_rng(1)

    def block(count: int, factor: float) -> Compared:
        base, head = np.exp(random.normal(0, 0.01, count)), factor * np.exp(random.normal(0, 0.01, count))
        return compared(base.tolist(), head.tolist(), WALL)

    screens: dict[str, Compared | Void] = {str(at): block(6, 1.0) for at in range(59)}
    screens["slow"] = block(6, 1.1)
    confirms: dict[str, Compared | Void] = {
        name: block(10, 1.1 if name == "slow" else 1.0)
        for name, screen in screens.items()
        if isinstance(screen, Compared) and is_candidate(screen)
    }
    found = settled(screens, confirms)
    assert found["slow"].verdict is Verdict.SLOWER
    assert {one.verdict for name, one in found.items() if name != "slow"} <= {Verdict.NO_CHANGE, Verdict.INCONCLUSIVE}


def test_restless_machines_make_small_changes_inconclusive_and_never_wrong() -> None:
    random = np.random.default_rng(2)
    outcomes = [one for _ in range(300) for one in judged(random, 1, 0.05, 0.05)]
    assert not any(one.verdict is Verdict.FASTER for one in outcomes)
    denied = [
        one for one in outcomes if one.verdict is Verdict.NO_CHANGE and one.within is not None and one.within < 0.05
    ]
    assert len(denied) <= 2
    assert sum(one.verdict is Verdict.INCONCLUSIVE for one in outcomes) > 200


SIX = [1.0, 1.01, 0.99, 1.005, 0.995, 1.002]
TEN = [*SIX, 1.003, 0.998, 1.001, 0.997]


def times(factor: float, values: list[float]) -> list[float]:
    return [value * factor for value in values]


def test_a_screen_alone_is_never_an_alarm() -> None:
    screens: dict[str, Compared | Void] = {"a": compared(SIX, times(1.5, SIX), WALL)}
    assert settled(screens, {})["a"].verdict is Verdict.INCONCLUSIVE
    assert settled(screens, {"a": Void("others were busy")})["a"].verdict is Verdict.INCONCLUSIVE


def test_a_second_block_that_disagrees_takes_the_alarm_back() -> None:
    screens: dict[str, Compared | Void] = {"a": compared(SIX, times(1.5, SIX), WALL)}
    same = settled(screens, {"a": compared(TEN, times(1.0001, TEN), WALL)})["a"]
    assert same.verdict is Verdict.NO_CHANGE and same.within is not None and same.within < 0.03
    other_way = settled(screens, {"a": compared(TEN, times(0.5, TEN), WALL)})["a"]
    assert other_way.verdict is Verdict.INCONCLUSIVE


def test_a_void_block_gives_no_number() -> None:
    outcome = settled({"a": Void("others used 40% of the processor time")}, {})["a"]
    assert outcome.verdict is Verdict.CONTAMINATED
    assert outcome.best is None
    assert "40%" in outcome.reason


def test_what_moved_less_than_the_absolute_floor_has_not_moved() -> None:
    tiny = [value * 1e-4 for value in SIX]
    assert not compared(tiny, times(1.5, tiny), WALL).moved
    assert compared(tiny, times(1.5, tiny), Metric("own", Unit.SECONDS, 1e-9)).moved


@given(st.floats(1.2, 5), st.lists(st.floats(0.99, 1.01), min_size=20, max_size=20, unique=True))
def test_slower_and_faster_mirror_each_other(factor: float, values: list[float]) -> None:
    base, head = values[:10], times(factor, values[10:])
    slower = settled({"a": compared(base[:6], head[:6], WALL)}, {"a": compared(base, head, WALL)})["a"]
    faster = settled({"a": compared(head[:6], base[:6], WALL)}, {"a": compared(head, base, WALL)})["a"]
    assert slower.verdict is Verdict.SLOWER
    assert faster.verdict is Verdict.FASTER
    assert slower.confirm is not None and faster.confirm is not None
    assert slower.confirm.ratio * faster.confirm.ratio == pytest.approx(1)


def test_drift_of_the_fixed_program_is_named() -> None:
    assert drifted(Canary(Block.SCREEN, 0.100, 0.102)) == ""
    assert "4.0% apart" in drifted(Canary(Block.SCREEN, 0.100, 0.104))
    assert verdict.RULE.most_drift == 0.03
