"""Which confirmed slowdowns become findings."""

import pytest

from orchestrator.measure.records import Comparison, Estimate, Metric, Outcome, Unit
from orchestrator.services.slowdowns import worth_a_finding
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
