import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.measure.bisect import is_slow, narrowed, next_commit
from orchestrator.measure.records import Estimate


def search(length: int, culprit: int, unbuildable: frozenset[int] = frozenset()) -> tuple[str, int]:
    """The commit named, and how many were run."""
    commits = [str(at) for at in range(length)]
    known: dict[str, bool | None] = {}
    while (commit := next_commit(commits, known)) is not None:
        at = int(commit)
        assert 0 < at < length - 1 and commit not in known
        known[commit] = None if at in unbuildable else at >= culprit
    return narrowed(commits, known).culprit, len(known)


@given(st.integers(2, 200).flatmap(lambda length: st.tuples(st.just(length), st.integers(1, length - 1))))
def test_the_first_slow_commit_is_named_after_few_tries(case: tuple[int, int]) -> None:
    length, culprit = case
    named, tries = search(length, culprit)
    assert named == str(culprit)
    assert tries <= math.ceil(math.log2(length)) + 1


@given(
    st.integers(3, 60).flatmap(
        lambda length: st.tuples(
            st.just(length), st.integers(1, length - 1), st.frozensets(st.integers(1, length - 2), max_size=20)
        )
    )
)
def test_commits_that_cannot_be_run_never_lead_to_a_wrong_name(case: tuple[int, int, frozenset[int]]) -> None:
    length, culprit, unbuildable = case
    named, _ = search(length, culprit, unbuildable)
    assert named in ("", str(culprit))
    if culprit not in unbuildable and culprit - 1 not in unbuildable:
        assert named == str(culprit)


def estimate(low: float, high: float) -> Estimate:
    return Estimate(math.sqrt(low * high), low, high, 0.01, 1.0, 1.0, 6)


@pytest.mark.parametrize(
    ("low", "high", "step", "slow"),
    [
        (1.9, 2.1, 2.0, True),
        (0.98, 1.02, 2.0, False),
        (1.3, 1.6, 2.0, None),
        (0.48, 0.52, 0.5, True),
        (0.98, 1.02, 0.5, False),
    ],
)
def test_a_commit_belongs_to_the_end_that_its_interval_lies_at(
    low: float, high: float, step: float, slow: bool | None
) -> None:
    assert is_slow(estimate(low, high), step) is slow
