"""A tenth of the fault matrix (`python -m tests.bench faults` has all of it), and that its data make sense."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.bench import faults
from tests.bench.fault_cases import ALL, IN_ORDER, KILLED, Case, tenth
from tests.support.stage import Stage


def test_every_process_is_killed_at_every_step_and_every_fault_is_known() -> None:
    assert len({case.name for case in ALL}) == len(ALL) >= 60
    for who in KILLED:
        assert {case.step for case in ALL if case.fault == f"kill {who}"} >= set(IN_ORDER)
    assert {case.fault for case in ALL} == set(faults.FAULTS)
    assert len(tenth()) >= len(ALL) // 12


def test_what_differs_from_a_review_that_nobody_disturbed_is_told() -> None:
    before = {"a": ("done", 9), "b": ("done", 9)}
    assert faults.lost_of(before, {"a": ("done", 9), "b": ("done", 8)}) == [  # type: ignore[arg-type]
        "of review b: ('done', 9) became ('done', 8)"
    ]
    result = faults.Result("x")
    faults.compare("3 sightings", 3, 2, result)
    faults.compare("0 findings", 0, 2, result)
    assert (result.twice, result.lost) == (["3 sightings instead of 2"], ["0 findings instead of 2"])
    assert not result.well


def test_a_case_that_takes_too_long_is_not_well_however_it_ended() -> None:
    quick, slow = faults.Result("x", seconds=39.9), faults.Result("x", seconds=40.4)
    for one in (quick, slow):
        one.judge_time()
    assert quick.well
    assert not slow.well and slow.complaints == "too_long: 40 s, at most 40"


@pytest.mark.parametrize(
    ("case", "may"),
    [
        (Case("kill worker", "verify", "box"), {"verify"}),
        (Case("kill worker", "verify", "ended"), {"verify", "merge"}),
        (Case("kill redis", "checkout", seconds=5), {"checkout", "prepare"}),
        (Case("kill redis", "probe:counts", seconds=5), {"probe:counts", "focus:correctness"}),
        (Case("kill redis", "measure:base", seconds=5), {"measure:base", "focus:correctness"}),
        (Case("kill worker", "prepare", "box"), {"prepare", "probe:install"}),
        (Case("kill node", "record"), {"record", "focus:correctness"}),
        (Case("the message never comes"), set()),
    ],
    ids=lambda case: case.name if isinstance(case, Case) else None,
)
def test_only_the_step_in_which_it_happened_may_be_done_again(case: Case, may: set[str]) -> None:
    assert {step for step in (*IN_ORDER, "probe:install") if faults.may_repeat(case, step)} == may


@pytest.fixture(scope="module")
def stages() -> Iterator[dict[str, Stage]]:
    """By sandbox; one at a time, because each has the same cables."""
    with ExitStack() as stack:
        yield Stages(stack)


class Stages(dict[str, Stage]):
    def __init__(self, stack: ExitStack):
        super().__init__()
        self.stack = stack

    def __missing__(self, sandbox: str) -> Stage:
        self.stack.close()
        self.clear()
        self[sandbox] = self.stack.enter_context(faults.prepared(sandbox))
        return self[sandbox]


@pytest.mark.docker
@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", tenth(), ids=lambda case: case.name)
def test_a_review_survives(stages: dict[str, Stage], case: Case) -> None:
    result = faults.outcome_of(stages[case.sandbox], case)
    assert result.complaints == ""
