"""Which confirmed slowdowns become findings."""

import pytest

from orchestrator.measure.records import Comparison, Estimate, Grown, Metric, Outcome, Unit, Why
from orchestrator.services.slowdowns import by_profile, worth_a_finding
from review_agents.records import Benchmark, BenchmarkKind, Verdict
from tests.support.tiny import FIRST, SECOND


def judged(kind: BenchmarkKind, metric: Metric, base: float, head: float) -> Comparison:
    estimate = Estimate(head / base, head / base, head / base, 0.0001, base, head, 10)
    return Comparison(
        "x", Benchmark(name="x", kind=kind, command="x"), metric, FIRST, SECOND, False, "key",
        Outcome(Verdict.SLOWER, "confirmed", estimate, estimate),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "metric", "base", "head", "noticed"),
    [
        (BenchmarkKind.IMPORT, Metric("import", Unit.SECONDS, 1e-9), 0.0036, 0.016, False),  # a feature's own imports
        (BenchmarkKind.IMPORT, Metric("import", Unit.SECONDS, 1e-9), 0.1, 0.2, True),
        (BenchmarkKind.SCRIPT, Metric("get", Unit.SECONDS, 1e-9), 1e-7, 2e-7, True),
        (BenchmarkKind.SCRIPT, Metric("peak memory", Unit.BYTES, 1.0), 11e6, 13e6, False),
        (BenchmarkKind.SCRIPT, Metric("peak memory", Unit.BYTES, 1.0), 50e6, 80e6, True),
    ],
)
def test_only_what_somebody_notices_is_worth_a_finding(
    kind: BenchmarkKind, metric: Metric, base: float, head: float, noticed: bool
) -> None:
    assert worth_a_finding(judged(kind, metric, base, head)) is noticed


def test_a_finding_says_what_grew_in_the_figure_s_unit_or_in_shares_where_the_samples_are_of_several_figures() -> None:
    alone = Why((Grown("scan", "lexer.py", 3, 0.00005, 0.0012),))
    assert by_profile(alone, Unit.SECONDS) == " By profile: scan (lexer.py:3) grew from 50 µs to 1.2 ms."
    together = Why((Grown("scan", "lexer.py", 3, 0.118, 0.31),), shares=True)
    assert by_profile(together, Unit.SECONDS) == (
        " By profile, in shares of all its figures together: scan (lexer.py:3) grew from 12% to 31%."
    )
